# SPDX-License-Identifier: Apache-2.0
"""The recipes of MuPPET have the settings that its paper gives (and Vink 2023, section 3)."""

from __future__ import annotations

import pytest

from bitwright.low_precision.config import formats_as_trained
from bitwright.low_precision.settings import MuppetSettings
from bitwright.pipeline.recipe import list_recipes, load_recipe

RATES = {
    "cifar-alexnet": 0.01,
    "cifar-resnet20": 0.1,
    "cifar-googlenet": 0.001,
    "imagenet-alexnet": 0.01,
    "imagenet-resnet18": 0.1,
    "imagenet-googlenet": 0.001,
}
FLOAT32 = (
    "train.float.low_precision=baseline",
    "train.float.schedule=step",
    "train.float.every=50",
)


@pytest.mark.parametrize(("name", "rate"), RATES.items())
def test_the_published_settings(name: str, rate: float) -> None:
    recipe = load_recipe(f"{name}-muppet")
    config, low = recipe.train.float_, recipe.train.float_.low_precision
    assert low is not None and low.policy == MuppetSettings()
    policy = low.policy
    assert (policy.alpha, policy.beta, policy.decay) == (1, 1.5, 0.1)
    assert (policy.resolution, policy.patience) == (3, 2)
    assert low.ladder == ("int8", "int12", "int14", "int16", "float32")
    assert (low.float_epochs, low.lr_every, low.lr_divisor) == (45, 15, 10)
    assert (low.rounding, low.results) == ("stochastic", False)
    assert (config.optimizer, config.lr, config.momentum, config.nesterov) == (
        "sgd", rate, 0.9, False
    )  # fmt: skip
    assert (config.weight_decay, config.weight_decay_on) == (1e-4, "all")
    assert config.batch_size == (256 if name.startswith("imagenet") else 128)
    assert config.schedule == "constant"
    assert recipe.data.validation == 0.2
    assert recipe.quant == formats_as_trained(low)


@pytest.mark.parametrize("name", RATES)
def test_the_baseline_is_a_few_settings_away(name: str) -> None:
    """As the recipe's first lines say: 150 epochs of float32, lr / 10 after 50 and 100."""
    low, baseline = load_recipe(f"{name}-muppet"), load_recipe(f"{name}-muppet", FLOAT32)
    config = baseline.train.float_
    assert config.low_precision is not None and config.low_precision.ladder == ("float32",)
    assert (config.epochs, config.every, config.drop) == (150, 50, 0.1)
    changed = {"low_precision", "schedule", "every"}
    assert config.model_dump(exclude=changed) == low.train.float_.model_dump(exclude=changed)


def test_images_of_imagenet_stay_in_their_files() -> None:
    for name, _ in list_recipes():
        if name.startswith("imagenet"):
            recipe = load_recipe(name)
            assert recipe.data.stream is not None and recipe.data.image_size == (224, 224)
            assert recipe.train.float_.augmentation.random_resized_crop == 0.08
