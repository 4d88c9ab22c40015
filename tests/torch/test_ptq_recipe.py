# SPDX-License-Identifier: Apache-2.0
"""`quant.methods` of a recipe: the same function as a comparison, one's own methods, reloading."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.e2e.tiny import TINY
from torch import Tensor, nn

from bitwright.base.errors import RecipeError
from bitwright.pipeline.recipe import load_recipe, recipe_from_dict
from bitwright.pipeline.run import no_progress
from bitwright.pipeline.steps.quantize import WEIGHTS, calibrated, quantized_model
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.quantize import Policy, method_words
from bitwright.quantize.ptq import post_training_quantize
from bitwright.quantize.ptq.methods import parse_methods
from bitwright.quantize.ptq.reconstruction import LayerView
from bitwright.train import save_weights

QUANT = {"input": "uint8", "weight": "int4", "activation": "uint4"}


@dataclass(frozen=True)
class Halve:
    """A method of one's own that changes the float network."""

    name = "halve"

    def prepare(self, model: nn.Module, example: Tensor) -> tuple[nn.Module, Any]:
        copied = nn.Sequential(model)
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.mul_(0.5)
        return copied, "halved"


class Watch:
    """One that looks at layers."""

    name = "watch"
    seen: ClassVar[list[str]] = []

    def treat(self, view: Any, biased: bool) -> None:
        self.seen.append(view.path)


def not_one() -> str:
    return "text"


def test_words_are_checked_without_torch() -> None:
    assert Policy.from_dict(QUANT).methods == ("calibrate",)
    chosen = Policy.from_dict({**QUANT, "methods": ["fold", "bias", "own.module:Name"]})
    assert chosen.methods == ("fold", "bias", "own.module:Name")
    for wrong, said in (
        (["gptq", "fold"], "makes no sense"),
        (["clip", "gptq"], "both choose"),
        (["fold", "fold"], "twice"),
        (["nonsense"], "unknown method"),
        (7, "expected a list"),
    ):
        with pytest.raises(RecipeError, match=said) as caught:
            Policy.from_dict({**QUANT, "methods": wrong})
        assert caught.value.where == "quant.methods"
    assert method_words.quick(("fold", "gptq", "bias")) == ("fold", "bias")


def test_methods_that_fix_weights_exclude_their_training(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    text = "name: own\ndata: digits\nmodel: digits_cnn\nquant: {methods: [gptq]}\n"
    file.write_text(text)
    assert load_recipe(file).quant == {"methods": ["gptq"]}
    file.write_text(text + "train: {quantized: {epochs: 1}}\n")
    with pytest.raises(RecipeError, match=r"gptq fixes the weights, which train\.quantized"):
        load_recipe(file)


class FixesLevels:
    """A method of the user's own that chooses levels, as `examples/12` does."""

    name = "fixes levels"

    def treat(self, view: LayerView, biased: bool) -> None:
        layer = view.layer
        layer.weight_quantizer.fix_levels(*layer.weight_quantizer.levels(layer.weight))


class NeedsBits(FixesLevels):
    def __init__(self, bits: int) -> None:
        self.bits = bits


def test_a_method_of_ones_own_that_fixes_weights_excludes_their_training() -> None:
    quant = {**QUANT, "methods": ["fold", f"{__name__}:FixesLevels"]}
    work = Workspace(recipe_from_dict({**TINY, "quant": quant}))
    with pytest.raises(RecipeError, match=r"FixesLevels fixes the weights of \w+, which train"):
        calibrated(work, work.fresh_model().eval(), no_progress, images=8, quick=True)
    with pytest.raises(RecipeError, match=r"without arguments: missing .*'bits'"):
        parse_methods([f"{__name__}:NeedsBits"])


def test_a_recipe_does_what_a_comparison_does_and_loads_again(tmp_path: Path) -> None:
    words = ["fold", "equalize", "absorb", "calibrate", "gptq", "bias"]
    train = {"float": TINY["train"]["float"]}
    recipe = recipe_from_dict({**TINY, "quant": {**QUANT, "methods": words}, "train": train})
    work = Workspace(recipe)
    torch.manual_seed(1)
    base = work.fresh_model().eval()
    made = calibrated(work, base, no_progress, images=96)
    order = torch.randperm(len(work.data.train), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(work.data.train.take(order[:96].numpy()).reals())
    same, report = post_training_quantize(base, work.policy, images, words, batch_size=128)
    state = made.state_dict()
    assert report.scales and all(torch.equal(v, state[k]) for k, v in same.state_dict().items())
    save_weights(tmp_path / WEIGHTS, made)
    again = quantized_model(work, tmp_path).eval()
    assert torch.equal(again(images), made.eval()(images))


def test_methods_of_ones_own() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    images = torch.rand(20, 1, 8, 8, generator=torch.manual_seed(0))
    Watch.seen.clear()
    place = f"{__name__}:Watch"
    policy = Policy.from_dict({**QUANT, "methods": [place]})
    _, report = post_training_quantize(model, policy, images, [Halve(), *policy.methods])
    assert report.methods == ("halve", "calibrate", "watch")
    assert Watch.seen == ["0.0", "0.3"]
    with pytest.raises(RecipeError, match="changes the float network, after"):
        parse_methods(["calibrate", Halve()])
    with pytest.raises(RecipeError, match="before there are scales"):
        parse_methods([Watch(), "calibrate"])
    with pytest.raises(RecipeError, match="is no method"):
        parse_methods([f"{__name__}:not_one"])


@pytest.mark.parametrize(("where", "count"), [("float", 3), ("quantized", 5)])
def test_calibration_has_the_threads_that_training_has(
    where: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of floats depend on them, so a recipe that names them has the same scales anywhere."""
    train = {**TINY["train"], "quantized": {"epochs": 1}}
    train[where] = {**train[where], "threads": count}
    recipe = recipe_from_dict({**TINY, "train": train}, base_dir=Path())
    seen: list[int] = []

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        seen.append(torch.get_num_threads())
        return nn.functional.relu(x)

    monkeypatch.setattr(nn.ReLU, "forward", forward)
    work, before = Workspace(recipe, no_progress), torch.get_num_threads()
    model = work.fresh_model()
    seen.clear()
    calibrated(work, model, no_progress, images=8)
    assert set(seen) == {count} and torch.get_num_threads() == before
