# SPDX-License-Identifier: Apache-2.0
"""Products without what follows them: the parts of one loop nest, with their weights in rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import NoHardware
from bitwright.engine.compiler.values import EITHER, SIGNED, Part, Value
from bitwright.engine.config import EngineConfig
from bitwright.engine.isa import Reduce, WeightOrder
from bitwright.ir import IntArray, Node

#: Largest magnitude of a weight of 8 bits that both signs have.
_LARGEST = 127


@dataclass
class Draft:
    """A product: everything of a `Layer` but its output and what follows.

    Attributes:
        places: channel -> lane of the output; lanes: how many there are.
        size: height and width of the output.
        bias: of each channel.
    """

    nodes: tuple[str, ...]
    sources: tuple[Value, ...]
    parts: tuple[Part, ...]
    places: IntArray
    lanes: int
    size: tuple[int, int]
    bias: IntArray | None = None
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    reduce: Reduce = Reduce.ADD
    macs: int = 0


def no_mapping(node: Node, reason: str, hint: str) -> NoHardware:
    """The refusal of a node, by name."""
    where = f"engine, {node.source or node.name}"
    return NoHardware(reason, node=node.name, where=where, hint=hint)


def signs_of(planes: tuple[int, ...], node: Node) -> tuple[int, int, int]:
    """INPUT's `first`, `signed_first`, `signed_rest` for planes that are summed.

    Raises:
        ModelError: signs change more than once.
    """
    known = [s for s in planes if s != EITHER]
    if not known:
        return len(planes), 0, 0
    first, change = known[0], len(planes)
    for number, sign in enumerate(planes):
        if sign not in (EITHER, first):
            change = number
            break
    rest = 1 - first
    if any(sign not in (EITHER, rest) for sign in planes[change:]):
        raise no_mapping(
            node,
            "the signs of the concatenated parts change more than once",
            "put the signed parts first in the concatenation, or quantize all parts alike",
        )
    if change == len(planes):
        rest = first
    return change, int(first == SIGNED), int(rest == SIGNED)


def merged(parts: list[Part]) -> tuple[Part, ...]:
    """Neighbouring groups that are one loop nest joined: same planes, signs, and a steady step."""
    done: list[Part] = []
    for part in parts:
        last = done[-1] if done else None
        if last is not None and (
            last.group + last.groups == part.group
            and last.planes == part.planes
            and last.signs == part.signs
            and last.order == part.order
            and last.origin == part.origin
            and (last.groups == 1 or part.plane - last.plane == last.groups * last.step)
            and part.plane >= last.plane
        ):
            shared = part.order != WeightOrder.SEQUENTIAL
            weights = last.weights if shared else np.concatenate([last.weights, part.weights])
            step = (part.plane - last.plane) // last.groups
            done[-1] = Part(
                last.group, last.groups + 1, last.plane, step, last.planes, weights, last.order,
                last.signs, last.origin,
            )  # fmt: skip
        else:
            done.append(part)
    return tuple(done)


def product(node: Node, source: Value, size: tuple[int, int], config: EngineConfig) -> Draft:
    """A conv or dense layer.

    Raises:
        ModelError: its weights have more than 8 bits, or too many rows.
    """
    weight = node.params["weight"]
    if weight.min() < -128 or weight.max() > _LARGEST:
        raise no_mapping(
            node,
            f"weights [{weight.min()}, {weight.max()}] have more than 8 bits",
            "quantize the weights to int8 or fewer bits",
        )
    if node.op == "dense":
        rows, columns = weight.shape
        pixels = source.height * source.width
        weight = weight.reshape(rows, source.height, source.width, columns // pixels)
        draft = _convolution(node, source, weight, 1, config)
    else:
        draft = _convolution(node, source, weight, node.integer("groups"), config)
        draft.stride, draft.dilation = pair_of(node, "stride"), pair_of(node, "dilation")
        draft.padding = pair_of(node, "padding")
    draft.size, draft.bias = size, node.params.get("bias")
    draft.macs = weight.size * size[0] * size[1]
    return draft


def pair_of(node: Node, name: str) -> tuple[int, int]:
    """(vertical, horizontal), of an attribute that may have more."""
    values = node.ints(name)
    return values[0], values[1]


def _convolution(
    node: Node, source: Value, weight: IntArray, groups: int, config: EngineConfig
) -> Draft:  # fmt: skip
    rows, height, width, columns = weight.shape
    if max(height, width) > 255:
        raise no_mapping(
            node, f"a kernel of {height} x {width}; at most 255 x 255 fit", "pool first"
        )
    outputs, lanes = config.outputs, source.lanes(config.lanes)
    channelwise = groups == rows == len(source.places) and columns == 1
    places = source.places if channelwise else np.arange(rows, dtype=np.int64)
    count = source.planes * lanes if channelwise else -(-rows // outputs) * outputs
    owner = np.full(count, -1, np.int64)
    owner[places] = np.arange(rows)
    parts: list[Part] = []
    if groups == 1:
        spread = np.zeros((count, height, width, source.planes * lanes), np.int8)
        where = (places, np.arange(height), np.arange(width), source.places)
        spread[np.ix_(*where)] = weight
        whole = spread.reshape(-1, outputs, height, width, source.planes, lanes)
        ordered = whole.transpose(0, 4, 2, 3, 1, 5)
        table = ordered.reshape(len(whole), -1, outputs, lanes)
        signs = signs_of(source.signs, node)
        parts = [
            Part(0, len(whole), 0, 0, source.planes, table, WeightOrder.SEQUENTIAL, signs)
        ]  # fmt: skip
    for group in range(count // outputs if groups > 1 else 0):
        parts.append(_grouped(node, source, weight, groups, owner, group, config))
    return Draft(
        (node.name,), (source,), merged(parts), places, count, (1, 1), kernel=(height, width)
    )


def _grouped(
    node: Node, source: Value, weight: IntArray, groups: int, owner: IntArray, group: int,
    config: EngineConfig,
) -> Part:  # fmt: skip
    """One output group: the planes that its channels read, from the first to the last."""
    rows, height, width, columns = weight.shape
    outputs, lanes = config.outputs, config.lanes
    channels = owner[group * outputs : (group + 1) * outputs]
    reads = [
        (j, int(c), source.places[int(c) * groups // rows * columns :][:columns])
        for j, c in enumerate(channels)
        if c >= 0
    ]
    lane_numbers = np.concatenate([r[2] for r in reads]) if reads else np.zeros(1, np.int64)
    first, last = int(lane_numbers.min()) // lanes, int(lane_numbers.max()) // lanes
    planes = last - first + 1
    table = np.zeros((outputs, height, width, planes * lanes), np.int8)
    for j, channel, where in reads:
        table[j][:, :, where - first * lanes] = weight[channel]
    ordered = table.reshape(outputs, height, width, planes, lanes).transpose(3, 1, 2, 0, 4)
    signs = signs_of(source.signs[first : last + 1], node)
    return Part(
        group, 1, first, 0, planes, ordered.reshape(1, -1, outputs, lanes),
        WeightOrder.SEQUENTIAL, signs,
    )  # fmt: skip


def _diagonal(
    levels: IntArray, config: EngineConfig, half: int = 0, halves: int = 1
) -> NDArray[np.int8]:
    """(1, rows, O, lanes): rows that multiply each of O lanes by a number: levels (rows, O or 1).
    The lanes are a word's, or one of its halves.
    """
    spread = np.broadcast_to(levels, (len(levels), config.outputs))
    found = np.zeros((1, len(levels), config.outputs, halves, config.outputs), np.int8)
    found[0, :, :, half] = np.eye(config.outputs, dtype=np.int64) * spread[:, :, np.newaxis]
    return found.reshape(1, len(levels), config.outputs, -1)


@lru_cache(maxsize=16)
def _unchanged(config: EngineConfig, half: int, halves: int) -> NDArray[np.int8]:
    """`_diagonal` that leaves each lane as it is; many layers have this one."""
    found = _diagonal(np.ones((1, 1), np.int64), config, half, halves)
    found.setflags(write=False)
    return found


def lanewise(
    node: Node, sources: tuple[Value, ...], config: EngineConfig, levels: IntArray | None = None
) -> list[Part]:
    """One part an output group: lanes stay where they are, multiplied by a level: by 1, or rows of
    ``levels`` (groups, rows, O or 1); of two sources, the steps of their planes one behind the
    other. A plane of 4-bit lanes makes two groups; those of the words' first halves come first, as
    they have the same weights.
    """
    halves = sources[0].lanes(config.lanes) // config.outputs
    parts = []
    for half in range(halves):
        for plane in range(sources[0].planes):
            group = plane * halves + half
            if levels is None:
                order, weights = WeightOrder.SINGLE, _unchanged(config, half, halves)
            else:
                order = WeightOrder.SEQUENTIAL
                weights = _diagonal(levels[group], config, half, halves)
            signs = signs_of(tuple(source.signs[plane] for source in sources), node)
            parts.append(Part(group, 1, plane, 0, len(sources), weights, order, signs))
    return parts


def identity(node: Node, source: Value, config: EngineConfig) -> Draft:
    """The value itself, to be finished in another way."""
    parts = merged(lanewise(node, (source,), config))
    size, lanes = (source.height, source.width), source.lanes(config.lanes)
    return Draft((), (source,), parts, source.places, source.planes * lanes, size)


def paired(draft: Draft, config: EngineConfig) -> Draft:
    """With an even number of output groups: the last one again where it is odd, in lanes that no
    channel has, since a word of 4-bit lanes holds the results of two.
    """
    if draft.lanes // config.outputs % 2 == 0:
        return draft
    *parts, last = draft.parts
    if last.step and last.groups > 1:  # a group further reads planes that are not there
        parts.append(last.cut(0, last.groups - 1))
        last = last.cut(last.groups - 1, 1)
    weights = last.weights
    if last.order == WeightOrder.SEQUENTIAL:
        weights = np.concatenate([weights, weights[-1:]])
    parts.append(replace(last, groups=last.groups + 1, step=0, weights=weights))
    return replace(draft, parts=tuple(parts), lanes=draft.lanes + config.outputs)


def pool(
    node: Node, source: Value, size: tuple[int, int], signs: IntArray | None, config: EngineConfig
) -> Draft:
    """A max or sum pool.

    Args:
        signs: (channels,) of 1 or -1: the pool takes the smallest value of channels of -1, and
            the sum comes out negated.
    """
    draft = identity(node, source, config)
    if signs is not None:
        table = np.ones(draft.lanes, np.int64)
        table[source.places] = signs
        steps = node.ints("kernel")[0] * node.ints("kernel")[1]
        levels = np.repeat(table.reshape(-1, 1, config.outputs), steps, axis=1)
        draft.parts = merged(lanewise(node, (source,), config, levels))
    draft.nodes, draft.size = (node.name,), size
    draft.kernel, draft.stride = pair_of(node, "kernel"), pair_of(node, "stride")
    draft.padding = pair_of(node, "padding")
    draft.reduce = Reduce.MAX if node.op == "max_pool" else Reduce.ADD
    return draft


def addition(
    node: Node, sources: tuple[Value, Value], multipliers: tuple[int, ...], config: EngineConfig
) -> Draft:
    """``multipliers[0] * a + multipliers[1] * b``; a large multiplier is the sum of several."""
    steps = max(map(_count, multipliers))
    if steps > 255:  # before there are as many pieces
        raise no_mapping(
            node,
            f"multipliers {multipliers} of an addition are too large",
            "quantize both operands with nearer scales",
        )
    split = map(_pieces, multipliers)
    levels = [piece for each in split for piece in (*each, *[0] * (steps - len(each)))]
    table = _diagonal(np.array(levels, np.int64)[:, np.newaxis], config)
    parts = [
        Part(p.group, 1, p.plane, 0, 2, table, WeightOrder.REPEATED, p.signs)
        for p in lanewise(node, sources, config)
    ]
    a = sources[0]
    return Draft(
        (node.name,), sources, merged(parts), a.places, a.planes * config.lanes,
        (a.height, a.width), kernel=(steps, 1), dilation=(0, 0),
    )  # fmt: skip


def _count(number: int) -> int:
    """Of the pieces of a number."""
    return max(1, -(-abs(number) // _LARGEST))


def _pieces(number: int) -> list[int]:
    """Numbers of at most 127 whose sum it is."""
    sign = -1 if number < 0 else 1
    count = _count(number)
    low, more = divmod(abs(number), count)
    return [sign * (low + (k < more)) for k in range(count)]


def replaced(
    node: Node, source: Value, places: IntArray, planes: int, config: EngineConfig
) -> Draft:
    """The value with its channels in other lanes: a convolution that only moves."""
    lanes = config.lanes
    weight = np.zeros((planes * lanes, 1, 1, source.planes * lanes), np.int8)
    weight[places, 0, 0, source.places] = 1
    table = weight.reshape(planes, config.outputs, source.planes, lanes).transpose(0, 2, 1, 3)
    signs = signs_of(source.signs, node)
    part = Part(0, planes, 0, 0, source.planes, table, WeightOrder.SEQUENTIAL, signs)
    size = (source.height, source.width)
    return Draft((), (source,), (part,), places, planes * lanes, size)


def unfolded(node: Node, source: Value, config: EngineConfig) -> Draft:
    """Space to depth: one copy for each pixel of a block."""
    block, planes = node.integer("block"), source.planes
    parts: list[Part] = []
    places = []
    for number in range(block * block):
        for part in merged(lanewise(node, (source,), config)):
            parts.append(
                Part(
                    number * planes + part.group, part.groups, part.plane, part.step, 1,
                    part.weights, part.order, part.signs, divmod(number, block),
                )
            )  # fmt: skip
        places.append(source.places + number * planes * config.lanes)
    size = (source.height // block, source.width // block)
    return Draft(
        (node.name,), (source,), tuple(parts), np.concatenate(places),
        block * block * planes * config.lanes, size, stride=(block, block),
    )  # fmt: skip


def summed(node: Node, sources: list[Value], config: EngineConfig) -> Draft:
    """The sum of values that lie one behind the other."""
    first = sources[0]
    ones = _diagonal(np.ones((1, 1), np.int64), config)
    part = Part(
        0, first.planes, 0, 1, len(sources), ones, WeightOrder.SINGLE, (len(sources), 0, 0)
    )  # fmt: skip
    size = (first.height, first.width)
    lanes = first.planes * config.lanes
    return Draft((node.name,), tuple(sources), (part,), first.places, lanes, size)
