# SPDX-License-Identifier: Apache-2.0
"""`inspect`: what the user names - a file, a model, a recipe - and what would become of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright.base.errors import RecipeError
from bitwright.models.catalog import MODEL_FILES, list_models
from bitwright.pipeline.inspection.results import Inspection
from bitwright.pipeline.recipe import Recipe, find_recipe, load_recipe

if TYPE_CHECKING:
    from torch import nn

_CLASSES = 10  # of a classifier whose number of classes is not said


def inspect(
    name: str | Recipe,
    *,
    input_shape: tuple[int, int, int] | None = None,
    classes: int | None = None,
    weight: str = "int4",
    activation: str = "uint4",
    input_format: str | None = None,
    data: Path | None = None,
) -> Inspection:
    """Inspect an ONNX file, a torch model or a recipe.

    Args:
        name: an ``.onnx`` file, a model's file, ``package.module:factory``, a name of the zoo, or
            a recipe, by name, file or value.
        input_shape: (H, W, C); needed for a torch model that no recipe gives data to.
        classes: of a classifier; a recipe's own data set says its own.
        weight, activation, input_format: formats for a torch model; a recipe has its own, and so
            has a prototxt of Ristretto. For an ONNX file, ``input_format`` says that its input
            is integers of this format.
        data: where a recipe's data set lies.

    Raises:
        RecipeError: there is no such thing, or a shape or format makes no sense.
        BitwrightError: a recipe's data set cannot be read.
    """
    if not isinstance(name, str):
        return _recipe(name)
    if name.lower().endswith(".onnx"):
        from bitwright.pipeline.inspection.onnx_file import inspect_onnx

        return inspect_onnx(Path(name), input_type=input_format)
    formats = {"weight": weight, "activation": activation, "input": input_format or "uint8"}
    if ":" in name or _is_zoo(name):
        return _model(name, input_shape, classes, formats)
    if name.lower().endswith(MODEL_FILES):
        from bitwright.interop.model_files import load_model

        loaded = load_model(Path(name), input_shape=input_shape, classes=classes)
        return _model(name, loaded.input_shape, classes, dict(loaded.quant) or formats)
    try:
        find_recipe(name)
    except RecipeError as error:
        raise RecipeError(
            f"{name!r} is no .onnx file, model's file, model of the zoo, recipe or run directory",
            hint="`bitwright list models` and `bitwright list recipes` say what there is; "
            "a model of your own is package.module:factory",
        ) from error
    return _recipe(load_recipe(name, data_dir=data))


def _is_zoo(name: str) -> bool:
    return any(info.name == name for info in list_models())


def _model(
    name: str,
    shape: tuple[int, int, int] | None,
    classes: int | None,
    formats: dict[str, Any],
) -> Inspection:
    from bitwright.quantize.policy import Policy

    if shape is None:
        raise RecipeError(
            f"the size of an image is needed for {name!r}",
            where="--input-shape",
            hint="height x width x channels, such as --input-shape 32x32x3",
        )
    policy = Policy.from_dict(formats)
    return _inspect_built(name, name, classes, shape, policy, Path.cwd(), 0)


def _recipe(recipe: Recipe) -> Inspection:
    from bitwright.pipeline.steps.workspace import Workspace

    work = Workspace(recipe)
    channels, height, width = work.sample_shape
    classes = getattr(work.data, "num_classes", None)
    shape = (height, width, channels)
    return _inspect_built(
        recipe.name, recipe.model, classes, shape, work.policy, recipe.base_dir, recipe.seed
    )


def _inspect_built(
    name: str,
    model: Any,
    classes: int | None,
    shape: tuple[int, int, int],
    policy: Any,
    folder: Path,
    seed: int,
) -> Inspection:
    from bitwright.base.errors import ModelError
    from bitwright.base.plugins import importable
    from bitwright.pipeline.inspection.results import Problem
    from bitwright.pipeline.inspection.torch_model import inspect_torch

    height, width, channels = shape
    with importable(folder):
        try:
            built, _ = build_for(model, classes, shape, seed)
        except ModelError as error:
            problem = Problem(error.where or name, error.message, error.hint or "")
            return Inspection(name, (), (problem,))
        return inspect_torch(built, policy, (channels, height, width), name)


def build_for(
    model: Any, classes: int | None, shape: tuple[int, int, int], seed: int = 0
) -> tuple[nn.Module, int | None]:
    """A model with as many classes as said; else without any, as a detector, or with ten.

    Returns:
        The model, and how many classes it has.
    """
    from bitwright.interop.model_files import model_from_spec

    if classes is not None:
        return model_from_spec(model, classes, shape, seed=seed), classes
    try:
        return model_from_spec(model, None, shape, seed=seed), None
    except RecipeError:
        return model_from_spec(model, _CLASSES, shape, seed=seed), _CLASSES
