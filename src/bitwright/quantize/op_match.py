# SPDX-License-Identifier: Apache-2.0
"""What each node of a traced model is to the converter, or why it cannot be converted.

One table a node kind (module type, function, method); a row gives the kind and, where arguments
matter, a check (`op_checks`) that returns a complaint.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from bitwright.quantize import op_checks as checks
from bitwright.quantize.elementwise import MODULES as ELEMENTWISE
from bitwright.quantize.elementwise import Elementwise, module_for, of_module
from bitwright.quantize.joins import GlobalAverage, Rearrange, ScaleShift, rearrange
from bitwright.quantize.op_checks import Complaint, argument, pair
from bitwright.quantize.trace import user_line


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
    UPSAMPLE = "upsample"
    REARRANGE = "rearrange"
    PAD = "pad"
    ADD = "add"
    CAT = "cat"
    OWN = "own"
    AVG_POOL = "avg_pool"
    SCALE = "scale"
    CONSTANT = "constant"
    COPY = "copy"
    SIZE = "size"


#: Kinds through which a quantized tensor stays quantized, on the same grid.
PASSING = (
    Kind.MAX_POOL,
    Kind.FLATTEN,
    Kind.DROPOUT,
    Kind.IDENTITY,
    Kind.UPSAMPLE,
    Kind.REARRANGE,
    Kind.PAD,
)
#: Kinds that multiply and add a constant, one for all or one a channel.
AFFINE = (Kind.BATCH_NORM, Kind.SCALE)
#: Kinds with a weight.
LAYERS = (Kind.CONV, Kind.LINEAR)
#: Kinds whose operands are quantized, each by its activation or by an inserted quantizer.
JOINS = (Kind.ADD, Kind.CAT, Kind.AVG_POOL, Kind.OWN)

_ADVICE = {
    "softmax": "leave it to the loss (cross entropy takes scores); the largest score is the class",
    "log_softmax": "leave it to the loss (cross entropy takes scores)",
    "layernorm": "use BatchNorm, which folds into the thresholds",
    "groupnorm": "use BatchNorm, which folds into the thresholds",
    "instancenorm2d": "use BatchNorm, which folds into the thresholds",
    "convtranspose2d": "use nn.Upsample(scale_factor=2) and a Conv2d",
    "conv1d": "use Conv2d with a height of one",
    "mul": "a product of two tensors has no few-bit form here; multiply by constants only",
    "truediv": "divide by constants only",
    "conv2d": "use an nn.Conv2d layer, so that its weight has a quantizer of its own",
    "linear": "use an nn.Linear layer, so that its weight has a quantizer of its own",
    "batch_norm": "use an nn.BatchNorm2d or nn.BatchNorm1d layer",
    "prelu": "use an nn.PReLU layer",
    "pixelshuffle": "use nn.Upsample(scale_factor=2) and a Conv2d",
    "pixel_shuffle": "use nn.Upsample(scale_factor=2) and a Conv2d",
    "chunk": "use two convolutions in place of one that is split",
    "split": "use two convolutions in place of one that is split",
    "stack": "use torch.cat(parts, 1)",
    "matmul": "attention has no few-bit form here; use convolutions",
    "lppool2d": "use nn.AvgPool2d or nn.MaxPool2d",
    "lstm": "recurrent layers have no few-bit form here",
}


@dataclass(frozen=True)
class Clip:
    """The interval an activation keeps: ReLU (0, inf), ReLU6 (0, 6), Hardtanh (-1, 1), ..."""

    low: float
    high: float
    sign: bool = False


@dataclass(frozen=True)
class OpMatch:
    """One node as the converter sees it.

    Attributes:
        node: the traced node.
        kind: what it is; None if it cannot be converted.
        path: the user's path of the layer (the node's name for a function).
        type: the layer's type name, or the function's.
        operands: the tensors it takes.
        clip: for activations that clip, the interval they keep.
        function: for other activations, what kind of function.
        replacement: the layer that takes the place of a call.
        sign: of an addition's second operand.
        problem, advice: for what cannot be converted, why, and what to do.
    """

    node: fx.Node
    kind: Kind | None
    path: str
    type: str
    operands: tuple[fx.Node, ...] = ()
    clip: Clip | None = None
    function: Elementwise | None = None
    replacement: nn.Module | None = field(default=None, compare=False)
    sign: int = 1
    problem: str = ""
    advice: str = ""

    @property
    def place(self) -> str:
        """Layer path and the user's line, for messages."""
        line = user_line(self.node)
        return f"{self.path} ({self.type})" + (f" at {line}" if line else "")


Check = Callable[[Any], Complaint | None]

#: `quantize.register_layer` adds to it.
MODULES: dict[type[nn.Module], tuple[Kind, Check | None]] = {
    nn.Conv2d: (Kind.CONV, checks.conv),
    nn.Linear: (Kind.LINEAR, None),
    nn.BatchNorm1d: (Kind.BATCH_NORM, checks.batch_norm),
    nn.BatchNorm2d: (Kind.BATCH_NORM, checks.batch_norm),
    nn.ReLU: (Kind.ACTIVATION, None),
    nn.ReLU6: (Kind.ACTIVATION, None),
    nn.Hardtanh: (Kind.ACTIVATION, None),
    **{kind: (Kind.ACTIVATION, None) for kind in ELEMENTWISE},
    nn.MaxPool2d: (Kind.MAX_POOL, checks.max_pool),
    nn.AvgPool2d: (Kind.AVG_POOL, checks.avg_pool),
    nn.AdaptiveAvgPool2d: (Kind.AVG_POOL, None),
    nn.Flatten: (Kind.FLATTEN, checks.flatten),
    nn.Dropout: (Kind.DROPOUT, None),
    nn.Dropout2d: (Kind.DROPOUT, None),
    nn.Identity: (Kind.IDENTITY, None),
    nn.Upsample: (Kind.UPSAMPLE, checks.upsample),
    nn.UpsamplingNearest2d: (Kind.UPSAMPLE, checks.upsample),
    nn.PixelUnshuffle: (Kind.REARRANGE, None),
    nn.ChannelShuffle: (Kind.REARRANGE, None),
    nn.ZeroPad2d: (Kind.PAD, checks.pad),
    nn.ConstantPad2d: (Kind.PAD, checks.pad),
}

_RELU = Clip(0.0, math.inf)


def copy_tensor(x: Any) -> Any:
    """Marks a place for a second quantizer of one tensor; conversion removes it."""
    return x


_FUNCTIONS: dict[Any, Kind] = {
    torch.relu: Kind.ACTIVATION,
    torch.relu_: Kind.ACTIVATION,
    F.relu: Kind.ACTIVATION,
    F.relu6: Kind.ACTIVATION,
    F.hardtanh: Kind.ACTIVATION,
    torch.sign: Kind.ACTIVATION,
    torch.clamp: Kind.ACTIVATION,
    F.max_pool2d: Kind.MAX_POOL,
    torch.max_pool2d: Kind.MAX_POOL,
    torch.flatten: Kind.FLATTEN,
    torch.reshape: Kind.FLATTEN,
    F.dropout: Kind.DROPOUT,
    F.dropout2d: Kind.DROPOUT,
    operator.add: Kind.ADD,
    operator.iadd: Kind.ADD,
    torch.add: Kind.ADD,
    operator.sub: Kind.ADD,
    operator.isub: Kind.ADD,
    torch.sub: Kind.ADD,
    torch.cat: Kind.CAT,
    torch.concat: Kind.CAT,
    torch.concatenate: Kind.CAT,
    F.avg_pool2d: Kind.AVG_POOL,
    F.adaptive_avg_pool2d: Kind.AVG_POOL,
    torch.mean: Kind.AVG_POOL,
    F.interpolate: Kind.UPSAMPLE,
    F.upsample: Kind.UPSAMPLE,
    F.pixel_unshuffle: Kind.REARRANGE,
    torch.pixel_unshuffle: Kind.REARRANGE,
    torch.channel_shuffle: Kind.REARRANGE,
    rearrange: Kind.REARRANGE,
    F.pad: Kind.PAD,
    copy_tensor: Kind.COPY,
}
#: Functions and methods of a tensor and a constant.
_SCALES: dict[Any, str] = {
    operator.mul: "mul",
    operator.imul: "mul",
    torch.mul: "mul",
    "mul": "mul",
    "mul_": "mul",
    operator.truediv: "div",
    operator.itruediv: "div",
    torch.div: "div",
    "div": "div",
    "div_": "div",
    operator.neg: "neg",
    torch.neg: "neg",
    "neg": "neg",
    operator.add: "add",
    operator.iadd: "add",
    torch.add: "add",
    "add": "add",
    "add_": "add",
    operator.sub: "sub",
    operator.isub: "sub",
    torch.sub: "sub",
    "sub": "sub",
    "sub_": "sub",
}
_METHODS: dict[str, Kind] = {
    "relu": Kind.ACTIVATION,
    "relu_": Kind.ACTIVATION,
    "sign": Kind.ACTIVATION,
    "clamp": Kind.ACTIVATION,
    "flatten": Kind.FLATTEN,
    "view": Kind.FLATTEN,
    "reshape": Kind.FLATTEN,
    "contiguous": Kind.IDENTITY,
    "mean": Kind.AVG_POOL,
    "add": Kind.ADD,
    "add_": Kind.ADD,
    "sub": Kind.ADD,
    "sub_": Kind.ADD,
}


def classify(node: fx.Node, modules: dict[str, nn.Module]) -> OpMatch:
    """The match of one node; ``modules`` maps the model's paths to its modules."""
    if node.op == "placeholder":
        return OpMatch(node, Kind.INPUT, str(node.target), "input")
    if node.op == "output":
        return _output(node)
    if node.op == "call_module":
        return _module(node, str(node.target), modules[str(node.target)])
    if node.op == "call_function":
        name = getattr(node.target, "__name__", str(node.target))
        return _call(node, name, _FUNCTIONS.get(node.target))
    if node.op == "call_method":
        return _call(node, str(node.target), _METHODS.get(str(node.target)))
    return OpMatch(node, Kind.CONSTANT, str(node.target), "constant")


def refuse(node: fx.Node, path: str, kind: str, problem: str, advice: str) -> OpMatch:
    """The match of a node that cannot be converted."""
    return OpMatch(node, None, path, kind, problem=problem, advice=advice)


def _output(node: fx.Node) -> OpMatch:
    if not isinstance(node.args[0], fx.Node):
        return refuse(
            node, "output", "output", "forward returns more than one tensor", "return the scores"
        )
    return OpMatch(node, Kind.OUTPUT, "output", "output", (node.args[0],))


def _operands(node: fx.Node) -> tuple[fx.Node, ...]:
    return tuple(node.all_input_nodes[:1])


def _module(node: fx.Node, path: str, module: nn.Module) -> OpMatch:
    name = type(module).__name__
    row = MODULES.get(type(module))
    if row is None:
        advice = _ADVICE.get(name.lower(), f"supported layers: {_supported()}")
        return refuse(node, path, name, f"{name} has no few-bit form here", advice)
    kind, check = row
    complaint = check(module) if check is not None else None
    if complaint is not None:
        return refuse(node, path, name, complaint[0], complaint[1])
    if kind is Kind.OWN:
        if node.kwargs:
            return refuse(node, path, name, "it is called with names", "call it with tensors only")
        return OpMatch(node, kind, path, name, tuple(node.all_input_nodes))
    clip, function = _module_clip(module), of_module(module)
    return OpMatch(node, kind, path, name, _operands(node), clip=clip, function=function)


def _supported() -> str:
    return ", ".join(sorted(kind.__name__ for kind in MODULES))


def _module_clip(module: nn.Module) -> Clip | None:
    if isinstance(module, nn.Hardtanh):  # ReLU6 is one too
        return Clip(float(module.min_val), float(module.max_val))
    return _RELU if isinstance(module, nn.ReLU) else None


def _scale(node: fx.Node, name: str) -> OpMatch | None:
    """The match of a tensor scaled or shifted by a constant; None if it is something else."""
    operation = _SCALES.get(node.target)
    extra = {k for k in node.kwargs if k != "other"}
    if operation is None or extra:
        return None
    given = [*node.args, *node.kwargs.values()]
    tensors = [a for a in given if isinstance(a, fx.Node) and a.op != "get_attr"]
    if len(tensors) != 1 or len(given) != (1 if operation == "neg" else 2):
        return None
    swapped = given[0] is not tensors[0]
    if swapped and operation == "div":
        return refuse(node, node.name, name, "it divides by a tensor", "divide by constants only")
    constants = [a for a in given if a is not tensors[0]]
    number = constants[0] if constants and not isinstance(constants[0], fx.Node) else None
    if number is not None and not isinstance(number, int | float):
        return None
    replacement = ScaleShift(operation, number, swapped)
    return OpMatch(node, Kind.SCALE, node.name, name, tuple(tensors), replacement=replacement)


def _call(node: fx.Node, name: str, kind: Kind | None) -> OpMatch:
    scaled = _scale(node, name)
    if scaled is not None:
        return scaled
    same = module_for(node.target, node.args[1:], dict(node.kwargs))
    if same is not None:
        function = of_module(same)
        return OpMatch(
            node,
            Kind.ACTIVATION,
            node.name,
            name,
            _operands(node),
            function=function,
            replacement=same,
        )
    if kind is None:
        advice = _ADVICE.get(name, "remove it, or replace it by a supported layer")
        return refuse(node, node.name, name, f"{name} has no few-bit form here", advice)
    complaint = checks.CALLS[kind.value](node) if kind.value in checks.CALLS else None
    if complaint is not None:
        return refuse(node, node.name, name, complaint[0], complaint[1])
    operands = tuple(node.args[0]) if kind is Kind.CAT else _operands(node)
    if kind is Kind.ADD:
        operands = (node.args[0], argument(node, 1, "other", None))
    return OpMatch(
        node,
        kind,
        node.name,
        name,
        operands,
        clip=_call_clip(node, name) if kind is Kind.ACTIVATION else None,
        replacement=_REPLACEMENTS[kind](node, name) if kind in _REPLACEMENTS else None,
        sign=-1 if name in ("sub", "isub", "sub_") else 1,
    )


def _call_clip(node: fx.Node, name: str) -> Clip:
    if name == "sign":
        return Clip(-1.0, 1.0, sign=True)
    if name == "relu6":
        return Clip(0.0, 6.0)
    if name == "hardtanh":
        low = argument(node, 1, "min_val", -1.0)
        high = argument(node, 2, "max_val", 1.0)
        return Clip(float(low), float(high))
    if name == "clamp":
        ends = argument(node, 1, "min", None), argument(node, 2, "max", None)
        low, high = (
            e if e is not None else s * math.inf for e, s in zip(ends, (-1, 1), strict=True)
        )
        return Clip(float(low), float(high))
    return _RELU


def _max_pool_layer(node: fx.Node, name: str) -> nn.Module:
    kernel = argument(node, 1, "kernel_size", None)
    stride = argument(node, 2, "stride", None)
    return nn.MaxPool2d(kernel, stride or kernel, argument(node, 3, "padding", 0))


def _avg_pool_layer(node: fx.Node, name: str) -> nn.Module:
    if name == "mean":
        return GlobalAverage(bool(argument(node, 2, "keepdim", False)))
    if name == "adaptive_avg_pool2d":
        return nn.AdaptiveAvgPool2d(argument(node, 1, "output_size", 1))
    kernel = argument(node, 1, "kernel_size", None)
    stride = argument(node, 2, "stride", None)
    return nn.AvgPool2d(pair(kernel), pair(stride or kernel), argument(node, 3, "padding", 0))


def _upsample_layer(node: fx.Node, name: str) -> nn.Module:
    factor = argument(node, 2, "scale_factor", None)
    return nn.Upsample(scale_factor=tuple(float(f) for f in pair(factor)))


def _rearrange_layer(node: fx.Node, name: str) -> nn.Module:
    if name == "rearrange":
        return Rearrange(node.args[1], node.args[2])
    if name == "pixel_unshuffle":
        return nn.PixelUnshuffle(argument(node, 1, "downscale_factor", 1))
    return nn.ChannelShuffle(argument(node, 1, "groups", 1))


def _pad_layer(node: fx.Node, name: str) -> nn.Module:
    return nn.ZeroPad2d(tuple(argument(node, 1, "pad", ())))


_REPLACEMENTS: dict[Kind, Callable[[fx.Node, str], nn.Module]] = {
    Kind.FLATTEN: lambda node, name: nn.Flatten(),
    Kind.MAX_POOL: _max_pool_layer,
    Kind.AVG_POOL: _avg_pool_layer,
    Kind.UPSAMPLE: _upsample_layer,
    Kind.REARRANGE: _rearrange_layer,
    Kind.PAD: _pad_layer,
}
