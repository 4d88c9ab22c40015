# SPDX-License-Identifier: Apache-2.0
"""`window`: sliding window over a circular buffer of rows."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import final

import numpy as np

from bitwright.errors import GraphError
from bitwright.figures import Resources
from bitwright.hw.blocks.base import Block, Firing, Fold, Instance, Times, divisors
from bitwright.hw.memory import STYLE_CODES, ram_resources, ram_style
from bitwright.ir import Node

_FRAMES = 4
_ALONE_FRAMES = 9


@dataclass(frozen=True)
class WindowTimes:
    """When a window takes and makes the beats of one frame, in the periodic regime."""

    consume: Times
    produce: Times


class _Writer:
    """The writing side of the buffer: when each row's beats are taken."""

    def __init__(self, arrive: Times, period: int, height: int, rows: int) -> None:
        self._arrive = arrive.reshape(height, -1)
        self._steps = np.arange(self._arrive.shape[1], dtype=np.int64)
        self._period, self._height, self._rows = period, height, rows
        self._taken: list[Times] = []
        self._released: list[int] = []  # rows released so far ...
        self._free_at: list[int] = []  # ... and the cycle from which that counts

    def release(self, rows: int, cycle: int) -> None:
        self._released.append(rows)
        self._free_at.append(cycle)

    def complete(self, rows: int) -> int:
        """Write up to `rows` rows; the cycle in which the last beat of the last one was taken."""
        while len(self._taken) < rows:
            row = len(self._taken)
            start = int(self._taken[-1][-1]) + 1 if row else 0
            need = row - self._rows + 1
            if need > 0:
                start = max(start, self._free_at[bisect_left(self._released, need)])
            frame, part = divmod(row, self._height)
            arrive = self._arrive[part] + frame * self._period - self._steps
            self._taken.append(np.maximum.accumulate(np.maximum(arrive, start)) + self._steps)
        return int(self._taken[rows - 1][-1])

    def frame(self, frame: int) -> Times:
        rows = self._taken[frame * self._height : (frame + 1) * self._height]
        return np.concatenate(rows)


@final
@dataclass(frozen=True)
class Window(Block):
    """Gives the beats (group, kh, kw, channel fold) of each output pixel; module `stream_window`.

    With `groups` = 0 every beat of a pixel is a group: the order of a depthwise unit, which then
    needs as many lanes as the window has.

    Not a plain `Firing`: writer and reader are two processes that meet at whole rows.
    """

    LATENCY = 4

    @property
    def lanes(self) -> tuple[int, int]:
        simd = self.integer("simd")
        return simd, simd

    @property
    def span(self) -> int:
        """Input rows of one window, dilation included."""
        return self.node.ints("dilation")[0] * (self.node.ints("kernel")[0] - 1) + 1

    @property
    def row_in(self) -> int:
        """Beats of an input row."""
        return self.input_type.shape[1] * self.input_type.channels // self.lanes[0]

    @property
    def pixel_out(self) -> int:
        """Beats of an output pixel."""
        return self.output_type.channels // self.lanes[1]

    @property
    def row_out(self) -> int:
        """Beats of an output row."""
        return self.output_type.shape[1] * self.pixel_out

    def foldings(self) -> tuple[Fold, ...]:
        # Two buffer sizes: writer and reader side by side within a frame, or also across frames.
        small = self.span + self.node.ints("stride")[0]
        sizes = sorted({small, max(small, 2 * self.span)})
        return tuple(
            Fold((("ram_style", style), ("rows", rows), ("simd", lanes)), lanes, lanes)
            for lanes in divisors(self.input_type.channels // max(1, self.node.integer("groups")))
            for rows in sizes
            for style in ("distributed", "block")
        )

    def firing(self) -> Firing:
        raise GraphError("a window has no fixed firing sequence; use times()", where=self.name)

    @cached_property
    def _alone(self) -> tuple[int, int]:
        """(interval, latency) with input always there and output always taken."""
        choices = tuple(pair for pair in self.choices if pair[0] != "ram_style")
        return _alone(replace(self, choices=choices))

    def run_alone(self) -> tuple[int, int]:
        """(interval, latency) by running the block; `interval` and `latency` remember it.

        As `_run` with input always there, but row by row: no row is then interrupted.
        """
        height, rows_out = self.input_type.shape[0], self.output_type.shape[0]
        stride, rows = self.node.ints("stride")[0], self.integer("rows")
        taken: list[int] = []  # cycle of the last beat of each input row
        released: list[int] = []
        free_at: list[int] = []
        begins: list[int] = []
        free = 0
        for frame in range(_ALONE_FRAMES):
            for row in range(rows_out):
                top = frame * height + row * stride
                for number in range(len(taken), top + self.span):
                    begin = taken[-1] + 1 if taken else 0
                    if number >= rows:
                        begin = max(begin, free_at[bisect_left(released, number - rows + 1)])
                    taken.append(begin + self.row_in - 1)
                begins.append(max(taken[top + self.span - 1] + 1, free))
                free = begins[-1] + self.row_out
                released.append((frame + 1) * height if row == rows_out - 1 else top + stride)
                free_at.append(free + 1)
        # Averaged over four frames: a critical cycle may span more than one.
        cycles = begins[-1] - begins[-1 - 4 * rows_out]
        return -(-cycles // 4), begins[0] + self.LATENCY

    @property
    def interval(self) -> int:
        return max(self._alone[0], self.inputs[0].beats)

    @property
    def latency(self) -> int:
        return self._alone[1]

    @property
    def pipeline(self) -> int:
        return self.LATENCY

    def times(self, arrive: Times, period: int) -> WindowTimes:
        """A periodic schedule for beats that arrive at `arrive` (one frame, repeated every period).

        The output rows are spread over the period as far as the prologue of each frame (the rows
        that must be there before its first output row) allows, so that the consumer sees an even
        stream.

        Raises:
            GraphError: the period is shorter than the block's interval.
        """
        if period < self.interval:
            raise GraphError(
                f"period {period} is less than the interval {self.interval}", where=self.name
            )
        slack = (period - self.interval) // self.output_type.shape[0]
        for pace in (self.row_out + slack, self.row_out + slack // 2, self.row_out):
            frames = self._run(arrive, period, pace, _FRAMES)
            (c1, p1), (c2, p2) = frames[-2], frames[-1]
            if bool((c2 - c1 == period).all() and (p2 - p1 == period).all()):
                offset = period * (_FRAMES - 1)
                return WindowTimes(c2 - offset, p2 - offset)
        frames = self._run(arrive, period, self.row_out, 16)
        offset = period * 15
        return WindowTimes(frames[-1][0] - offset, frames[-1][1] - offset)

    def first_frame(self, arrive: Times) -> Times:
        """Output times of a lone frame after reset, never stalled."""
        return self._run(arrive, 0, self.row_out, 1)[0][1]

    def _run(self, arrive: Times, period: int, pace: int, frames: int) -> list[tuple[Times, Times]]:
        """Times of the rows of several frames, exactly as the module's header states them.

        Writer: row r may be written while fewer than `rows` complete rows are unreleased; a release
        made by an issue in cycle t counts from t + 2. Reader: output row o is issued without gaps
        once its last input row is complete (from the next cycle on).
        """
        height, rows_out = self.input_type.shape[0], self.output_type.shape[0]
        stride = self.node.ints("stride")[0]
        writer = _Writer(arrive, period, height, self.integer("rows"))
        beat_of = self._beat_pace(pace)
        free = 0
        out: list[tuple[Times, Times]] = []
        for frame in range(frames):
            made: list[Times] = []
            for row in range(rows_out):
                first = frame * height + row * stride
                start = max(writer.complete(first + self.span) + 1, free)
                free = start + max(pace, self.row_out)
                made.append(start + beat_of + self.LATENCY)
                done = (frame + 1) * height if row == rows_out - 1 else first + stride
                writer.release(done, int(made[-1][-1]) - self.LATENCY + 2)
            writer.complete((frame + 1) * height)
            out.append((writer.frame(frame), np.concatenate(made)))
        return out

    def _beat_pace(self, pace: int) -> Times:
        """Offsets of an output row's beats: pixels spread evenly, beats of a pixel together."""
        pixels = self.output_type.shape[1]
        starts = np.arange(pixels, dtype=np.int64) * pace // pixels
        return np.asarray(
            (starts[:, None] + np.arange(self.pixel_out, dtype=np.int64)[None, :]).ravel()
        )

    def memory_cost(self, family: str) -> Resources:
        style = self.string("ram_style")
        return ram_resources(family, self.depth, self.inputs[0].width, style)

    def resolve(self, family: str) -> Node:
        style = self.string("ram_style")
        style = ram_style(family, self.depth, self.inputs[0].width, style)
        return self.with_attrs(ram_style=style)

    @property
    def depth(self) -> int:
        """Words of the circular buffer."""
        return self.integer("rows") * self.row_in

    def features(self, family: str) -> dict[str, float]:
        address = self.depth.bit_length()
        kernel = self.node.ints("kernel")
        counters = sum(
            n.bit_length()
            for n in (*kernel, *self.output_type.shape[:2], self.row_in, self.pixel_out)
        )
        return {"width": self.inputs[0].width, "address": address, "counter": counters}

    def instance(self) -> Instance:
        height, width, channels = self.input_type.shape
        kernel, stride, dilation = (self.node.ints(k) for k in ("kernel", "stride", "dilation"))
        fold = channels // self.lanes[0]
        groups = self.node.integer("groups") or fold
        return Instance(
            "stream_window",
            {
                "Height": height,
                "Cols": width,
                "Fold": fold,
                **({} if groups == 1 else {"Groups": groups}),
                "DataWidth": self.inputs[0].width,
                "KernelH": kernel[0],
                "KernelW": kernel[1],
                "StrideH": stride[0],
                "StrideW": stride[1],
                "DilationH": dilation[0],
                "DilationW": dilation[1],
                "BufRows": self.integer("rows"),
                "RamStyle": STYLE_CODES[self.string("ram_style")],
            },
        )

    @property
    def pixels(self) -> int:
        """Pixels of one window."""
        return prod(self.node.ints("kernel"))


@lru_cache(maxsize=1024)
def _alone(block: Window) -> tuple[int, int]:
    return block.run_alone()
