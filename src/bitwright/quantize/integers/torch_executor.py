# SPDX-License-Identifier: Apache-2.0
"""An integer graph run by torch, on any device, with every edge: for GPUs, and where somebody wants
to see what lies between input and scores.

Levels are carried by floats where every partial sum is below their exact limit, else by int64.
Equal to `Graph.run` on every edge (tested on random graphs).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bitwright.formats import Rounding
from bitwright.formats.pytorch.rounding import round_to_int
from bitwright.ir import Graph, IntArray, Node, TensorType

_FLOAT32, _FLOAT64 = 1 << 24, 1 << 53
_SETTINGS = threading.RLock()


class TorchExecutor:
    """Runs an integer graph on tensors in torch's layout: (N, C, H, W) or (N, C).

    Args:
        graph: of the integer dialect.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._params: dict[Any, Tensor] = {}

    @torch.no_grad()
    def run(self, levels: Tensor) -> dict[str, Tensor]:
        """Every edge's levels; float tensors that hold integers (int64 where they are too large).

        Args:
            levels: of the input, channels on axis 1.
        """
        values = {self.graph.inputs[0]: levels}
        # Where training is in 16 bits, autocast would put products into them, too.
        with torch.autocast(levels.device.type, enabled=False), _exact_products():
            for node in self.graph:
                types = tuple(self.graph.types[edge] for edge in node.inputs)
                operands = tuple(values[edge] for edge in node.inputs)
                made = self.graph.types[node.output]
                values[node.output] = _OPS[node.op](_Op(node, types, made, operands, self._params))
        return values


@dataclass(frozen=True)
class _Op:
    """One node with its operands.

    Attributes:
        node: of the graph.
        types: of the operands; made: of the result.
        xs: the operands' levels.
        kept: parameters on devices, those of all nodes.
    """

    node: Node
    types: tuple[TensorType, ...]
    made: TensorType
    xs: tuple[Tensor, ...]
    kept: dict[Any, Tensor]

    @property
    def x(self) -> Tensor:
        """The first operand."""
        return self.xs[0]

    @property
    def kind(self) -> TensorType:
        """Its type."""
        return self.types[0]

    def param(self, name: str, dtype: torch.dtype = torch.int64) -> Tensor:
        """A parameter on the device of the operands."""
        key = (self.x.device, dtype, self.node.name, name)
        if key not in self.kept:
            array = torch.from_numpy(np.array(self.node.params[name]))
            self.kept[key] = array.to(self.x.device, dtype)
        return self.kept[key]

    def product_type(self) -> torch.dtype:
        """The carrier of every partial sum of a product."""
        weight, bias = self.node.params["weight"], self.node.params.get("bias")
        sums = np.abs(weight.reshape(len(weight), -1)).sum(axis=1, dtype=object)
        sums = sums * bound_of(self.kind)
        if bias is not None:
            sums = sums + np.abs(bias).astype(object)
        return carrier(int(max(sums)))

    def carried(self, levels: Tensor) -> Tensor:
        """The result in the type that carries it."""
        return levels.to(carrier(bound_of(self.made)))


@contextmanager
def _exact_products() -> Iterator[None]:
    """float32 products in full, and no Winograd transforms by NNPACK, which are not exact on
    integers. These settings are the process's: one thread at a time.
    """
    places: list[Any] = [torch.backends.cuda.matmul]
    name, full = "allow_tf32", False
    if hasattr(torch.backends.mkldnn, "matmul"):  # the former names must not be mixed with these
        places += [torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv]
        name, full = "fp32_precision", "ieee"
    with _SETTINGS, torch.backends.nnpack.flags(enabled=False):
        before = [getattr(place, name) for place in places]
        try:
            for place in places:
                setattr(place, name, full)
            yield
        finally:
            for place, value in zip(places, before, strict=True):
                setattr(place, name, value)


def carrier(bound: int) -> torch.dtype:
    """The type that holds every integer up to a magnitude, and computes fastest with it."""
    if bound < _FLOAT32:
        return torch.float32
    return torch.float64 if bound < _FLOAT64 else torch.int64


def bound_of(kind: TensorType) -> int:
    """Largest magnitude of a level."""
    return max(abs(kind.lo), abs(kind.hi))


def _rows(values: Tensor, x: Tensor) -> Tensor:
    """(C,) or (1,) shaped to broadcast over channels on axis 1."""
    return values.view(1, -1, *(1,) * (x.dim() - 2))


def _conv(op: _Op) -> Tensor:
    node, dtype = op.node, op.product_type()
    weight = _plain(op.param("weight", dtype).permute(0, 3, 1, 2))
    bias = op.param("bias", dtype) if "bias" in node.params else None
    top, left, bottom, right = node.ints("padding")
    x = _plain(F.pad(op.x.to(dtype), (left, right, top, bottom)))
    stride, dilation, groups = node.ints("stride"), node.ints("dilation"), node.integer("groups")
    if x.device.type == "cpu" and dtype.is_floating_point:
        return F.conv2d(x, weight, bias, stride, 0, dilation, groups)
    # Elsewhere convolutions may choose Winograd or TF32; a matrix product stays exact.
    columns = F.unfold(x.double(), weight.shape[2:], dilation, 0, stride).to(dtype)
    batch, depth, pixels = columns.shape
    columns = columns.view(batch, groups, depth // groups, pixels)
    table = weight.reshape(groups, len(weight) // groups, depth // groups)
    out_h, out_w = op.made.shape[:2]
    out = _matmul(table, columns).reshape(batch, len(weight), out_h, out_w)
    return out if bias is None else out + _rows(bias, out)


def _plain(x: Tensor) -> Tensor:
    """The same elements with the strides of a fresh tensor.

    With one channel, strides may look like those of channels-last memory; torch 2.13's convolution
    on a CPU then gives wrong results for some strides.
    """
    x = x.contiguous()
    return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride())


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype is torch.int64 and a.device.type != "cpu":  # no integer product there
        return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)
    return torch.matmul(a, b)


def _dense(op: _Op) -> Tensor:
    x, dtype = op.x, op.product_type()
    weight = op.param("weight", dtype)
    if dtype.is_floating_point:
        out = torch.matmul(x.to(dtype), weight.T)
    else:
        out = (x.to(torch.int64).unsqueeze(1) * weight).sum(-1)
    return out + op.param("bias", dtype) if "bias" in op.node.params else out


def _threshold(op: _Op) -> Tensor:
    thresholds, x = op.param("thresholds"), op.x.to(torch.int64)
    if "flip" in op.node.params:
        x = x * _rows(1 - 2 * op.param("flip"), x)
    moved = x.movedim(1, 0)
    # searchsorted from the right counts the thresholds at or below each value.
    flat = moved.reshape(len(moved) if len(thresholds) > 1 else 1, -1).contiguous()
    count = torch.searchsorted(thresholds, flat, right=True).view(moved.shape).movedim(0, 1)
    return op.carried(op.node.integer("base") + op.node.integer("step") * count).contiguous()


def _affine(op: _Op) -> Tensor:
    """``x * multiplier + offset``, in float64 where that holds it."""
    multiplier, offset = op.node.params["multiplier"], op.node.params["offset"]
    peak = bound_of(op.kind) * int(np.abs(multiplier).max()) + int(np.abs(offset).max())
    dtype = torch.float64 if peak < _FLOAT64 else torch.int64
    factor, shift = op.param("multiplier", dtype), op.param("offset", dtype)
    return op.x.to(dtype) * _rows(factor, op.x) + _rows(shift, op.x)


def _requant(op: _Op) -> Tensor:
    node, value = op.node, _affine(op)
    rounding, shift = Rounding(node.string("rounding")), node.integer("shift")
    if value.is_floating_point():  # division by a power of two is exact
        value = round_to_int(value.mul_(2.0**-shift), rounding)
    else:
        value = round_shift(value, shift, rounding)
    return op.carried(value.clamp_(node.integer("lo"), node.integer("hi")))


def _requant_float(op: _Op) -> Tensor:
    node, product = op.node, _affine(op).to(torch.int64)
    shift, smallest = node.integer("shift"), node.integer("smallest")
    drop = (_bit_length(product) - (node.integer("significant") + shift)).clamp_(min=0)
    level = round_shift(product, drop + shift, Rounding(node.string("rounding"))) << drop
    if smallest:
        level.masked_fill_(level.abs() < smallest, 0)
    return op.carried(level.clamp_(node.integer("lo"), node.integer("hi")))


def round_shift(value: Tensor, shift: int | Tensor, rounding: Rounding) -> Tensor:
    """``value / 2^shift`` rounded, on int64: half_even, half_up or floor; a tensor of shifts gives
    each element its own.
    """
    places = torch.as_tensor(shift, dtype=torch.int64, device=value.device)
    if rounding is Rounding.FLOOR or (isinstance(shift, int) and shift == 0):
        return value >> places
    one = torch.ones_like(places)
    # Of no places nothing is rounded: half of 2^0 is no integer, and 0 stands for it.
    half = (one << places) >> 1
    rounded = (value + half) >> places
    if rounding is Rounding.HALF_EVEN:
        tie = ((value & ((one << places) - 1)) == half) & (places > 0)
        rounded = rounded - (tie & (rounded & 1 == 1)).to(torch.int64)
    return rounded


def _bit_length(x: Tensor) -> Tensor:
    """Bits of the magnitude of each integer below 2^62; 0 for 0."""
    magnitude = x.abs()
    high, low = magnitude >> 31, magnitude & ((1 << 31) - 1)
    # Both halves are exact in float64, whose exponent is the answer.
    bits = torch.frexp(high.to(torch.float64)).exponent + 31
    short = torch.frexp(low.to(torch.float64)).exponent
    return torch.where(high > 0, bits, short).to(torch.int64)


def _lookup(op: _Op) -> Tensor:
    table, index = op.param("table"), op.x.to(torch.int64) - op.kind.lo
    if len(table) == 1:
        return op.carried(table[0][index])
    channels = _rows(torch.arange(len(table), device=index.device), index)
    return op.carried(table[channels.expand_as(index), index])


def _max_pool(op: _Op) -> Tensor:
    top, left, bottom, right = op.node.ints("padding")
    x = op.x if op.x.is_floating_point() else op.x.to(torch.float64)
    padded = F.pad(x, (left, right, top, bottom), value=float("-inf"))
    return F.max_pool2d(padded, op.node.ints("kernel"), op.node.ints("stride"))


def _sum_pool(op: _Op) -> Tensor:
    kernel = op.node.ints("kernel")
    top, left, bottom, right = op.node.ints("padding")
    dtype = carrier(bound_of(op.kind) * kernel[0] * kernel[1])
    x = op.x.to(torch.float64 if dtype is torch.int64 else dtype)
    x = F.pad(x, (left, right, top, bottom))
    # With divisor 1 it is a sum; sums of integers below the carrier's limit are exact.
    return F.avg_pool2d(x, kernel, op.node.ints("stride"), divisor_override=1)


def _add(op: _Op) -> Tensor:
    factors = op.node.ints("multipliers")
    bound = sum(abs(m) * bound_of(kind) for m, kind in zip(factors, op.types, strict=True))
    first, second = (
        x.to(carrier(bound)) * factor for x, factor in zip(op.xs, factors, strict=True)
    )
    return first + second


def _concat(op: _Op) -> Tensor:
    return torch.cat([op.carried(x) for x in op.xs], 1)


def _flatten(op: _Op) -> Tensor:
    return op.x.permute(0, 2, 3, 1).flatten(1) if op.x.dim() == 4 else op.x


def _space_to_depth(op: _Op) -> Tensor:
    from bitwright.quantize.joins import rearrange

    return rearrange(op.x, op.node.integer("block"), ())


def _upsample(op: _Op) -> Tensor:
    vertical, horizontal = op.node.ints("factor")
    return op.x.repeat_interleave(vertical, 2).repeat_interleave(horizontal, 3)


def _top_k(op: _Op) -> Tensor:
    return torch.argsort(-op.x, dim=1, stable=True)[:, : op.node.integer("k")]


_OPS: dict[str, Callable[[_Op], Tensor]] = {
    "conv": _conv,
    "dense": _dense,
    "threshold": _threshold,
    "requant": _requant,
    "requant_float": _requant_float,
    "lookup": _lookup,
    "max_pool": _max_pool,
    "sum_pool": _sum_pool,
    "add": _add,
    "concat": _concat,
    "flatten": _flatten,
    "space_to_depth": _space_to_depth,
    "upsample": _upsample,
    "top_k": _top_k,
}


def in_graph_layout(values: Mapping[str, Tensor]) -> dict[str, IntArray]:
    """Torch's layout -> the graph's, (N, H, W, C), as int64."""
    found = {}
    for edge, tensor in values.items():
        whole = tensor.detach().to(torch.int64).cpu()
        found[edge] = (whole.permute(0, 2, 3, 1) if whole.dim() == 4 else whole).numpy()
    return found
