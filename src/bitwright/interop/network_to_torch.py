# SPDX-License-Identifier: Apache-2.0
"""A `Network` -> plain torch layers in a ``torch.fx`` graph."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping

import numpy as np
import torch
from torch import fx, nn

from bitwright.base.errors import ModelError
from bitwright.interop.network import (
    Activation,
    Add,
    Clip,
    Concat,
    Conv,
    Dense,
    Dropout,
    Flatten,
    FloatArray,
    GlobalPool,
    Input,
    Layer,
    Network,
    Norm,
    Pad,
    Pool,
    Scale,
    Size,
)

_RESERVED = frozenset(dir(fx.GraphModule)) | frozenset(dir(nn.Module())) | frozenset(
    ("graph", "code", "weight", "bias", "self", "torch", "data")
)  # fmt: skip


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
            case Input():
                value[layer.name] = graph.placeholder("x")
            case Concat():
                value[layer.name] = graph.call_function(torch.cat, (inputs, 1))
            case Add():
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
    """Where each layer's module stands; paths are identifiers joined by dots."""
    taken: set[str] = set()
    paths = {}
    for layer in network.layers:
        parts = [path_component(part) for part in layer.name.split(".")]
        path, number = ".".join(parts), 1
        while path in taken:
            number += 1
            path = f"{'.'.join(parts)}_{number}"
        taken.add(path)
        paths[layer.name] = path
    return paths


def path_component(text: str) -> str:
    """One part of a layer's name as one part of a module's path."""
    clean = re.sub(r"[^A-Za-z0-9_]", "_", text) or "_"
    return f"{clean}_" if clean in _RESERVED or keyword.iskeyword(clean) else clean


def _tree(modules: Mapping[str, nn.Module]) -> nn.Module:
    """The modules at their paths; a module may have another one inside its path."""
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


def _module(layer: Layer, given: Size) -> nn.Module:  # noqa: PLR0911 - one a kind of layer
    arrays = layer.arrays
    match layer.op:
        case Conv(stride, padding, dilation, groups):
            outputs, inputs, *kernel = arrays["weight"].shape
            conv = nn.Conv2d(
                inputs * groups, outputs, tuple(kernel), stride, padding, dilation, groups,
                bias="bias" in arrays,
            )  # fmt: skip
            return _filled(conv, {"weight": arrays["weight"], "bias": arrays.get("bias")})
        case Dense():
            outputs, inputs = arrays["weight"].shape
            dense = nn.Linear(inputs, outputs, bias="bias" in arrays)
            return _filled(dense, {"weight": arrays["weight"], "bias": arrays.get("bias")})
        case Norm():
            return _norm(layer, given)
        case Scale():
            return _scale(arrays, given)
        case Activation():
            return _activation(layer.op)
        case Clip(low, high):
            return nn.Hardtanh(low, high)
        case Pool(mode, kernel, stride, padding, round_up, count):
            if mode == "max":
                return nn.MaxPool2d(kernel, stride, padding, ceil_mode=round_up)
            return nn.AvgPool2d(kernel, stride, padding, round_up, count)
        case GlobalPool(mode):
            return nn.AdaptiveAvgPool2d(1) if mode == "mean" else nn.AdaptiveMaxPool2d(1)
        case Pad((top, left, bottom, right)):
            return nn.ZeroPad2d((left, right, top, bottom))
        case Flatten():
            return nn.Flatten()
        case Dropout(share):
            return nn.Dropout(share)
    raise ModelError(f"no torch layer for {layer.op}", where=f"layer {layer.name}")


def _norm(layer: Layer, given: Size) -> nn.Module:
    assert isinstance(layer.op, Norm)
    kind = nn.BatchNorm2d if len(given) == 3 else nn.BatchNorm1d
    affine = "gamma" in layer.arrays or "beta" in layer.arrays
    norm = kind(given[0], eps=layer.op.eps, affine=affine)
    names = {"running_mean": "mean", "running_var": "variance", "weight": "gamma", "bias": "beta"}
    return _filled(norm, {own: layer.arrays.get(name) for own, name in names.items()})


def _scale(arrays: Mapping[str, FloatArray], given: Size) -> nn.Module:
    """A depthwise 1 x 1 convolution; for a vector a batch norm that does nothing else."""
    if len(given) == 1:
        norm = nn.BatchNorm1d(given[0], eps=0.0)
        return _filled(norm, {"weight": arrays["gamma"], "bias": arrays.get("beta")})
    conv = nn.Conv2d(given[0], given[0], 1, groups=given[0], bias="beta" in arrays)
    return _filled(
        conv, {"weight": arrays["gamma"][:, None, None, None], "bias": arrays.get("beta")}
    )


def _activation(op: Activation) -> nn.Module:
    match op.function:
        case "relu":
            return nn.LeakyReLU(op.slope) if op.slope else nn.ReLU()
        case "relu6":
            return nn.ReLU6()
        case "sigmoid":
            return nn.Sigmoid()
        case "tanh":
            return nn.Tanh()
        case "softmax":
            return nn.Softmax(1)
    raise ModelError(f"no activation {op.function!r}")


def _filled(module: nn.Module, arrays: Mapping[str, FloatArray | None]) -> nn.Module:
    """The module with these numbers in their own precision."""
    doubles = [a for a in arrays.values() if a is not None and a.dtype == np.float64]
    if doubles:
        module.double()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, values in arrays.items():
            if values is not None:
                tensors[name].copy_(torch.from_numpy(np.ascontiguousarray(values)))
    return module
