# SPDX-License-Identifier: Apache-2.0
"""`inspect`: what the user names - a file, a model, a recipe - and what would become of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright.base.bounded import bounded
from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.base.trust import importable
from bitwright.data.dataset import torch_shape
from bitwright.models.catalog import MODEL_FILES, list_models
from bitwright.pipeline.inspection.results import Inspection, Problem
from bitwright.pipeline.recipe import Recipe, find_recipe, load_recipe

if TYPE_CHECKING:
    from torch import nn

Shape = tuple[int, ...]
_CLASSES = 10  # of a classifier whose number of classes is not said


def inspect_model(
    model: str | Recipe,
    *,
    input_shape: Shape | None = None,
    classes: int | None = None,
    weight: str = "int4",
    activation: str = "uint4",
    input_format: str | None = None,
    data: str | Path | None = None,
) -> Inspection:
    """What every node of a model becomes in hardware, or all that stands in the way.

    Args:
        model: an ``.onnx`` file, a model's file, ``package.module:factory``, a name of the zoo, or
            a recipe, by name, file or value.
        input_shape: (H, W, C); needed for a torch model that no recipe gives data to.
        classes: of a classifier; a recipe's own data set says its own.
        weight, activation, input_format: formats for a torch model; a recipe has its own, and so
            has a prototxt of Ristretto. For an ONNX file, ``input_format`` says that its input
            is integers of this format.
        data: where a recipe's data set lies.

    Raises:
        RecipeError: there is no such thing, or a shape or format makes no sense.
        DataError: what a model's file becomes takes far more memory than the file gives reason for.
        BitwrightError: a recipe's data set cannot be read.
    """
    if not isinstance(model, str):
        return _of_recipe(model)
    if model.lower().endswith(".onnx"):
        from bitwright.pipeline.inspection.onnx_file import inspect_onnx

        if not _is_float(Path(model)):
            return inspect_onnx(Path(model), input_type=input_format)
    from bitwright.quantize.policy import Policy

    formats: dict[str, Any] = {
        "weight": weight, "activation": activation, "input": input_format or "uint8",
    }  # fmt: skip
    # Whoever says what size images have may have what the machine has.
    is_strange = not is_by_name(model) and input_shape is None
    if not is_by_name(model):
        if not model.lower().endswith(MODEL_FILES):
            return _of_recipe(recipe_named(model, ".onnx file, file of a model, ", data))
        from bitwright.interop.model_files import load_model

        loaded = load_model(Path(model), input_shape=input_shape, classes=classes)
        input_shape, formats = loaded.input_shape, dict(loaded.quant) or formats
    shape = known_shape(model, input_shape)
    with importable(Path.cwd()):
        policy = Policy.from_dict(formats)

        def made() -> Inspection:
            return _built(model, lambda: build_for(model, classes, shape)[0], shape, policy)

        return bounded(made, Path(model), made=True) if is_strange else made()


def _is_float(path: Path) -> bool:
    """Whether an ONNX file is a float network; what is wrong with one, `inspect_onnx` says."""
    from bitwright.interop.onnx.float_network import is_float_file

    try:
        found: bool = is_float_file(path)
    except (DataError, ModelError):
        return False
    return found


def is_by_name(name: str) -> bool:
    """Whether a name is one of the zoo or ``package.module:factory``."""
    return ":" in name or any(info.name == name for info in list_models())


def known_shape(name: str, *shapes: Shape | None) -> Shape:
    """The first size (H, W, C) of an image that is known.

    Raises:
        RecipeError: none is.
    """
    for shape in shapes:
        if shape is not None:
            return shape
    raise RecipeError(
        f"the size of an image is needed for {name!r}",
        where="--input-shape",
        hint="height x width x channels, such as --input-shape 32x32x3",
    )


def recipe_named(name: str, other: str = "", data: str | Path | None = None) -> Recipe:
    """The recipe of this name, where a model could have been named too.

    Args:
        other: what else it could have been, for the message.
        data: where its data set lies.

    Raises:
        RecipeError: there is none.
    """
    try:
        find_recipe(name)
    except RecipeError as error:
        raise RecipeError(
            f"{name!r} is none of these: {other}model of the zoo, recipe, run directory",
            hint="`bitwright list models` and `bitwright list recipes` say what there is; "
            "a model of your own is package.module:factory",
        ) from error
    return load_recipe(name, data_dir=data)


def _of_recipe(recipe: Recipe) -> Inspection:
    from bitwright.pipeline.steps.workspace import Workspace

    work = Workspace(recipe)
    with importable(recipe.base_dir):
        return _built(recipe.name, work.fresh_model, work.data.image_shape, work.policy)


def _built(name: str, make: Callable[[], nn.Module], shape: Shape, policy: Any) -> Inspection:
    from bitwright.pipeline.inspection.torch_model import inspect_torch

    try:
        model = make()
    except ModelError as error:
        return Inspection(name, (), (Problem.of(error, name),))
    return inspect_torch(model, policy, torch_shape(shape), name)


def build_for(
    model: Any, classes: int | None, shape: Shape, seed: int = 0
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
