# SPDX-License-Identifier: Apache-2.0
"""A `Network` -> plain torch layers in a ``torch.fx`` graph."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping, Set

import numpy as np
import torch
from torch import fx, nn

from bitwright.base.errors import ModelError
from bitwright.base.names import NameCounter
from bitwright.interop import ops
from bitwright.interop.network import Layer, Network
from bitwright.interop.network_json import BROKEN
from bitwright.interop.ops import Size

_RESERVED = frozenset(dir(fx.GraphModule)) | frozenset(dir(nn.Module())) | frozenset(
    ("graph", "code", "weight", "bias", "self", "torch", "data")
)  # fmt: skip

#: What is no module but a function, or the image itself.
_NO_MODULE = (ops.Input, ops.Concat, ops.Add)
#: Activations without options, by the names of `ops.Activation`.
ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    "relu": nn.ReLU, "relu6": nn.ReLU6, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh,
}  # fmt: skip
#: What torch calls a layer's arrays.
STATE_NAMES = {
    "weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias",
    "mean": "running_mean", "variance": "running_var",
}  # fmt: skip


def module_of(network: Network) -> fx.GraphModule:
    """A model of plain ``torch.nn`` layers that computes the network, in evaluation mode.

    A layer keeps its name as the path of its module, so a network that came from torch has the
    same state dict again; signs that cannot stand in a path become underscores.
    """
    graph, modules = fx.Graph(), {}
    paths = module_paths(network)
    value: dict[str, fx.Node] = {}
    for layer in network.layers:
        inputs = [value[name] for name in layer.inputs]
        match layer.op:
            case ops.Input():
                value[layer.name] = graph.placeholder("x")
            case ops.Concat():
                value[layer.name] = graph.call_function(torch.cat, (inputs, 1))
            case ops.Add():
                total = inputs[0]
                for other in inputs[1:]:
                    total = graph.call_function(torch.add, (total, other))
                value[layer.name] = total
            case _:
                path = paths[layer.name]
                modules[path] = _module(layer, network.shapes[layer.inputs[0]])
                value[layer.name] = graph.call_module(path, (inputs[0],))
    graph.output(value[network.output])
    return fx.GraphModule(_tree(modules), graph, network.name).eval()


def module_paths(network: Network) -> dict[str, str]:
    """Where each layer's module stands; paths are identifiers joined by dots, and none lies inside
    of another layer's module.
    """
    modules = {module_path(x.name) for x in network.layers if not isinstance(x.op, _NO_MODULE)}
    wishes = {layer.name: _beside(module_path(layer.name), modules) for layer in network.layers}
    folders = {front for path in wishes.values() for front in _folders(path)}
    taken: set[str] = set()
    counter = NameCounter()
    paths = {}
    for name, wish in wishes.items():
        paths[name] = counter.free(wish, taken, folders)
        taken.add(paths[name])
    return paths


def _folders(path: str) -> Iterator[str]:
    """``a`` and ``a.b`` of ``a.b.c``."""
    return (path[:end] for end, sign in enumerate(path) if sign == ".")


def _beside(path: str, modules: Set[str]) -> str:
    """The path, with underscores instead of dots behind the module of another layer: that one has
    attributes of its own (``stride``), and is replaced as a whole when it is quantized.
    """
    made, *rest = path.split(".")
    front = made
    for part in rest:
        made += f"_{part}" if front in modules else f".{part}"
        front += f".{part}"
    return made


def module_path(name: str) -> str:
    """A layer's name as the path of a module."""
    return ".".join(_component(part) for part in name.split("."))


def _component(text: str) -> str:
    clean = re.sub(r"[^A-Za-z0-9_]", "_", text) or "_"
    return f"{clean}_" if clean in _RESERVED or keyword.iskeyword(clean) else clean


def _tree(modules: Mapping[str, nn.Module]) -> nn.Module:
    """The modules at their paths."""
    root = nn.Module()
    for path in sorted(modules, key=lambda p: p.count(".")):
        place = root
        *folders, last = path.split(".")
        for folder in folders:
            if folder not in place._modules:
                place.add_module(folder, nn.Module())
            place = place.get_submodule(folder)
        place.add_module(last, modules[path])
    return root


def _module(layer: Layer, given: Size) -> nn.Module:
    try:
        module = _empty(layer, given)
    except (*BROKEN, AssertionError, RuntimeError) as error:  # what only torch knows to be wrong
        raise ModelError(
            f"torch refuses {layer.op}: {error}", where=f"layer {layer.name}"
        ) from error
    if any(values.dtype == np.float64 for values in layer.arrays.values()):
        module.double()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, values in layer.arrays.items():
            target = tensors[STATE_NAMES[name]]
            target.copy_(torch.from_numpy(np.ascontiguousarray(values)).view(target.shape))
    return module


def _empty(layer: Layer, given: Size) -> nn.Module:  # noqa: PLR0911, PLR0912 - one each
    """The module with any numbers; a `Scale` is a depthwise 1 x 1 convolution, that of a vector a
    batch norm that does nothing else."""
    arrays = layer.arrays
    match layer.op:
        case ops.Conv(stride, padding, dilation, groups):
            outputs, inputs, *kernel = arrays["weight"].shape
            return nn.Conv2d(
                inputs * groups, outputs, tuple(kernel), stride, padding, dilation, groups,
                bias="bias" in arrays,
            )  # fmt: skip
        case ops.Dense():
            outputs, inputs = arrays["weight"].shape
            return nn.Linear(inputs, outputs, bias="bias" in arrays)
        case ops.Norm(eps):
            kind = nn.BatchNorm2d if len(given) == 3 else nn.BatchNorm1d
            return kind(given[0], eps=eps, affine="gamma" in arrays or "beta" in arrays)
        case ops.Scale() if len(given) == 1:
            return nn.BatchNorm1d(given[0], eps=0.0)
        case ops.Scale():
            return nn.Conv2d(given[0], given[0], 1, groups=given[0], bias="beta" in arrays)
        case ops.Activation("relu", slope) if slope:
            return nn.LeakyReLU(slope)
        case ops.Activation("softmax"):
            return nn.Softmax(1)
        case ops.Activation(function) if function in ACTIVATIONS:
            return ACTIVATIONS[function]()
        case ops.Clip(low, high):
            return nn.Hardtanh(low, high)
        case ops.Pool("max", kernel, stride, padding, round_up):
            return nn.MaxPool2d(kernel, stride, padding, ceil_mode=round_up)
        case ops.Pool(_, kernel, stride, padding, round_up, count):
            return nn.AvgPool2d(kernel, stride, padding, round_up, count)
        case ops.GlobalPool(mode):
            return nn.AdaptiveAvgPool2d(1) if mode == "mean" else nn.AdaptiveMaxPool2d(1)
        case ops.Pad((top, left, bottom, right)):
            return nn.ZeroPad2d((left, right, top, bottom))
        case ops.Flatten():
            return nn.Flatten()
        case ops.Dropout(share):
            return nn.Dropout(share)
    raise ModelError(f"no torch layer for {layer.op}", where=f"layer {layer.name}")
