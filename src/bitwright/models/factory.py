# SPDX-License-Identifier: Apache-2.0
"""Building a model by name: ours from the zoo, or the user's own. Files: `interop.model_files`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from bitwright.base.errors import ModelError, RecipeError
from bitwright.base.plugins import load_attribute, load_plugin, place_of, users_code
from bitwright.models.catalog import ModelSpec, list_models
from bitwright.models.memory import Held, check_image, check_memory, is_small, without_numbers
from bitwright.models.modes import evaluating
from bitwright.models.output import Output, scores
from bitwright.models.pretrained import find_pretrained, load_into, named

_KINDS = {2: "a row (N, F)", 3: "a signal (N, C, L)", 4: "an image of (N, C, H, W)"}


def build_model(
    spec: str | ModelSpec | Mapping[str, Any],
    num_classes: int | None,
    input_shape: tuple[int, ...],
    *,
    seed: int = 0,
    data: str | None = None,
    held: Held | None = None,
    output: Output | None = None,
) -> nn.Module:
    """Build a model with fresh weights, the same for the same seed, and try it on one image.

    Args:
        spec: a name of ``list_models()``, ``package.module:factory``, a ``ModelSpec`` or a mapping
            of its fields, of which no file is read but pretrained weights
            (`interop.model_files.model_from_spec` reads them all). A user's factory is a function
            or ``nn.Module`` class; it gets the options, and ``num_classes``, ``num_outputs`` and
            ``input_shape`` if it has arguments of these names.
        num_classes: length of the score vector; None for a model that gives something else, as a
            detector does: then any one tensor for a batch will do.
        input_shape: of one input, channels last: (H, W, C), (L, C) or (F,); the model itself is fed
            (N, C, H, W), (N, C, L) or (N, F).
        seed: of torch's generator while the model is built; its state is restored afterwards.
        data: name of the data set, of which ``weights: pretrained`` are taken.
        output: what the model must give, where that is not a score for each class: ``num_outputs``
            is its number of values or channels.
        held: what the file holds that names a model of the zoo; it is looked at before any number
            is made.

    Returns:
        The model; its attribute ``sample_shape`` holds the shape of one input as it takes it.

    Raises:
        DataError: a file of weights is missing, damaged, or of another network; the file that names
            the model does not hold it.
        RecipeError: the name or an option is unknown, a classifier gets no number of classes, or
            there are no pretrained weights of this model.
        ModelError: the user's code fails, is no ``nn.Module``, or gives scores of another shape;
            the network takes more memory than there is.
    """
    wanted = as_spec(spec)
    if wanted.is_file or isinstance(wanted.weights, Path):
        raise RecipeError(
            f"{wanted.name if wanted.is_file else wanted.weights} is a file, no name of a model",
            where="model",
            hint="bitwright.interop.model_files.model_from_spec reads models and weights of files",
        )
    entry = None
    if wanted.is_pretrained:
        entry = find_pretrained(wanted, input_shape, num_classes, data)
    factory, options = _own(wanted) if wanted.is_own else _ours(wanted)
    if output is None and num_classes is not None:
        output = scores(num_classes)
    sizes = {"num_classes": num_classes, "num_outputs": None if output is None else output.size}
    arguments = _arguments(factory, options, sizes, input_shape, wanted)
    sample_shape = _torch_shape(input_shape)
    shapes = None if wanted.is_own else without_numbers(factory, arguments, held)
    if shapes is not None:
        check_memory(shapes, sample_shape, wanted.name)
    # What cannot be built of shapes cannot be built at all: for a file nobody pays the attempt.
    in_vain = shapes is None and held is not None and factory.__module__.startswith("bitwright.")
    with torch.random.fork_rng(devices=[]), torch.device("meta") if in_vain else nullcontext():
        torch.manual_seed(seed)
        hint = f"it was called with {', '.join(arguments) or 'no arguments'}"
        with users_code("building the model", wanted.name, hint, __file__):
            model: object = factory(**arguments)
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"gave a {type(model).__name__}, not an nn.Module",
            where=wanted.name,
            hint="the factory must return the model",
        )
    tried = None
    if held is not None and not is_small(sample_shape, held.room):
        check_image(model, sample_shape, held.room, held.where)
        tried = shapes  # a large image tells no more than its shape does
    check_model(model, output, input_shape, wanted.name, tried=tried)
    if entry is not None:
        load_into(model, entry)
    return model


def _torch_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one input, channels last, as torch has it: channels first."""
    return (shape[-1], *shape[:-1])


def load_pretrained(name: str) -> nn.Module:
    """The model of an entry with its weights, in evaluation mode.

    Raises:
        DataError: there is no such entry, or its file is missing or damaged.
    """
    entry = named(name)
    model = build_model(entry.spec, entry.classes, entry.image_shape)
    load_into(model, entry)
    return model.eval()


def as_spec(spec: str | ModelSpec | Mapping[str, Any]) -> ModelSpec:
    """A model's name or fields, as a recipe has them, checked.

    Raises:
        RecipeError: a field is unknown or wrong.
    """
    if isinstance(spec, ModelSpec):
        return spec
    try:
        fields = {"name": spec} if isinstance(spec, str) else dict(spec)
        return ModelSpec.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise RecipeError(
            f"{first['msg']}, found {first['input']!r}",
            where=".".join(str(part) for part in ("model", *first["loc"])),
            hint=f"fields: {', '.join(ModelSpec.model_fields)}",
        ) from error


def _ours(spec: ModelSpec) -> tuple[Callable[..., Any], dict[str, Any]]:
    for info in list_models():
        if info.name == spec.name:
            inside = "." not in info.factory
            place = f"bitwright.models.{info.factory}" if inside else info.factory
            factory: Callable[..., Any] = load_attribute(place)
            return factory, {**info.options, **spec.options}
    raise RecipeError(
        f"unknown model {spec.name!r}",
        where="model",
        hint=f"known: {', '.join(info.name for info in list_models())}; "
        "your own is written package.module:factory",
    )


def _own(spec: ModelSpec) -> tuple[Callable[..., Any], dict[str, Any]]:
    return load_plugin(spec.name, "model"), dict(spec.options)


def _arguments(
    factory: Callable[..., Any],
    options: dict[str, Any],
    sizes: Mapping[str, int | None],
    input_shape: tuple[int, ...],
    spec: ModelSpec,
) -> dict[str, Any]:
    offered: dict[str, Any] = {"input_shape": input_shape}
    offered |= {name: size for name, size in sizes.items() if size is not None}
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return options
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [name for name in options if name not in parameters]
    if unknown and not takes_any:
        known = [name for name in parameters if name not in ("input_shape", *sizes)]
        raise RecipeError(
            f"{spec.name} has no option {unknown[0]!r}",
            where="model.options",
            hint=f"its options: {', '.join(known) or 'none'}",
        )
    needs_classes = "num_classes" in parameters and "num_classes" not in {**offered, **options}
    if needs_classes and parameters["num_classes"].default is inspect.Parameter.empty:
        raise RecipeError(
            f"{spec.name} is a classifier and needs the number of classes", where="model"
        )
    return {name: value for name, value in offered.items() if name in parameters} | options


def check_model(
    model: nn.Module,
    output: Output | None,
    input_shape: tuple[int, ...],
    name: str,
    *,
    tried: nn.Module | None = None,
) -> None:
    """Try a model on one input, and note in it what inputs it is for: ``sample_shape``.

    Many a network computes something for images of other sizes, too.

    Args:
        output: what it must give; None: any one tensor for a batch.
        tried: the same model with shapes alone, for images whose numbers would take long.

    Raises:
        ModelError: it fails, or gives something of another shape.
    """
    image = (1, *_torch_shape(input_shape))
    try:
        with evaluating(model):
            if tried is None:
                found = model(torch.zeros(image))
            else:
                with evaluating(tried):
                    found = tried(torch.empty(image, device="meta"))
    except Exception as error:  # the user's forward may fail in any way
        raise ModelError(
            f"fails on {_KINDS[len(image)]} = {image}: {type(error).__name__}: {error}",
            where=place_of(error, name, __file__),
            hint="the model must take the data set's inputs",
        ) from error
    shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
    if output is None:
        if not isinstance(shape, tuple) or shape[:1] != (1,):
            raise ModelError(f"gives {shape} for one image; expected one tensor", where=name)
    elif not isinstance(shape, tuple) or shape[:1] != (1,) or not output.fits(shape[1:]):
        raise ModelError(
            f"gives {shape} for one image; expected {output}", where=name, hint=output.hint
        )
    vars(model)["sample_shape"] = image[1:]
