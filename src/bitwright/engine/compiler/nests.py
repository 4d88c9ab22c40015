# SPDX-License-Identifier: Apache-2.0
"""EXECs of a part of a layer: addresses, patch and bounds of its loop nest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd

from bitwright.engine.compiler.steps import Access, Action, Space
from bitwright.engine.compiler.values import Layer, Part, Value
from bitwright.engine.config import EngineConfig
from bitwright.engine.isa import Exec, Input, Output, Post, Result, WeightOrder

_MOST_GROUPS = (1 << 12) - 1


@dataclass(frozen=True)
class View:
    """Where a value's words lie in the features: of plane 0, row 0; of a plane to the next."""

    base: int
    plane: int


@dataclass(frozen=True)
class Where:
    """What an EXEC finds in the engine's memories."""

    views: Mapping[Value, View]
    weights: int
    parameters: int


def parameter_rows(layer: Layer, config: EngineConfig) -> int:
    """Rows of the parameter memory that one output group needs."""
    if layer.post is not None and layer.post.thresholds is not None:
        return config.outputs
    return config.outputs // 8


def leaves_in(layer: Layer, config: EngineConfig) -> int:
    """Cycles in which the results of a group of the layer leave."""
    post = layer.post
    if post is None:
        return config.drain
    kind = Post.REQUANT if post.thresholds is None else Post.THRESHOLD
    return config.leaves(kind, post.result, post.tables is not None)


def execs(
    layer: Layer, part: Part, rows: tuple[int, int], where: Where, config: EngineConfig
) -> Iterator[Action]:
    """EXECs that make rows ``first .. end - 1`` of the part's output groups."""
    planes = {where.views[source].plane for source in layer.sources}
    if layer.joins and len(planes) > 1 and part.groups > 1:
        # One step with the output group serves both operands, so theirs must be one.
        per_group = part.rows // part.groups if len(part.weights) > 1 else 0
        for number in range(part.groups):
            each = replace(
                where,
                weights=where.weights + number * per_group,
                parameters=where.parameters + number * parameter_rows(layer, config),
            )
            yield _exec(layer, part.cut(number, 1), rows, each, config)
    else:
        yield _exec(layer, part, rows, where, config)


@dataclass(frozen=True)
class _Frame:
    """Pixels of the result and how their input is found.

    Attributes:
        height, width: of the input's coordinates; y, x: of the first pixel's first tap.
        down, across: pixels of the result; row, out_row: words from row to row.
    """

    height: int
    width: int
    y: int
    x: int
    down: int
    across: int
    row: int
    out_row: int
    start: int


def _frames(layer: Layer, part: Part, rows: tuple[int, int]) -> list[_Frame]:
    """The rows as they are and, where no tap looks sideways, all of them as one long row."""
    source, out = layer.sources[0], layer.out
    y = rows[0] * layer.stride[0] - layer.padding[0] + part.origin[0]
    x = part.origin[1] - layer.padding[1]
    width = source.width
    plain = _Frame(
        source.height, width, y, x, rows[1] - rows[0], out.width,
        layer.stride[0] * width, out.width, y * width + x,
    )  # fmt: skip
    pointwise = layer.joins or layer.kernel == (1, 1)
    count = (rows[1] - rows[0]) * width
    unmoved = layer.stride == (1, 1) and layer.padding == (0, 0) and part.origin == (0, 0)
    same = (out.height, out.width) == (source.height, width)  # no padding on the far sides either
    if not (pointwise and unmoved and same):
        return [plain]
    return [plain, _Frame(1, count, 0, 0, 1, count, 0, 0, rows[0] * width)]


def _choose(
    layer: Layer, part: Part, rows: tuple[int, int], config: EngineConfig
) -> tuple[_Frame, int, int]:
    """Frame, patch and passes that take the fewest cycles."""
    best: tuple[int, _Frame, int, int] | None = None
    steps = part.planes * layer.taps
    for frame in _frames(layer, part, rows):
        for patch in range(config.pixel_bits, -1, -1):
            across = 1 << patch
            down = config.pixels >> patch
            passes = gcd(layer.stride[1], config.pixels) if down == 1 else 1
            if down > 1 and not _free(frame, layer, patch, config):
                continue
            groups = (-(-frame.down // down), -(-frame.across // across))
            if max(groups) > _MOST_GROUPS:
                continue
            cycles = groups[0] * groups[1] * max(steps * passes, leaves_in(layer, config))
            if best is None or cycles < best[0]:
                best = cycles, frame, patch, passes
    assert best is not None
    return best[1:]


def _free(frame: _Frame, layer: Layer, patch: int, config: EngineConfig) -> bool:
    """Whether the pixels of a patch lie in different banks, where they are read and written."""
    pixels = [(p >> patch, p & ((1 << patch) - 1)) for p in range(config.pixels)]
    reads = {(r * frame.row + c * layer.stride[1]) % config.pixels for r, c in pixels}
    writes = {(r * frame.out_row + c) % config.pixels for r, c in pixels}
    return len(reads) == len(writes) == config.pixels


def _exec(
    layer: Layer, part: Part, rows: tuple[int, int], where: Where, config: EngineConfig
) -> Action:  # fmt: skip
    frame, patch, passes = _choose(layer, part, rows, config)
    size, views, post = config.feature_words, where.views, layer.post
    assert post is not None
    sources = [views[source] for source in layer.sources]
    starts = [view.base + part.plane * view.plane for view in sources]
    distance = starts[1] - starts[0] if layer.joins else sources[0].plane
    width = layer.sources[0].width
    tap_y, dilation_y = (0, 0) if layer.joins else (layer.dilation[0] * width, layer.dilation[0])
    given = Input(
        pixel=layer.stride[1], row=frame.row, tap_x=layer.dilation[1], tap_y=tap_y,
        plane=distance % size, output=part.step * sources[0].plane % size,
        height=frame.height, width=frame.width, stride_y=layer.stride[0],
        stride_x=layer.stride[1], dilation_y=dilation_y, dilation_x=layer.dilation[1],
        patch=patch, passes=passes, bits=layer.bits, first=part.signs[0],
        signed_first=part.signs[1], signed_rest=part.signs[2],
    )  # fmt: skip
    out = views[layer.out]
    thresholds = post.thresholds is not None
    finish = Output(
        plane=out.plane % (1 << 16), row=frame.out_row, weights=part.order,
        post=Post.THRESHOLD if thresholds else Post.REQUANT, result=post.result,
        lookup=int(post.tables is not None), rounding=post.rounding, shift=post.shift,
        low=post.low, high=post.high, base=post.base, step=post.step,
    )  # fmt: skip
    first_plane = _planes(part, post.result, config)[0]
    across, down = 1 << patch, config.pixels >> patch
    groups = -(-frame.down // down), -(-frame.across // across)
    kernel = layer.kernel
    job = Exec(
        features=(starts[0] + frame.start) % size, weights=where.weights,
        parameters=where.parameters,
        out=(out.base + first_plane * out.plane + rows[0] * layer.out.width) % size,
        y=frame.y, x=frame.x, groups_y=groups[0], groups_x=groups[1],
        last_y=frame.down - (groups[0] - 1) * down, last_x=frame.across - (groups[1] - 1) * across,
        kh=kernel[0], kw=kernel[1], kc=part.planes, outputs=part.groups, reduce=layer.reduce,
    )  # fmt: skip
    return Action(job, _accesses(layer, part, rows, where, config), layer.name, (given, finish))


def _accesses(
    layer: Layer, part: Part, rows: tuple[int, int], where: Where, config: EngineConfig
) -> tuple[Access, ...]:  # fmt: skip
    below, end = layer.input_rows(*rows)
    found = []
    last = part.plane + (part.groups - 1) * part.step + (1 if layer.joins else part.planes)
    for source in layer.sources:
        view, width = where.views[source], source.width
        low = view.base + part.plane * view.plane + below * width
        high = view.base + (last - 1) * view.plane + end * width
        found.append(Access(Space.FEATURES, low, high, False))
    post = layer.post
    assert post is not None
    first, last = _planes(part, post.result, config)
    out, width = where.views[layer.out], layer.out.width
    low = out.base + first * out.plane + rows[0] * width
    high = out.base + (last - 1) * out.plane + rows[1] * width
    found.append(Access(Space.FEATURES, low, high, True))
    found.append(Access(Space.WEIGHTS, where.weights, where.weights + stored_rows(part), False))
    count = part.groups * parameter_rows(layer, config)
    found.append(Access(Space.PARAMETERS, where.parameters, where.parameters + count, False))
    if post.tables is not None:
        found.append(Access(Space.TABLES, 0, config.table_words, False))
    return tuple(found)


def _planes(part: Part, result: Result, config: EngineConfig) -> tuple[int, int]:
    """Planes of the result that a part writes: first and end."""
    first, end = part.group, part.group + part.groups
    if result == Result.RAW:
        return first * config.raw_words, end * config.raw_words
    return (first // 2, -(-end // 2)) if result == Result.FOUR else (first, end)


def stored_rows(part: Part) -> int:
    """Rows of the weight memory that the part's EXECs read."""
    return part.weights.shape[1] if part.order != WeightOrder.SEQUENTIAL else part.rows
