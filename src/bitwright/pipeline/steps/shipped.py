# SPDX-License-Identifier: Apache-2.0
"""When a checkpoint of the package stands for a recipe's float training.

``train.pretrained: true`` says: do not train again what was trained already. It holds where model,
data set, cut, seed and float settings are those that the entry was made with. With anything else
(weights to start from, a teacher) the recipe trains, so that a sweep over seeds or settings
measures what it says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from bitwright.base.errors import RecipeError
from bitwright.data.spec import Keep
from bitwright.models.pretrained import Pretrained, find_pretrained, matching
from bitwright.tasks.catalog import TaskSpec
from bitwright.train.config import TrainConfig

if TYPE_CHECKING:
    from bitwright.data import DataSplits
    from bitwright.models import ModelSpec
    from bitwright.pipeline.recipe_schema import Recipe

#: Settings of a training that say where it runs, not what comes out.
_WHERE = ("threads", "device", "devices")


def shipped(recipe: Recipe, splits: DataSplits) -> Pretrained | None:
    """The entry that is the result of a recipe's float training; None: it has to be trained."""
    config = recipe.train.float_
    if not recipe.train.pretrained or recipe.model.weights is not None or config.distillation:
        return None
    if recipe.task != TaskSpec():  # no checkpoint was made for another
        return None
    if recipe.data.keep != Keep():  # no checkpoint was made of fewer images
        return None
    found = matching(recipe.model, splits.image_shape, splits.num_classes, splits.name)
    for entry in found:
        same_cut = (entry.seed, entry.validation) == (recipe.seed, recipe.data.validation)
        same_images = entry.test_digest == splits.test.choice()
        if same_cut and same_images and _same(entry.training, config):
            return entry
    return None


def check_unseen(spec: ModelSpec, splits: DataSplits) -> Pretrained | None:
    """The entry behind ``weights: pretrained``, none of whose training images is a test image here.

    Raises:
        RecipeError: there is no entry, or it has seen test images.
    """
    if not spec.is_pretrained:
        return None
    entry = find_pretrained(spec, splits.image_shape, splits.num_classes, splits.name)
    if entry.test_digest != splits.test.choice():
        raise RecipeError(
            f"the pretrained weights {entry.name!r} were trained on images that are test images "
            "here",
            where="model.weights",
            hint=f"they hold out other images: seed {entry.seed}, data.validation "
            f"{entry.validation:g}; take that cut, or leave `weights` out",
        )
    return entry


def _same(recorded: dict[str, Any] | None, wanted: TrainConfig) -> bool:
    if recorded is None:
        return False
    try:
        then = TrainConfig.model_validate(recorded)
    except ValidationError:  # a setting that this version no longer has
        return False
    out = set(_WHERE)
    return bool(then.model_dump(exclude=out) == wanted.model_dump(exclude=out))
