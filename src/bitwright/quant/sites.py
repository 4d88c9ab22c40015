# SPDX-License-Identifier: Apache-2.0
"""What each node of a traced model is to the converter, or why it cannot be converted.

One table a node kind (module type, function, method); a row gives the kind and, where arguments
matter, a check that returns a complaint.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from bitwright.quant.trace import user_line


class Kind(StrEnum):
    """The converter's view of a node."""

    INPUT = "input"
    OUTPUT = "output"
    CONV = "conv"
    LINEAR = "linear"
    BATCH_NORM = "batch_norm"
    ACTIVATION = "activation"
    MAX_POOL = "max_pool"
    FLATTEN = "flatten"
    DROPOUT = "dropout"
    IDENTITY = "identity"
    ADD = "add"
    CAT = "cat"
    AVG_POOL = "avg_pool"
    SHAPE = "shape"


#: Kinds through which a quantized tensor stays quantized, on the same grid.
PASSING = (Kind.MAX_POOL, Kind.FLATTEN, Kind.DROPOUT, Kind.IDENTITY)
#: Kinds that calibrate and train, but have no hardware yet.
TRAIN_ONLY = (Kind.ADD, Kind.CAT, Kind.AVG_POOL)

_ADVICE = {
    "softmax": "leave it to the loss (cross entropy takes scores); the largest score is the class",
    "log_softmax": "leave it to the loss (cross entropy takes scores)",
    "gelu": "use ReLU: a smooth activation has no integer form",
    "silu": "use ReLU: a smooth activation has no integer form",
    "sigmoid": "use ReLU or Hardtanh; after the last layer leave it to the loss",
    "tanh": "use nn.Hardtanh",
    "leakyrelu": "use ReLU, or Hardtanh with a signed activation format",
    "leaky_relu": "use ReLU, or Hardtanh with a signed activation format",
    "prelu": "use ReLU",
    "layernorm": "use BatchNorm, which folds into the thresholds",
    "groupnorm": "use BatchNorm, which folds into the thresholds",
    "convtranspose2d": "use Conv2d",
    "conv1d": "use Conv2d with a height of one",
    "mul": "fold the factor into the next layer, or use BatchNorm",
    "conv2d": "use an nn.Conv2d layer, so that its weight has a quantizer of its own",
    "linear": "use an nn.Linear layer, so that its weight has a quantizer of its own",
    "batch_norm": "use an nn.BatchNorm2d or nn.BatchNorm1d layer",
}


@dataclass(frozen=True)
class Clip:
    """The interval an activation keeps: ReLU (0, inf), ReLU6 (0, 6), Hardtanh (-1, 1), ..."""

    low: float
    high: float
    sign: bool = False


@dataclass(frozen=True)
class Site:
    """One node as the converter sees it.

    Attributes:
        node: the traced node.
        kind: what it is; None if it cannot be converted.
        path: the user's path of the layer (the node's name for a function).
        type: the layer's type name, or the function's.
        clip: for activations, the interval they keep.
        problem, advice: for what cannot be converted, why, and what to do.
    """

    node: fx.Node
    kind: Kind | None
    path: str
    type: str
    clip: Clip | None = None
    problem: str = ""
    advice: str = ""

    @property
    def place(self) -> str:
        """Layer path and the user's line, for messages."""
        line = user_line(self.node)
        return f"{self.path} ({self.type})" + (f" at {line}" if line else "")


Complaint = tuple[str, str]
Check = Callable[[Any], Complaint | None]


def _conv(module: nn.Conv2d) -> Complaint | None:
    if module.padding_mode != "zeros":
        return f"padding_mode={module.padding_mode!r}", "use zero padding"
    if isinstance(module.padding, str) and module.padding == "same":
        pairs = zip(module.kernel_size, module.dilation, strict=True)
        if any(d * (k - 1) % 2 for k, d in pairs):
            return "padding='same' with an even kernel is uneven", "use an odd kernel"
    return None


def _max_pool(module: nn.MaxPool2d) -> Complaint | None:
    dilation = module.dilation
    if dilation not in (1, (1, 1)):
        return f"dilation={dilation}", "use dilation=1"
    if module.ceil_mode:
        return "ceil_mode=True", "use ceil_mode=False and pad the input instead"
    return ("return_indices=True", "use return_indices=False") if module.return_indices else None


def _batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d) -> Complaint | None:
    if not module.track_running_stats or module.running_mean is None:
        return "no running statistics", "use track_running_stats=True"
    return None


def _flatten(module: nn.Flatten) -> Complaint | None:
    if module.start_dim != 1 or module.end_dim != -1:
        return f"start_dim={module.start_dim}, end_dim={module.end_dim}", "use nn.Flatten()"
    return None


_MODULES: dict[type[nn.Module], tuple[Kind, Check | None]] = {
    nn.Conv2d: (Kind.CONV, _conv),
    nn.Linear: (Kind.LINEAR, None),
    nn.BatchNorm1d: (Kind.BATCH_NORM, _batch_norm),
    nn.BatchNorm2d: (Kind.BATCH_NORM, _batch_norm),
    nn.ReLU: (Kind.ACTIVATION, None),
    nn.ReLU6: (Kind.ACTIVATION, None),
    nn.Hardtanh: (Kind.ACTIVATION, None),
    nn.MaxPool2d: (Kind.MAX_POOL, _max_pool),
    nn.AvgPool2d: (Kind.AVG_POOL, None),
    nn.AdaptiveAvgPool2d: (Kind.AVG_POOL, None),
    nn.Flatten: (Kind.FLATTEN, _flatten),
    nn.Dropout: (Kind.DROPOUT, None),
    nn.Dropout2d: (Kind.DROPOUT, None),
    nn.Identity: (Kind.IDENTITY, None),
}

_RELU = Clip(0.0, math.inf)
_FUNCTIONS: dict[Any, Kind] = {
    torch.relu: Kind.ACTIVATION,
    torch.relu_: Kind.ACTIVATION,
    F.relu: Kind.ACTIVATION,
    F.relu6: Kind.ACTIVATION,
    F.hardtanh: Kind.ACTIVATION,
    torch.sign: Kind.ACTIVATION,
    F.max_pool2d: Kind.MAX_POOL,
    torch.max_pool2d: Kind.MAX_POOL,
    torch.flatten: Kind.FLATTEN,
    torch.reshape: Kind.FLATTEN,
    F.dropout: Kind.DROPOUT,
    operator.add: Kind.ADD,
    operator.iadd: Kind.ADD,
    torch.add: Kind.ADD,
    torch.cat: Kind.CAT,
    torch.concat: Kind.CAT,
    F.avg_pool2d: Kind.AVG_POOL,
    F.adaptive_avg_pool2d: Kind.AVG_POOL,
    torch.mean: Kind.AVG_POOL,
    getattr: Kind.SHAPE,
    operator.getitem: Kind.SHAPE,
}
_METHODS: dict[str, Kind] = {
    "relu": Kind.ACTIVATION,
    "relu_": Kind.ACTIVATION,
    "sign": Kind.ACTIVATION,
    "flatten": Kind.FLATTEN,
    "view": Kind.FLATTEN,
    "reshape": Kind.FLATTEN,
    "size": Kind.SHAPE,
    "contiguous": Kind.IDENTITY,
    "mean": Kind.AVG_POOL,
    "add": Kind.ADD,
    "add_": Kind.ADD,
}


def classify(node: fx.Node, modules: dict[str, nn.Module]) -> Site:
    """The site of one node; ``modules`` maps the model's paths to its modules."""
    if node.op == "placeholder":
        return Site(node, Kind.INPUT, str(node.target), "input")
    if node.op == "output":
        return _output(node)
    if node.op == "call_module":
        return _module(node, str(node.target), modules[str(node.target)])
    if node.op == "call_function":
        name = getattr(node.target, "__name__", str(node.target))
        return _call(node, name, _FUNCTIONS.get(node.target))
    if node.op == "call_method":
        return _call(node, str(node.target), _METHODS.get(str(node.target)))
    return _refuse(node, node.name, "parameter", "a parameter used outside a layer", "use a layer")


def _refuse(node: fx.Node, path: str, kind: str, problem: str, advice: str) -> Site:
    return Site(node, None, path, kind, problem=problem, advice=advice)


def _output(node: fx.Node) -> Site:
    if not isinstance(node.args[0], fx.Node):
        return _refuse(
            node, "output", "output", "forward returns more than one tensor", "return the scores"
        )
    return Site(node, Kind.OUTPUT, "output", "output")


def _module(node: fx.Node, path: str, module: nn.Module) -> Site:
    name = type(module).__name__
    row = _MODULES.get(type(module))
    if row is None:
        advice = _ADVICE.get(name.lower(), f"supported layers: {_supported()}")
        return _refuse(node, path, name, f"{name} has no few-bit form here", advice)
    kind, check = row
    complaint = check(module) if check is not None else None
    if complaint is not None:
        return _refuse(node, path, name, complaint[0], complaint[1])
    return Site(node, kind, path, name, clip=_module_clip(module))


def _supported() -> str:
    return ", ".join(sorted(kind.__name__ for kind in _MODULES))


def _module_clip(module: nn.Module) -> Clip | None:
    if isinstance(module, nn.Hardtanh):  # ReLU6 is one too
        return Clip(float(module.min_val), float(module.max_val))
    return _RELU if isinstance(module, nn.ReLU) else None


def _call(node: fx.Node, name: str, kind: Kind | None) -> Site:
    if kind is None:
        advice = _ADVICE.get(name, "remove it, or replace it by a supported layer")
        return _refuse(node, node.name, name, f"{name} has no few-bit form here", advice)
    complaint = _CALL_CHECKS[kind](node) if kind in _CALL_CHECKS else None
    if complaint is not None:
        return _refuse(node, node.name, name, complaint[0], complaint[1])
    clip = _call_clip(node, name) if kind is Kind.ACTIVATION else None
    return Site(node, kind, node.name, name, clip=clip)


def _call_clip(node: fx.Node, name: str) -> Clip:
    if name == "sign":
        return Clip(-1.0, 1.0, sign=True)
    if name == "relu6":
        return Clip(0.0, 6.0)
    if name == "hardtanh":
        low = argument(node, 1, "min_val", -1.0)
        high = argument(node, 2, "max_val", 1.0)
        return Clip(float(low), float(high))
    return _RELU


def argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    """An argument of a call, given by position or by name."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def _flatten_call(node: fx.Node) -> Complaint | None:
    """``flatten(1)``, ``view(n, -1)``, ``reshape(x.size(0), 256)``, ``view(-1, 256)``: all keep the
    batch and join the rest (a wrong 256 is caught when the next layer sees the shape).
    """
    name = getattr(node.target, "__name__", str(node.target))
    if name == "flatten":
        if argument(node, 1, "start_dim", 0) == 1 and argument(node, 2, "end_dim", -1) == -1:
            return None
        return "it flattens the batch axis too", "use flatten(1)"
    shape = node.args[1:]
    if len(shape) == 1 and isinstance(shape[0], list | tuple):
        shape = tuple(shape[0])
    batch_kept = len(shape) == 2 and (isinstance(shape[0], fx.Node) or shape[0] == -1)
    if batch_kept and (isinstance(shape[1], int | fx.Node)):
        return None
    return f"{name} to {shape} is no flattening", "only (N, C, H, W) -> (N, C*H*W): use flatten(1)"


def _pool_call(node: fx.Node) -> Complaint | None:
    if argument(node, 4, "dilation", 1) not in (1, (1, 1)):
        return "dilation is not 1", "use dilation=1"
    if argument(node, 5, "ceil_mode", False):
        return "ceil_mode=True", "use ceil_mode=False"
    if node.kwargs.get("return_indices", False):
        return "return_indices=True", "use return_indices=False"
    return None


def _cat_call(node: fx.Node) -> Complaint | None:
    if argument(node, 1, "dim", 0) not in (1, -3):
        return "it does not join channels", "use dim=1"
    return None


def _mean_call(node: fx.Node) -> Complaint | None:
    name = getattr(node.target, "__name__", str(node.target))
    if name != "mean":
        return None
    axes = argument(node, 1, "dim", None)
    if isinstance(axes, list | tuple) and sorted(int(a) % 4 for a in axes) == [2, 3]:
        return None
    return "it does not average over height and width", "use mean((2, 3))"


def _add_call(node: fx.Node) -> Complaint | None:
    operands = [a for a in node.args[:2] if isinstance(a, fx.Node)]
    if len(operands) != 2 or argument(node, 2, "alpha", 1) != 1:
        return "it adds something that is no tensor of the network", "fold it into a bias"
    return None


_CALL_CHECKS: dict[Kind, Callable[[fx.Node], Complaint | None]] = {
    Kind.FLATTEN: _flatten_call,
    Kind.MAX_POOL: _pool_call,
    Kind.CAT: _cat_call,
    Kind.AVG_POOL: _mean_call,
    Kind.ADD: _add_call,
}
