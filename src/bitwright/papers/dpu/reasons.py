# SPDX-License-Identifier: Apache-2.0
"""Why a fused node cannot run on the engine: what an architecture file does not offer, what its
arithmetic cannot do, and what is too large for it.

Numbers are int8 of one power of two a tensor. The engine adds a bias of int8, shifted by one number
a layer, shifts the sum right by another, rounds half up and clips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from bitwright.ir import IntArray, Node, TensorType
from bitwright.papers.dpu.architecture import Architecture
from bitwright.papers.dpu.nodes import FusedNode, Kind, image_of

_INT8 = np.iinfo(np.int8)
_ROUNDING = "half_up"

Check = Callable[[FusedNode, Architecture], Iterator[str]]


def reasons(node: FusedNode, architecture: Architecture) -> tuple[str, ...]:
    """Why it does not run on the engine, in words; empty: it does."""
    checks = _CHECKS.get(node.kind, (_unknown,))
    return tuple(reason for check in checks for reason in check(node, architecture))


def _unknown(node: FusedNode, _: Architecture) -> Iterator[str]:
    yield _ALWAYS_OUTSIDE.get(node.kind, f"the engine has no operation {node.first.op}")


_ALWAYS_OUTSIDE = {
    Kind.SCALE: "a batch norm or activation that follows no product, addition or average: the "
    "engine has none alone; put it behind a convolution",
    Kind.LOOKUP: "an activation function other than ReLU and ReLU6",
    Kind.THRESHOLD: "an activation of few bits: the engine's numbers have 8; use the preset dpu",
    Kind.TOP_K: "the label is found by the processor",
}


def _numbers(node: FusedNode, _: Architecture) -> Iterator[str]:
    for kind in (*node.inputs, node.output):
        sums = kind is node.output and node.requant is None and node.kind is Kind.DENSE
        if not sums and not _is_int8(kind):
            yield f"levels {kind.lo} .. {kind.hi} are no int8"
            return


def _is_int8(kind: TensorType) -> bool:
    return _INT8.min <= kind.lo and kind.hi <= _INT8.max


def _powers(node: FusedNode, _: Architecture) -> Iterator[str]:
    if node.kind in (Kind.CONV, Kind.DEPTHWISE, Kind.DENSE):
        weight = node.first.params["weight"]
        if weight.min() < _INT8.min or weight.max() > _INT8.max:
            yield f"weights {weight.min()} .. {weight.max()} are no int8"
    requant = node.requant
    if requant is None:
        if not (node.kind is Kind.DENSE or node.kind is Kind.MAX_POOL):
            yield "its sums are not brought back to 8 bits right behind it"
        return
    if not is_common_power(requant.params["multiplier"]):
        yield "its scale is no power of two common to all channels; use the preset dpu"
    elif not is_shifted_int8(requant.params["offset"]):
        yield "its biases are no int8 of one power of two; fold batch norms, give biases dfp8"
    yield from _rounding(requant)


def _rounding(requant: Node) -> Iterator[str]:
    rounding = requant.string("rounding")
    if requant.integer("shift") and rounding != _ROUNDING:
        yield f"it rounds {rounding}, the engine {_ROUNDING}"


def is_common_power(multiplier: IntArray) -> bool:
    """Whether all are one power of two."""
    first = int(multiplier.flat[0])
    return first > 0 and first & (first - 1) == 0 and bool((multiplier == first).all())


def is_shifted_int8(values: IntArray) -> bool:
    """Whether all are an int8 times one power of two."""
    together = int(np.bitwise_or.reduce(np.abs(values), axis=None))
    if together == 0:
        return True
    step = together & -together
    levels = values // step
    return bool(levels.min() >= _INT8.min and levels.max() <= _INT8.max)


def _convolution(node: FusedNode, architecture: Architecture) -> Iterator[str]:
    limits, parallel = architecture.limits, architecture.parallelism
    depthwise = node.kind is Kind.DEPTHWISE
    groups = node.first.integer("groups") if node.first.op == "conv" else 1
    channels, outputs = image_of(node.inputs[0])[2], image_of(node.output)[2]
    if depthwise and not architecture.options.depthwise:
        yield "a depthwise convolution, an option that this architecture does not have"
    elif groups > 1 and (not depthwise or outputs != channels):
        yield f"a convolution in {groups} groups"
    yield from _window_fits(node, limits.kernel, limits.stride)
    if node.first.op == "conv" and set(node.first.ints("dilation")) != {1}:
        if node.first.ints("dilation")[0] != node.first.ints("dilation")[1]:
            yield "a dilation that differs along the axes"
    steps = -(-channels // parallel.input_channel)
    depth = node.window[0] * node.window[1] * steps
    if depth > limits.bank_depth:
        yield (
            f"{node.window[0]} x {node.window[1]} weights of {channels} channels take {depth} "
            f"words of a bank of {limits.bank_depth}"
        )
    for count, lanes, what in (
        (channels, parallel.input_channel, "input"),
        (outputs, parallel.output_channel, "output"),
    ):
        if count > limits.channel_groups * lanes:
            yield f"{count} {what} channels, more than {limits.channel_groups} x {lanes}"


def _window_fits(node: FusedNode, most: int, most_stride: int) -> Iterator[str]:
    if max(node.window) > most:
        yield f"a kernel of {node.window[0]} x {node.window[1]}, larger than {most} x {most}"
    if max(node.stride) > most_stride:
        yield f"a stride of {max(node.stride)}, more than {most_stride}"


def _pool(node: FusedNode, architecture: Architecture) -> Iterator[str]:
    height, width = node.window
    most = architecture.limits.pool
    if node.kind is Kind.AVERAGE_POOL and not architecture.options.average_pool:
        yield "an average pool, an option that this architecture does not have"
    if height != width:
        yield f"a pool of {height} x {width} is not square"
    if max(height, width) > most:
        yield f"a pool of {height} x {width} is larger than {most} x {most}"


def _addition(node: FusedNode, _: Architecture) -> Iterator[str]:
    factors = node.first.ints("multipliers")
    if any(abs(f) & (abs(f) - 1) for f in factors) or min(factors) < 0:
        yield f"the units of its operands are as {factors}, no powers of two"


def _concatenation(node: FusedNode, _: Architecture) -> Iterator[str]:
    if len({kind.scale for kind in node.inputs}) > 1:
        yield "its parts have different scales"


_CHECKS: dict[Kind, tuple[Check, ...]] = {
    Kind.CONV: (_convolution, _numbers, _powers),
    Kind.DEPTHWISE: (_convolution, _numbers, _powers),
    Kind.DENSE: (_convolution, _numbers, _powers),
    Kind.AVERAGE_POOL: (_pool, _numbers, _powers),
    Kind.MAX_POOL: (_pool, _numbers),
    Kind.ADD: (_addition, _numbers, _powers),
    Kind.CONCAT: (_concatenation, _numbers),
    Kind.RESHAPE: (_numbers,),
}
