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
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bitwright.formats import Rounding
from bitwright.formats.pytorch.rounding import round_to_int
from bitwright.ir import Graph, IntArray, Node, TensorType

_FLOAT32, _FLOAT64 = 1 << 24, 1 << 53
Operands = tuple[Tensor, ...]
_SETTINGS = threading.RLock()


class TorchExecutor:
    """Runs an integer graph on tensors in torch's layout: (N, C, H, W) or (N, C).

    Args:
        graph: of the integer dialect.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._params: dict[tuple[torch.device, torch.dtype, str, str], Tensor] = {}

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
                values[node.output] = _OPS[node.op](self, node, types, operands)
        return values

    def param(self, node: Node, name: str, like: Tensor, dtype: torch.dtype) -> Tensor:
        """A parameter on the device of a tensor."""
        key = (like.device, dtype, node.name, name)
        if key not in self._params:
            array = torch.from_numpy(np.array(node.params[name]))
            self._params[key] = array.to(like.device, dtype)
        return self._params[key]


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


def sum_bound(weight: IntArray, bias: IntArray | None, kind: TensorType) -> int:
    """Largest magnitude of any partial sum of a product."""
    sums = np.abs(weight.reshape(len(weight), -1)).sum(axis=1, dtype=object) * bound_of(kind)
    if bias is not None:
        sums = sums + np.abs(bias).astype(object)
    return int(max(sums))


def _rows(values: Tensor, x: Tensor) -> Tensor:
    """(C,) or (1,) shaped to broadcast over channels on axis 1."""
    return values.view(1, -1, *(1,) * (x.dim() - 2))


def _conv(run: TorchExecutor, node: Node, types: tuple[TensorType, ...], xs: Operands) -> Tensor:
    (x,), (kind,) = xs, types
    dtype = carrier(sum_bound(node.params["weight"], node.params.get("bias"), kind))
    weight = _plain(run.param(node, "weight", x, dtype).permute(0, 3, 1, 2))
    bias = run.param(node, "bias", x, dtype) if "bias" in node.params else None
    top, left, bottom, right = node.ints("padding")
    x = _plain(F.pad(x.to(dtype), (left, right, top, bottom)))
    stride, dilation, groups = node.ints("stride"), node.ints("dilation"), node.integer("groups")
    if x.device.type == "cpu" and dtype.is_floating_point:
        return F.conv2d(x, weight, bias, stride, 0, dilation, groups)
    # Elsewhere convolutions may choose Winograd or TF32; a matrix product stays exact.
    columns = F.unfold(x.double(), weight.shape[2:], dilation, 0, stride).to(dtype)
    batch, depth, pixels = columns.shape
    columns = columns.view(batch, groups, depth // groups, pixels)
    table = weight.reshape(groups, len(weight) // groups, depth // groups)
    out_h, out_w = run.graph.types[node.output].shape[:2]
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


def _dense(run: TorchExecutor, node: Node, types: tuple[TensorType, ...], xs: Operands) -> Tensor:
    (x,), (kind,) = xs, types
    dtype = carrier(sum_bound(node.params["weight"], node.params.get("bias"), kind))
    weight = run.param(node, "weight", x, dtype)
    out = _matmul(x.to(dtype), weight.T) if dtype.is_floating_point else _long(x, weight)
    return out + run.param(node, "bias", x, dtype) if "bias" in node.params else out


def _long(x: Tensor, weight: Tensor) -> Tensor:
    return (x.to(torch.int64).unsqueeze(1) * weight).sum(-1)


def _threshold(
    run: TorchExecutor, node: Node, types: tuple[TensorType, ...], xs: Operands
) -> Tensor:
    (x,) = xs
    thresholds = run.param(node, "thresholds", x, torch.int64)
    x = x.to(torch.int64)
    if "flip" in node.params:
        x = x * _rows(1 - 2 * run.param(node, "flip", x, torch.int64), x)
    moved = x.movedim(1, 0)
    # searchsorted from the right counts the thresholds at or below each value.
    flat = moved.reshape(len(moved) if len(thresholds) > 1 else 1, -1).contiguous()
    count = torch.searchsorted(thresholds, flat, right=True).view(moved.shape).movedim(0, 1)
    levels = node.integer("base") + node.integer("step") * count
    return levels.to(carrier(bound_of(run.graph.types[node.output]))).contiguous()


def _affine(run: TorchExecutor, node: Node, kind: TensorType, x: Tensor) -> tuple[Tensor, bool]:
    """``x * multiplier + offset``, and whether float64 holds it."""
    multiplier, offset = node.params["multiplier"], node.params["offset"]
    peak = bound_of(kind) * int(np.abs(multiplier).max()) + int(np.abs(offset).max())
    dtype = torch.float64 if peak < _FLOAT64 else torch.int64
    factor = _rows(run.param(node, "multiplier", x, dtype), x)
    shift = _rows(run.param(node, "offset", x, dtype), x)
    return x.to(dtype) * factor + shift, peak < _FLOAT64


def _requant(run: TorchExecutor, node: Node, types: tuple[TensorType, ...], xs: Operands) -> Tensor:
    value, is_float = _affine(run, node, types[0], xs[0])
    rounding, shift = Rounding(node.string("rounding")), node.integer("shift")
    if is_float:  # division by a power of two is exact
        value = round_to_int(value.mul_(2.0**-shift), rounding)
    else:
        value = round_shift(value, shift, rounding)
    value = value.clamp_(node.integer("lo"), node.integer("hi"))
    return value.to(carrier(bound_of(run.graph.types[node.output])))


def _requant_float(
    run: TorchExecutor, node: Node, types: tuple[TensorType, ...], xs: Operands
) -> Tensor:
    product = _affine(run, node, types[0], xs[0])[0].to(torch.int64)
    shift, smallest = node.integer("shift"), node.integer("smallest")
    drop = (_bit_length(product) - (node.integer("significant") + shift)).clamp_(min=0)
    level = round_shift(product, drop + shift, Rounding(node.string("rounding"))) << drop
    if smallest:
        level.masked_fill_(level.abs() < smallest, 0)
    level = level.clamp_(node.integer("lo"), node.integer("hi"))
    return level.to(carrier(bound_of(run.graph.types[node.output])))


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


def _lookup(run: TorchExecutor, node: Node, types: tuple[TensorType, ...], xs: Operands) -> Tensor:
    (x,) = xs
    table = run.param(node, "table", x, torch.int64)
    index = x.to(torch.int64) - types[0].lo
    if len(table) == 1:
        found = table[0][index]
    else:
        channels = _rows(torch.arange(len(table), device=x.device), x)
        found = table[channels.expand_as(index), index]
    return found.to(carrier(bound_of(run.graph.types[node.output])))


def _max_pool(
    run: TorchExecutor, node: Node, types: tuple[TensorType, ...], xs: Operands
) -> Tensor:
    top, left, bottom, right = node.ints("padding")
    x = xs[0] if xs[0].is_floating_point() else xs[0].to(torch.float64)
    padded = F.pad(x, (left, right, top, bottom), value=float("-inf"))
    return F.max_pool2d(padded, node.ints("kernel"), node.ints("stride"))


def _sum_pool(
    run: TorchExecutor, node: Node, types: tuple[TensorType, ...], xs: Operands
) -> Tensor:
    kernel = node.ints("kernel")
    top, left, bottom, right = node.ints("padding")
    dtype = carrier(bound_of(types[0]) * kernel[0] * kernel[1])
    x = F.pad(
        xs[0].to(torch.float64 if dtype is torch.int64 else dtype), (left, right, top, bottom)
    )
    # With divisor 1 it is a sum; sums of integers below the carrier's limit are exact.
    return F.avg_pool2d(x, kernel, node.ints("stride"), divisor_override=1)


def _add(run: TorchExecutor, node: Node, types: tuple[TensorType, ...], xs: Operands) -> Tensor:
    factors = node.ints("multipliers")
    bound = sum(abs(m) * bound_of(kind) for m, kind in zip(factors, types, strict=True))
    dtype = carrier(bound)
    return xs[0].to(dtype) * factors[0] + xs[1].to(dtype) * factors[1]


def _concat(run: TorchExecutor, node: Node, types: tuple[TensorType, ...], xs: Operands) -> Tensor:
    dtype = carrier(bound_of(run.graph.types[node.output]))
    return torch.cat([x.to(dtype) for x in xs], 1)


def _flatten(run: TorchExecutor, node: Node, types: tuple[TensorType, ...], xs: Operands) -> Tensor:
    return xs[0].permute(0, 2, 3, 1).flatten(1) if xs[0].dim() == 4 else xs[0]


def _space_to_depth(
    run: TorchExecutor, node: Node, types: tuple[TensorType, ...], xs: Operands
) -> Tensor:
    from bitwright.quantize.joins import rearrange

    return rearrange(xs[0], node.integer("block"), ())


def _upsample(
    run: TorchExecutor, node: Node, types: tuple[TensorType, ...], xs: Operands
) -> Tensor:
    vertical, horizontal = node.ints("factor")
    return xs[0].repeat_interleave(vertical, 2).repeat_interleave(horizontal, 3)


def _top_k(run: TorchExecutor, node: Node, types: tuple[TensorType, ...], xs: Operands) -> Tensor:
    return torch.argsort(-xs[0], dim=1, stable=True)[:, : node.integer("k")]


_OPS: dict[str, Callable[[TorchExecutor, Node, tuple[TensorType, ...], Operands], Tensor]] = {
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
