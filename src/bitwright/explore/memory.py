# SPDX-License-Identifier: Apache-2.0
"""How much memory the parameters of models take at several widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bitwright.base.trust import importable
from bitwright.explore.sizes import parameter_mb
from bitwright.models.catalog import list_models
from bitwright.pipeline.inspection.inspect import (
    build_for,
    is_by_name,
    known_shape,
    recipe_named,
)
from bitwright.pipeline.steps.workspace import Workspace

WIDTHS = (32, 8, 4)


@dataclass(frozen=True)
class MemoryRow:
    """One model.

    Attributes:
        input_shape: (H, W, C).
        classes: of a classifier; None for other models.
        parameters: trainable numbers: weights, biases, factors and offsets of batch norms. Running
            statistics, scales and zero points are none.
        mb: width in bits -> memory in units of 2^20 bytes, all parameters at that width.
    """

    model: str
    input_shape: tuple[int, int, int]
    classes: int | None
    parameters: int
    mb: Mapping[int, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def memory_table(
    models: Sequence[str],
    *,
    classes: int | None = None,
    input_shape: tuple[int, int, int] | None = None,
    bits: Sequence[int] = WIDTHS,
) -> tuple[MemoryRow, ...]:
    """Parameters and memory of models, in the order given.

    Args:
        models: names of the zoo, ``package.module:factory``, or recipes.
        classes: of classifiers; by default 10. A recipe says its own.
        input_shape: (H, W, C); by default what a model of the zoo is usually given.
        bits: widths.

    Raises:
        RecipeError: there is no such model, or the size of an image is needed.
        ModelError: a model cannot be built.
    """
    return tuple(_row(name, classes, input_shape, bits) for name in models)


def _row(
    name: str, classes: int | None, shape: tuple[int, int, int] | None, bits: Sequence[int]
) -> MemoryRow:
    if is_by_name(name):
        usual = {info.name: info.image for info in list_models()}
        image = known_shape(name, shape, usual.get(name))
        with importable():
            built, classes = build_for(name, classes, image)
    else:
        recipe = recipe_named(name)
        # weights say nothing about how many there are
        plain = recipe.model.model_copy(update={"weights": None})
        work = Workspace(recipe.model_copy(update={"model": plain}))
        built, image, classes = work.fresh_model(), work.data.image_shape, work.num_classes
    count = sum(p.numel() for p in built.parameters() if p.requires_grad)
    return MemoryRow(name, image, classes, count, {b: parameter_mb(count, b) for b in bits})
