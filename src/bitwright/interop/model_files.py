# SPDX-License-Identifier: Apache-2.0
"""Models and weights from files of any kind, by their endings, and back.

==================  ==========================================  ======================
ending              holds                                       read as
==================  ==========================================  ======================
``.prototxt``       Caffe's layers (numbers: ``.caffemodel``)   model
``.caffemodel``     Caffe's numbers                             weights
``.h5 .hdf5``       Keras: the model, or weights alone          model or weights
``.keras``          Keras 3: the model                          model or weights
``.safetensors``    numbers, and which model they belong to     model or weights
``.onnx``           ONNX: a float network                       model
``.pt .pth``        torch: a state dict                         weights
==================  ==========================================  ======================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitwright.base.bounded import bounded_reader
from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.base.folders import own_file
from bitwright.base.memory import room_for
from bitwright.base.trust import data_file
from bitwright.interop import ops
from bitwright.interop.caffe import read as caffe_read
from bitwright.interop.caffe import write as caffe_write
from bitwright.interop.caffe.quantized import is_quantized, quantized
from bitwright.interop.keras import read as keras_read
from bitwright.interop.keras import write as keras_write
from bitwright.interop.network import InputConvention, Network
from bitwright.interop.network_from_torch import network_of
from bitwright.interop.network_json import (
    array_key,
    convention_of,
    image_shape_of,
    network_from_json,
    network_to_json,
)
from bitwright.interop.network_to_torch import STATE_NAMES, module_of
from bitwright.interop.onnx.float_network import load_float_onnx
from bitwright.interop.ops import FloatArray
from bitwright.ir.footprint import MOST_WORK
from bitwright.models.catalog import MODEL_FILES, MODEL_FORMATS, WEIGHT_FILES, ModelSpec
from bitwright.models.factory import as_spec, build_model, check_model
from bitwright.models.memory import Held, check_image
from bitwright.models.output import Output, scores
from bitwright.models.tensors import (
    check_numbers,
    check_state,
    fill_state,
    load_plain,
    load_tensors,
    save_tensors,
)

Shape = tuple[int, int, int]
KERAS = (".h5", ".hdf5", ".keras")


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model with its numbers.

    Attributes:
        model: in evaluation mode.
        input_shape: (H, W, C) of an image.
        network: its layers, where the file has them.
        spec: the model's name and options, where the file says them.
        quant: the formats that the file gives its layers, as a recipe's ``quant`` section; empty if
            it says nothing. Then the model has a `Clip` wherever a quantizer needs a place.
        classes: of a classifier by name, where it is known.
    """

    model: nn.Module
    input_shape: Shape
    convention: InputConvention
    network: Network | None = None
    spec: ModelSpec | None = None
    quant: Mapping[str, Any] = field(default_factory=dict)
    classes: int | None = None


def model_from_spec(
    spec: str | ModelSpec | Mapping[str, Any],
    num_classes: int | None,
    input_shape: Shape,
    *,
    seed: int = 0,
    data: str | None = None,
    output: Output | None = None,
) -> nn.Module:
    """`models.build_model`, for which a model and its weights may also be files.

    Args:
        spec: as there; its name may be a file that `load_model` reads (options: ``output``,
            ``ignore_extra``), its weights one that `load_weights` reads.

    Returns:
        The model in training mode, as any other.

    Raises:
        DataError: a file is missing, damaged, or of another network.
        RecipeError, ModelError: as there, or as `load_model` does.
    """
    wanted = as_spec(spec)
    weights = wanted.weights if isinstance(wanted.weights, Path) else None
    if not wanted.is_file:
        named = wanted if weights is None else wanted.model_copy(update={"weights": None})
        model = build_model(named, num_classes, input_shape, seed=seed, data=data, output=output)
        if weights is not None:
            load_weights(model, weights, input_shape)
        return model
    model = read_spec(wanted, num_classes, input_shape).model
    if output is None and num_classes is not None:
        output = scores(num_classes)
    check_model(model, output, input_shape, wanted.name)
    return model.train()


def formats_from_spec(
    spec: ModelSpec, num_classes: int | None, input_shape: Shape
) -> dict[str, Any]:
    """The formats that a model's file gives its layers, as a recipe's ``quant`` section.

    Empty for a file that says nothing, and for a model that is no file.

    Raises:
        DataError, RecipeError, ModelError: as `model_from_spec`.
    """
    return dict(read_spec(spec, num_classes, input_shape).quant) if spec.is_file else {}


def read_spec(spec: ModelSpec, classes: int | None, input_shape: Shape) -> LoadedModel:
    """`load_model` with the file, the weights and the options of a specification."""
    unknown = sorted(set(spec.options) - {"output", "ignore_extra"})
    if unknown:
        raise RecipeError(
            f"a model from a file has no option {unknown[0]!r}",
            where="model.options",
            hint="its options: output, ignore_extra",
        )
    output = spec.options.get("output")
    return load_model(
        Path(spec.name),
        weights=spec.weights if isinstance(spec.weights, Path) else None,
        input_shape=input_shape,
        output=None if output is None else str(output),
        ignore_extra=bool(spec.options.get("ignore_extra", False)),
        classes=classes,
    )


@bounded_reader
def load_model(
    path: Path,
    *,
    weights: Path | None = None,
    input_shape: Shape | None = None,
    output: str | None = None,
    ignore_extra: bool = False,
    classes: int | None = None,
    trust: Iterable[str] | None = (),
) -> LoadedModel:
    """Read a model from one file (Caffe: two).

    Args:
        weights: of a ``.prototxt``; by default the ``.caffemodel`` beside it.
        input_shape: (H, W, C), where the file leaves it open.
        output: the layer to end at.
        ignore_extra: accept Caffe's numbers for layers that the prototxt does not have.
        classes: of a classifier that a safetensors file only names.
        trust: modules or packages with which a safetensors file may build the model that it names;
            by default only the zoo's. None: all that a recipe might name, for a file of one's own.

    Raises:
        DataError: a file is missing, damaged, cut short, or of another network.
        ModelError: a layer is of a kind that is not supported, the file names code that is not
            trusted, or one image takes too much memory (`base.memory.room_for`).
        RecipeError: an ending that is no model's.
        RunError: the ``.caffemodel`` that nobody has named is a link out of its folder.
    """
    ending, room = path.suffix.lower(), room_for(chosen=input_shape is not None or trust is None)
    if ending == ".prototxt":
        beside = path.with_suffix(".caffemodel").name
        numbers = own_file(path.parent, beside) if weights is None else weights
        network = caffe_read.load_caffe(
            path, numbers, input_shape=input_shape, output=output, ignore_extra=ignore_extra
        )
    elif ending in KERAS:
        network = keras_read.load_keras(path, output=output)
    elif ending == ".onnx":
        network = load_float_onnx(path, input_shape=input_shape, output=output)
    elif ending == ".safetensors":
        return _from_tensors(path, input_shape, classes, trust, room)
    else:
        raise RecipeError(
            f"{path.name} is no model", where=str(path), hint=f"endings: {', '.join(MODEL_FILES)}"
        )
    return _loaded(network, input_shape, room, str(path))


def _loaded(network: Network, input_shape: Shape | None, room: int, where: str) -> LoadedModel:
    shape = shape_of_input(network)
    if input_shape is not None and input_shape != shape:
        raise ModelError(
            f"takes images of (H, W, C) = {shape}, not {input_shape}",
            where=network.name,
            hint="give it images of that size",
        )
    if not is_quantized(network):
        model = module_within(network, room, where)
        return LoadedModel(model, shape, network.convention, network)
    placed, quant = quantized(network)
    model = module_within(placed, room, where)
    return LoadedModel(model, shape, network.convention, network, quant=quant)


def module_within(network: Network, room: int, where: str) -> nn.Module:
    """`module_of` a network of a file, if one image does not take too much memory or work.

    Args:
        room: bytes of activations; see `base.memory.room_for`.
        where: the file.

    Raises:
        ModelError: it does.
    """
    model = module_of(network)
    # All that any layer gives, and a sum on its way: what is held at a time is no more.
    held = 4 * 2 * sum(map(prod, network.shapes.values()))
    if held > room or most_work(network) > MOST_WORK:
        check_image(model, network.shapes[network.input.name], room, where)
    return model


def most_work(network: Network) -> int:
    """Products, and numbers that pools look at, of one image: as many or somewhat more."""
    total = 0
    for layer in network.layers:
        each = 1
        if "weight" in layer.arrays:
            each = prod(layer.arrays["weight"].shape[1:])
        elif isinstance(layer.op, ops.Pool):
            each = prod(layer.op.kernel)
        total += each * prod(network.shapes[layer.name])
    return total


def shape_of_input(network: Network) -> Shape:
    """(H, W, C) of a network's input; a vector counts as (1, 1, C)."""
    op = network.input.op
    assert isinstance(op, ops.Input)
    if len(op.shape) == 1:
        return (1, 1, op.shape[0])
    channels, height, width = op.shape
    return (height, width, channels)


def _from_tensors(
    path: Path,
    input_shape: Shape | None,
    classes: int | None,
    trust: Iterable[str] | None,
    room: int,
) -> LoadedModel:
    tensors, facts = load_tensors(path)
    if "layers" in facts:
        network = network_from_json(facts["layers"], _arrays(tensors), str(path))
        return _loaded(network, input_shape, room, str(path))
    if "model" not in facts:
        raise DataError(
            "holds weights only: it does not say of which model",
            where=str(path),
            hint="name the model that they belong to",
        )
    try:
        spec = ModelSpec.model_validate(facts["model"])
        shape = input_shape or image_shape_of(facts.get("input_shape"))
        convention = convention_of(facts.get("input", {}))
    except ValueError as error:
        raise DataError(f"has broken metadata: {error}", where=str(path)) from error
    if spec.files:
        raise ModelError("names another file", where=str(path))
    # Names and shapes are compared before the model takes any memory.
    held = Held(
        len(tensors),
        lambda made: check_state(made.state_dict(), tensors, str(path)),
        str(path),
        room,
    )
    with data_file(path, trust):
        model = build_model(spec, classes, shape, held=held)
    fill_state(model, tensors, str(path))
    return LoadedModel(model.eval(), shape, convention, spec=spec)


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, FloatArray]:
    """The numbers for numpy, which has no bfloat16."""
    return {
        name: (values.float() if values.dtype == torch.bfloat16 else values).numpy()
        for name, values in tensors.items()
    }


@bounded_reader
def load_weights(model: nn.Module, path: Path, input_shape: Shape) -> None:
    """Load the weights of a file into a model that is built already, all or none.

    Names are matched as the file's kind does it: torch and safetensors by the names of the state
    dict, Caffe by the names of layers, Keras by names or by order.

    Raises:
        DataError: the file is missing, damaged, or of another network; the model is unchanged.
        ModelError: Caffe or Keras, and the model has layers without counterpart there.
        RecipeError: an ending that is none of weights.
    """
    ending, where = path.suffix.lower(), str(path)
    if ending == ".safetensors":
        tensors, facts = load_tensors(path)
        if "layers" in facts:
            tensors = state_of(network_from_json(facts["layers"], _arrays(tensors), where))
        fill_state(model, tensors, where)
    elif ending in (".pt", ".pth"):
        fill_state(model, _torch_state(path), where)
    elif ending in KERAS:
        fill_state(
            model, state_of(keras_read.arrays_for(network_of(model, input_shape), path)), where
        )
    elif ending == ".caffemodel":
        network = network_of(model, input_shape)
        fill_state(model, state_of(caffe_read.arrays_for(network, path)), where)
    else:
        raise RecipeError(
            f"{path.name} holds no weights",
            where=where,
            hint=f"endings: {', '.join((*WEIGHT_FILES, *KERAS, '.safetensors'))}",
        )


def _torch_state(path: Path) -> dict[str, Tensor]:
    try:
        found = load_plain(path)
    except DataError as error:
        hint = "save it with torch.save(model.state_dict(), path)"
        raise DataError(error.message, where=str(path), hint=hint) from error
    for key in ("state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
        raise DataError(
            "holds no state dict: names and tensors",
            where=str(path),
            hint="save it with torch.save(model.state_dict(), path)",
        )
    check_numbers(found, str(path))
    return dict(found)


def state_of(network: Network) -> dict[str, Tensor]:
    """A network's numbers by the names of torch, for the model that its layers are named after."""
    return {
        f"{layer.name}.{STATE_NAMES[name]}": torch.from_numpy(values.copy())
        for layer in network.layers
        for name, values in layer.arrays.items()
    }


def save_model(
    model: nn.Module,
    kind: str,
    path: Path,
    input_shape: Shape,
    *,
    convention: InputConvention | None = None,
    spec: ModelSpec | None = None,
    quantization: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[Path, ...]:
    """Write a model for another framework.

    Args:
        kind: ``caffe`` (two files), ``keras`` or ``safetensors``.
        spec: the model's name and options, kept in a safetensors file; without, its layers are.
        quantization: Ristretto's parameters by layer, for ``caffe``.

    Raises:
        ModelError: something has no counterpart there; nothing is written.
        RecipeError: an unknown kind.
    """
    if kind not in MODEL_FORMATS:
        raise RecipeError(f"no format {kind!r}", where="--format", hint=", ".join(MODEL_FORMATS))
    if kind == "safetensors" and spec is not None:
        facts = {
            "model": spec.model_dump(mode="json"),
            "input_shape": list(input_shape),
            "input": (convention or InputConvention()).to_json(),
        }
        return (save_tensors(model.state_dict(), path, facts),)
    return save_network(
        network_of(model, input_shape, convention=convention), kind, path, quantization
    )


def save_network(
    network: Network,
    kind: str,
    path: Path,
    quantization: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[Path, ...]:
    """`save_model` of a network's layers; what its notes say of formats stays, but in Keras."""
    if kind == "caffe":
        return caffe_write.save_caffe(network, path, quantization=quantization)
    if kind == "keras":
        return (keras_write.save_keras(network, path),)
    tensors = {
        array_key(layer.name, name): torch.from_numpy(values)
        for layer in network.layers
        for name, values in layer.arrays.items()
    }
    return (save_tensors(tensors, path, {"layers": network_to_json(network)}),)
