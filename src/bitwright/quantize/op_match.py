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

from bitwright.quantize import elementwise
from bitwright.quantize import op_checks as checks
from bitwright.quantize.elementwise import Elementwise, of_module
from bitwright.quantize.joins import (
    GlobalAverage,
    LowerSignal,
    RaiseSignal,
    Rearrange,
    ScaleShift,
    rearrange,
)
from bitwright.quantize.op_checks import Complaint, argument
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
    ROW = "row"


#: Kinds through which a quantized tensor stays quantized, on the same grid.
PASSING = (
    Kind.MAX_POOL,
    Kind.FLATTEN,
    Kind.DROPOUT,
    Kind.IDENTITY,
    Kind.UPSAMPLE,
    Kind.REARRANGE,
    Kind.PAD,
    Kind.ROW,
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
    "conv1d": "use an nn.Conv1d layer, so that its weight has a quantizer of its own",
    "convtranspose1d": "use nn.Upsample(scale_factor=2) and a Conv1d",
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
    **{kind: (Kind.ACTIVATION, None) for kind in elementwise.MODULES},
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
    RaiseSignal: (Kind.ROW, None),
    LowerSignal: (Kind.ROW, None),
}

#: Layers that only conversion makes.
_MADE: dict[type[nn.Module], tuple[Kind, Check | None]] = {
    GlobalAverage: (Kind.AVG_POOL, None),
    Rearrange: (Kind.REARRANGE, None),
}


def copy_tensor(x: Any) -> Any:
    """Marks a place for a second quantizer of one tensor; conversion removes it."""
    return x


_ADDS = (operator.add, operator.iadd, torch.add, "add", "add_")
_SUBTRACTS = (operator.sub, operator.isub, torch.sub, "sub", "sub_")
#: Functions and methods that no layer of their own stands for.
_KINDS: dict[Any, Kind] = {
    **dict.fromkeys((torch.sign, "sign"), Kind.ACTIVATION),
    **dict.fromkeys((F.dropout, F.dropout2d), Kind.DROPOUT),
    "contiguous": Kind.IDENTITY,
    **dict.fromkeys((*_ADDS, *_SUBTRACTS), Kind.ADD),
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), Kind.CAT),
    copy_tensor: Kind.COPY,
}


def _clamp(min: float | None = None, max: float | None = None) -> nn.Module:
    return nn.Hardtanh(-math.inf if min is None else min, math.inf if max is None else max)


def _mean(dim: Any = None, keepdim: bool = False) -> nn.Module:
    return GlobalAverage(bool(keepdim))


def _pad(pad: tuple[int, ...] = (), value: float | None = None) -> nn.Module:
    return nn.ConstantPad2d(pad, value or 0.0)


_POOL = ("kernel_size", "stride", "padding")
_SIZES = ("size", "scale_factor", "mode")
#: Functions and tensor methods -> (layer that does the same, its arguments after the tensor; "" is
#: one that the layer does not take).
_LAYERS: dict[Any, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    **elementwise.CALLS,
    **dict.fromkeys((torch.relu, torch.relu_, F.relu, "relu", "relu_"), (nn.ReLU, ())),
    F.relu6: (nn.ReLU6, ()),
    F.hardtanh: (nn.Hardtanh, ("min_val", "max_val")),
    **dict.fromkeys((torch.clamp, "clamp"), (_clamp, ("min", "max"))),
    F.max_pool2d: (nn.MaxPool2d, (*_POOL, "dilation", "ceil_mode", "return_indices")),
    torch.max_pool2d: (nn.MaxPool2d, (*_POOL, "dilation", "ceil_mode")),
    F.avg_pool2d: (nn.AvgPool2d, (*_POOL, "ceil_mode", "count_include_pad", "divisor_override")),
    F.adaptive_avg_pool2d: (nn.AdaptiveAvgPool2d, ("output_size",)),
    **dict.fromkeys((torch.mean, "mean"), (_mean, ("dim", "keepdim"))),
    **dict.fromkeys((torch.flatten, torch.reshape, "flatten", "view", "reshape"), (nn.Flatten, ())),
    F.interpolate: (nn.Upsample, _SIZES),
    F.upsample: (nn.Upsample, _SIZES),
    F.pixel_unshuffle: (nn.PixelUnshuffle, ("downscale_factor",)),
    torch.pixel_unshuffle: (nn.PixelUnshuffle, ("downscale_factor",)),
    torch.channel_shuffle: (nn.ChannelShuffle, ("groups",)),
    rearrange: (Rearrange, ("block", "order")),
    F.pad: (_pad, ("pad", "", "value")),
}
#: Functions and methods of a tensor and a constant.
_SCALES: dict[Any, str] = {
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, "mul", "mul_"), "mul"),
    **dict.fromkeys((operator.truediv, operator.itruediv, torch.div, "div", "div_"), "div"),
    **dict.fromkeys((operator.neg, torch.neg, "neg"), "neg"),
    **dict.fromkeys(_ADDS, "add"),
    **dict.fromkeys(_SUBTRACTS, "sub"),
}


def is_known(target: Any) -> bool:
    """Whether a function or method is one that can be converted, with the right arguments."""
    return target in _KINDS or target in _LAYERS or target in _SCALES


def classify(node: fx.Node, modules: dict[str, nn.Module]) -> OpMatch:
    """The match of one node; ``modules`` maps the model's paths to its modules."""
    if node.op == "placeholder":
        return OpMatch(node, Kind.INPUT, str(node.target), "input")
    if node.op == "output":
        return _output(node)
    if node.op == "call_module":
        return _module(node, str(node.target), modules[str(node.target)])
    if node.op in ("call_function", "call_method"):
        return _call(node, getattr(node.target, "__name__", str(node.target)))
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
    clip, function = _clip(module), of_module(module)
    return OpMatch(node, kind, path, name, _operands(node), clip=clip, function=function)


def _supported() -> str:
    made = (RaiseSignal, LowerSignal)
    return ", ".join(sorted(kind.__name__ for kind in MODULES if kind not in made))


def _clip(module: nn.Module | None) -> Clip | None:
    if isinstance(module, nn.Hardtanh):  # ReLU6 is one too
        return Clip(float(module.min_val), float(module.max_val))
    return Clip(0.0, math.inf) if isinstance(module, nn.ReLU) else None


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


def _layer(node: fx.Node) -> nn.Module | None:
    """The layer that computes what a call does; None if the table has none."""
    row = _LAYERS.get(node.target)
    if row is None:
        return None
    make, names = row
    given = dict(zip(names, node.args[1:], strict=False)) | node.kwargs
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items() if k in names}
    return make(**{name: value for name, value in plain.items() if name})


def _call(node: fx.Node, name: str) -> OpMatch:
    scaled = _scale(node, name)
    if scaled is not None:
        return scaled
    layer, check = _layer(node), None
    kind = _KINDS.get(node.target)
    if layer is not None:
        kind, check = MODULES.get(type(layer)) or _MADE[type(layer)]
    if kind is None:
        advice = _ADVICE.get(name, "remove it, or replace it by a supported layer")
        return refuse(node, node.name, name, f"{name} has no few-bit form here", advice)
    complaint = checks.CALLS[kind.value](node) if kind.value in checks.CALLS else None
    if complaint is None and check is not None:
        complaint = check(layer)
    if complaint is not None:
        return refuse(node, node.name, name, complaint[0], complaint[1])
    operands = tuple(node.args[0]) if kind is Kind.CAT else _operands(node)
    if kind is Kind.ADD:
        operands = (node.args[0], argument(node, 1, "other", None))
    clip = Clip(-1.0, 1.0, sign=True) if name == "sign" else _clip(layer)
    return OpMatch(
        node,
        kind,
        node.name,
        name,
        operands,
        clip=clip,
        function=None if layer is None else of_module(layer),
        replacement=layer if clip is None else None,  # a quantizer does the clipping
        sign=-1 if node.target in _SUBTRACTS else 1,
    )
