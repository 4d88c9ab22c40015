# SPDX-License-Identifier: Apache-2.0
"""What follows a sum, from the graph's activations; and its bytes in the parameter memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bitwright.engine.compiler.draft import Draft, no_mapping
from bitwright.engine.compiler.lines import line_of
from bitwright.engine.compiler.values import Post
from bitwright.engine.config import TABLE_ENTRIES, EngineConfig
from bitwright.engine.execute import THRESHOLDS
from bitwright.engine.isa import Result, Rounding
from bitwright.ir import IntArray, Node, TensorType

_NEVER = (1 << 31) - 1  # of sums, which `front` keeps below
_ALWAYS = -(1 << 31)
_MOST_SHIFT = 47


def fits(kind: TensorType) -> bool:
    """Whether the levels are 8-bit numbers, signed or unsigned."""
    low, high = limits(kind)
    return low <= kind.lo and kind.hi <= high


def limits(kind: TensorType) -> tuple[int, int]:
    return (-128, 127) if kind.lo < 0 else (0, 255)


def _spread(values: IntArray, draft: Draft, empty: int = 0) -> IntArray:
    """Rows of channels (or one for all) as rows of lanes."""
    channels = len(draft.places)
    table = np.full((draft.lanes, *values.shape[1:]), empty, np.int64)
    table[draft.places] = np.broadcast_to(values, (channels, *values.shape[1:]))
    return table


def _bias(draft: Draft) -> IntArray:
    return np.zeros(len(draft.places), np.int64) if draft.bias is None else draft.bias


def kept(draft: Draft, kind: TensorType) -> Post:
    """The sum itself: as a result of 8 bits if it is one, else raw."""
    ones = _spread(np.ones(len(draft.places), np.int64), draft)
    low, high = limits(kind)
    result = Result.EIGHT if fits(kind) else Result.RAW
    return Post(result, ones, _spread(_bias(draft), draft), low=low, high=high)


def copied(draft: Draft) -> Post:
    """The bytes themselves: planes with and without signs may lie side by side."""
    ones = _spread(np.ones(len(draft.places), np.int64), draft)
    return Post(Result.EIGHT, ones, np.zeros_like(ones), low=-128, high=255)


def signed_back(post: Post, draft: Draft, signs: IntArray) -> Post:
    """`kept`, but for channels that come negated."""
    return replace(post, multiplier=_spread(signs, draft))


def requantized(node: Node, draft: Draft, config: EngineConfig) -> Post:
    """A `requant`.

    Raises:
        ModelError: its numbers have more bits than the engine's.
    """
    channels = len(draft.places)
    multiplier = np.broadcast_to(node.params["multiplier"], (channels,))
    offset = node.params["offset"] + multiplier * _bias(draft)
    shift = node.integer("shift")
    both = int(np.bitwise_or.reduce(multiplier) | np.bitwise_or.reduce(offset))
    spare = min(shift, (both & -both).bit_length() - 1 if both else shift)
    most = (1 << (config.multiplier_bits - 1)) - 1
    if np.abs(multiplier).max() > most or shift > _MOST_SHIFT:
        # The same number with a smaller shift.
        multiplier, offset, shift = multiplier >> spare, offset >> spare, shift - spare
    if np.abs(multiplier).max() > most:
        raise no_mapping(
            node,
            f"a multiplier of {int(np.abs(multiplier).max()).bit_length() + 1} bits; the engine's "
            f"have {config.multiplier_bits}",
            "the channels' scales lie far apart: quantize the weights per channel",
        )
    if np.abs(offset).max() >= 1 << (config.offset_bits - 1) or shift > _MOST_SHIFT:
        raise no_mapping(
            node,
            f"an offset of {int(np.abs(offset).max()).bit_length() + 1} bits and a shift of "
            f"{shift}; the engine has {config.offset_bits} and {_MOST_SHIFT}",
            "requantize with fewer fractional bits",
        )
    return Post(
        Result.EIGHT, _spread(multiplier, draft), _spread(offset, draft), shift,
        Rounding[node.string("rounding").upper()], node.integer("lo"), node.integer("hi"),
    )  # fmt: skip


def looked_up(node: Node, kind: TensorType, draft: Draft, config: EngineConfig) -> Post:
    """A `lookup`: the index is the level less the smallest one.

    Raises:
        ModelError: more than 256 entries, or this engine has no tables.
    """
    table = node.params["table"]
    if table.shape[1] > TABLE_ENTRIES or not config.tables:
        raise no_mapping(
            node,
            f"a table of {table.shape[1]} entries; the engine's have "
            f"{TABLE_ENTRIES if config.tables else 0}",
            "quantize to 8 bits in front of it",
        )
    entries = np.zeros((len(table), TABLE_ENTRIES), np.int64)
    entries[:, : table.shape[1]] = table
    lanes = entries if len(entries) == 1 else _spread(entries, draft)
    ones = _spread(np.ones(len(draft.places), np.int64), draft)
    return Post(
        Result.EIGHT, ones, _spread(_bias(draft) - kind.lo, draft), low=0, high=255,
        tables=(lanes & 255).astype(np.uint8),
    )  # fmt: skip


def whole_threshold(node: Node) -> bool:
    """Whether the engine does a `threshold` at once."""
    return node.params["thresholds"].shape[1] <= THRESHOLDS and node.integer("step") in (1, 2)


def thresholded(node: Node, draft: Draft) -> tuple[bool, list[Post]]:
    """A `threshold`: one that is the whole of it, or several that count up to 15 of them each
    (with base 0 and step 1) and are to be added, scaled and moved.
    """
    channels, bias = len(draft.places), _bias(draft)[:, np.newaxis]
    given = np.broadcast_to(
        node.params["thresholds"], (channels, node.params["thresholds"].shape[1])
    )
    flip = np.broadcast_to(node.params.get("flip", np.zeros(1, np.int64)), (channels,))
    # -(x + b) >= t is ~x >= t + b - 1.
    moved = np.where(flip[:, np.newaxis] == 1, given + bias - 1, given - bias)
    moved = np.where(moved >= _NEVER, _NEVER, np.maximum(moved, _ALWAYS))
    count, whole = moved.shape[1], whole_threshold(node)
    return whole, [
        Post(
            Result.EIGHT,
            thresholds=_spread(moved[:, start : start + THRESHOLDS], draft, _NEVER),
            flip=_spread(flip, draft),
            base=node.integer("base") if whole else 0,
            step=node.integer("step") - 1 if whole else 0,
        )
        for start in range(0, count, THRESHOLDS)
    ]


def lined(node: Node, kind: TensorType, draft: Draft, config: EngineConfig) -> Post | None:
    """A `threshold` as a requantization, where its thresholds are a rounded line for every sum in
    the range of ``kind``; None elsewhere.
    """
    if node.integer("step") != 1:
        return None
    channels, thresholds = len(draft.places), node.params["thresholds"]
    given = np.broadcast_to(thresholds, (channels, thresholds.shape[1]))
    flip = np.broadcast_to(node.params.get("flip", np.zeros(1, np.int64)), (channels,))
    most = (1 << (config.multiplier_bits - 1)) - 1
    largest = (1 << (config.offset_bits - 2)) - 1  # a bias and a base are added
    line = line_of(given, flip, kind.lo, kind.hi, (most, largest, _MOST_SHIFT))
    if line is None:
        return None
    base = node.integer("base")
    offset = line.offset + (base << line.shift) + line.multiplier * _bias(draft)
    if np.abs(offset).max() > 2 * largest:
        return None
    return Post(
        Result.EIGHT, _spread(line.multiplier, draft), _spread(offset, draft), line.shift,
        Rounding.FLOOR, base + line.low, base + line.high,
    )  # fmt: skip


def parameter_bytes(post: Post, config: EngineConfig) -> NDArray[np.uint8]:
    """(groups, bytes): the parameters of each output group, as a LOAD brings them: records of 64
    bits, or rows of 512.
    """
    if post.thresholds is not None and post.flip is not None:
        table = np.full((len(post.flip), 16), _NEVER, np.int64)
        table[:, : post.thresholds.shape[1]] = post.thresholds
        table[:, THRESHOLDS] = post.flip
        data = table.astype("<i4").view(np.uint8)
    else:
        assert post.multiplier is not None and post.offset is not None
        mask = (1 << config.multiplier_bits) - 1
        records = post.offset << config.multiplier_bits | post.multiplier & mask
        data = records.astype("<i8").view(np.uint8)
    groups = data.size // (64 if post.thresholds is not None else 8) // config.outputs
    return data.reshape(groups, -1)
