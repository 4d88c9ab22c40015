# SPDX-License-Identifier: Apache-2.0
"""`window`: sliding window, its pixels one after the other or all in one beat."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import ClassVar, final

import numpy as np

from bitwright.base.errors import GraphError
from bitwright.hw.blocks.base import Block, Firing, Fold, Instance, Times, all_foldings, divisors
from bitwright.hw.memory import STYLE_CODES
from bitwright.ir import Node

_FRAMES = 4
_ALONE_FRAMES = 9
_ROUNDS = 48


@dataclass(frozen=True)
class WindowTimes:
    """When a window takes and makes the beats of one frame, in the periodic regime."""

    consume: Times
    produce: Times


@final
@dataclass(frozen=True)
class Window(Block):
    """Gives the beats (group, kh, kw, channel fold) of each output pixel; module `stream_window`.

    With `groups` = 0 every beat of a pixel is a group: the order of a depthwise unit, which then
    needs as many lanes as the window has. A parallel window then has a group a channel.

    Not a plain `Firing`: writer and reader are two processes that meet at output pixels. As
    `ParallelWindow` it may give all beats of an output pixel at once.
    """

    LANES, LATENCY = "simd", 4
    IN_ROWS = True

    @property
    def span(self) -> int:
        """Pixels from the first of an output pixel's window to its last, both included."""
        kernel, dilation = self.node.ints("kernel"), self.node.ints("dilation")
        rows, columns = (d * (k - 1) for k, d in zip(kernel, dilation, strict=True))
        return rows * self.input_type.shape[1] + columns + 1

    @property
    def fold(self) -> int:
        """Beats of an input pixel."""
        return self.input_type.channels // self.lanes[0]

    @property
    def pixel_out(self) -> int:
        """Beats of an output pixel."""
        return self.output_type.channels // self.lanes[1]

    @cached_property
    def first_words(self) -> Times:
        """For each output pixel of a frame, the word that its window begins with."""
        rows, columns = self.output_type.shape[:2]
        down, right = self.node.ints("stride")
        row = np.arange(rows, dtype=np.int64)[:, None] * (down * self.input_type.shape[1])
        return np.asarray((row + np.arange(columns, dtype=np.int64) * right).ravel() * self.fold)

    def foldings(self) -> tuple[Fold, ...]:
        # Buffers: as small as lets writer and reader run side by side within a row; across the rows
        # that a stride leaves out; and across frames.
        width = self.input_type.shape[1]
        (down, right), kernel = self.node.ints("stride"), self.node.ints("kernel")
        small = self.span + max(kernel[1] * self.node.ints("dilation")[1], 2 * right)
        across = (down - 1) * width
        sizes = sorted({small, small + across, max(small, 2 * self.span) + across})
        lanes = divisors(self.input_type.channels // max(1, self.node.integer("groups")))
        styles = ("distributed", "block")
        serial = all_foldings("simd", "simd", simd=lanes, pixels=sizes, ram_style=styles)
        channels, pixel = self.input_type.channels, self.output_type.channels
        both: tuple[tuple[str, int | str], ...] = (("simd", channels), ("parallel_window", 1))
        parallel = (Fold((*both, ("ram_style", style)), channels, pixel) for style in styles)
        return (*serial, *parallel)

    @property
    def out_pixels(self) -> bool:
        return self.node.integer("groups") == 0 and prod(self.node.ints("kernel")) > 1

    @classmethod
    def chosen(cls, node: Node) -> type[Block]:
        return ParallelWindow if node.integer("parallel_window") else Window

    def folded(self, fold: Fold) -> Block:
        if not fold.as_dict().get("parallel_window"):
            return super().folded(fold)
        return ParallelWindow(self.node, self.input_type, self.output_type, fold.attrs)

    def firing(self) -> Firing:
        raise GraphError("a window has no fixed firing sequence; use times()", where=self.name)

    @cached_property
    def _alone(self) -> tuple[int, int]:
        """(interval, latency) with input always there and output always taken."""
        choices = tuple(pair for pair in self.choices if pair[0] != "ram_style")
        return _alone(replace(self, choices=choices))

    def run_alone(self) -> tuple[int, int]:
        """(interval, latency) by running the block; `interval` and `latency` remember it."""
        starts = self._schedule(self.inputs[0].beats, 0, _ALONE_FRAMES).solve()
        # Averaged over four frames: a critical cycle may span more than one.
        cycles = int(starts[-1] - starts[-1 - 4 * len(self.first_words)])
        return -(-cycles // 4), int(starts[0]) + self.LATENCY

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

        The output pixels are spread over the period as far as the prologue of each frame (what must
        be there before its first output pixel) allows, so that the consumer sees an even stream.

        Raises:
            GraphError: the period is shorter than the block's interval.
        """
        if period < self.interval:
            raise GraphError(
                f"period {period} is less than the interval {self.interval}", where=self.name
            )
        # Where a stride leaves rows out, the window comes in bursts of rows. Spread over the rows
        # between, it would hold back more in front of it than the bursts ask of what is behind it.
        slack = period - self.interval if self.node.ints("stride")[0] == 1 else 0
        for pace in (slack, slack // 2, 0) if slack else (0,):
            frames = self._run(arrive, period, pace, _FRAMES)
            (c1, p1), (c2, p2) = frames[-2], frames[-1]
            if bool((c2 - c1 == period).all() and (p2 - p1 == period).all()):
                offset = period * (_FRAMES - 1)
                return WindowTimes(c2 - offset, p2 - offset)
        frames = self._run(arrive, period, 0, 16)
        offset = period * 15
        return WindowTimes(frames[-1][0] - offset, frames[-1][1] - offset)

    def first_frame(self, arrive: Times) -> Times:
        """Output times of a lone frame after reset, never stalled."""
        return self._run(arrive, 0, 0, 1)[0][1]

    def _run(
        self, arrive: Times, period: int, slack: int, frames: int
    ) -> list[tuple[Times, Times]]:
        """(taken, made) times of the beats of several frames, as the module's header states them.

        Writer: word w may be written once word w - buffer has been released; a release made by an
        issue in cycle t counts from t + 2. Reader: an output pixel starts when the last word of its
        window has been written (from the next cycle on), and is issued without gaps. `slack`:
        cycles by which the pixels of a frame are spread more than they need.
        """
        words = len(arrive)
        schedule = self._schedule(words, slack, frames)
        order = np.arange(frames * words, dtype=np.int64)
        arrives = (arrive + np.arange(frames, dtype=np.int64)[:, None] * period).ravel() - order
        starts = schedule.solve(np.maximum.accumulate(arrives))
        there = schedule.blocked < len(order)
        place = schedule.blocked[there]
        arrives[place] = np.maximum(arrives[place], schedule.lead(starts)[there])
        taken = np.maximum.accumulate(arrives) + order
        beats = np.arange(self.pixel_out, dtype=np.int64) + self.LATENCY
        made = (starts[:, None] + beats).reshape(frames, -1)
        return list(zip(taken.reshape(frames, -1), made, strict=True))

    def _schedule(self, words: int, slack: int, frames: int) -> _Schedule:
        pixels = len(self.first_words)
        frame = np.arange(frames, dtype=np.int64)[:, None]
        first = (self.first_words + frame * words).ravel()
        pace = pixels * self.pixel_out + slack
        ramp = (np.arange(pixels, dtype=np.int64) * pace // pixels + frame * pace).ravel()
        last = first + self.span * self.fold - 1
        return _Schedule(last, first + self.depth, ramp, self.pixel_out + 1)

    @property
    def buffer(self) -> tuple[int, int]:
        return self.depth, self.inputs[0].width

    @property
    def depth(self) -> int:
        """Words of the circular buffer."""
        return self.integer("pixels") * self.fold

    def features(self, family: str) -> dict[str, float]:
        address = self.depth.bit_length()
        kernel = self.node.ints("kernel")
        counters = sum(
            n.bit_length() for n in (*kernel, *self.output_type.shape[:2], self.fold, self.depth)
        )
        width = self.inputs[0].width
        in_luts = self.string("ram_style") == "distributed"
        return {
            "width": width,
            "behind": width if in_luts else 0,
            "banks": self.depth / 16 if in_luts else 0,
            "address": address,
            "counter": counters,
        }

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
                "BufPixels": self.integer("pixels"),
                **self.ram_parameters,
            },
        )


@final
@dataclass(frozen=True)
class ParallelWindow(Block):
    """Gives the whole window of an output pixel in one beat; module `window_parallel`.

    It takes a pixel a cycle, all channels at once (`simd`), so no convolution behind it takes more
    cycles than its padded image has pixels, while the beats of `Window` are those of the result
    times the kernel's pixels.
    """

    LATENCY: ClassVar[int] = 3

    @property
    def lanes(self) -> tuple[int, int]:
        return self.input_type.channels, self.output_type.channels

    @property
    def span(self) -> tuple[int, int]:
        """Rows and columns of the image that a window covers."""
        kernel, dilation = self.node.ints("kernel"), self.node.ints("dilation")
        rows, columns = (d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
        return rows, columns

    def firing(self) -> Firing:
        height, width = self.input_type.shape[:2]
        (rows, columns), (down, right) = self.span, self.node.ints("stride")
        steps = np.arange(height * width, dtype=np.int64)
        last = steps.reshape(height, width)[rows - 1 :: down, columns - 1 :: right]
        return Firing(len(steps), steps, last.ravel(), self.LATENCY)

    @property
    def buffer(self) -> tuple[int, int]:
        """The rows above, a word a column; of a single column they are a register."""
        width, kept = self.input_type.shape[1], self.span[0] - 1
        return (width if width > 1 and kept else 0), kept * self.inputs[0].width

    @property
    def cost_kind(self) -> str:
        return "window_parallel"

    def features(self, family: str) -> dict[str, float]:
        height, width, _ = self.input_type.shape
        kernel, (rows, columns) = self.node.ints("kernel"), self.span
        beat, out = self.inputs[0].width, self.outputs[0].width
        register = beat * (1 + columns * kernel[0]) + 2 * out
        if self.string("ram_style") != "block" and width > 1:  # what is read of the rows above
            register += beat * (rows - 1)
        counters = sum(n.bit_length() for n in (height, width, width, rows, columns))
        return {"register": register, "skid": out, "counter": counters}

    def instance(self) -> Instance:
        height, width, channels = self.input_type.shape
        kernel, stride, dilation = (self.node.ints(k) for k in ("kernel", "stride", "dilation"))
        groups = self.node.integer("groups") or channels
        return Instance(
            "window_parallel",
            {
                "Height": height,
                "Cols": width,
                **({} if groups == 1 else {"Groups": groups}),
                "DataWidth": self.inputs[0].width,
                "KernelH": kernel[0],
                "KernelW": kernel[1],
                "StrideH": stride[0],
                "StrideW": stride[1],
                "DilationH": dilation[0],
                "DilationW": dilation[1],
                "RamStyle": STYLE_CODES[self.string("ram_style")],
            },
        )


@dataclass(frozen=True)
class _Schedule:
    """The earliest times of a window's reader: least solution of the rules of reader and writer.

    The writer takes word w at w + lead, where its lead on one word a cycle grows only where it
    waits: for input, or at the first word whose place the reader has not released.

    Attributes:
        last: for each output pixel, the last word that it reads.
        blocked: for each output pixel, the first word that waits for its release.
        ramp: for each output pixel, how far it is at least behind the first one.
        hold: cycles from the start of a pixel until its release counts.
    """

    last: Times
    blocked: Times
    ramp: Times
    hold: int

    def lead(self, starts: Times) -> Times:
        """What each pixel's release makes of the writer's lead at the word that waits for it."""
        return np.asarray(starts + self.hold - self.blocked)

    def solve(self, arrives: Times | None = None) -> Times:
        """Start of each output pixel.

        Both rules only ever delay, so repeating them from the earliest times that the input
        allows ends at the least solution; each round settles at least one more wait of the writer
        for the reader. Where they wait for each other all the time, they are followed in order.

        Args:
            arrives: for each word, the lead that the input alone allows, ascending; None for 0.
        """
        lead = np.zeros_like(self.last) if arrives is None else arrives[self.last]
        behind = np.searchsorted(self.blocked, self.last, side="right") - 1
        waits = behind >= 0
        for _ in range(_ROUNDS):
            starts = np.maximum.accumulate(self.last + lead + 1 - self.ramp) + self.ramp
            reader = np.maximum.accumulate(self.lead(starts))
            new = np.where(waits, np.maximum(lead, reader[behind]), lead)
            if bool((new == lead).all()):
                return np.asarray(starts)
            lead = new
        return self._follow(lead.tolist(), behind.tolist())

    def _follow(self, lead: list[int], behind: list[int]) -> Times:
        """As `solve`, pixel after pixel; `lead` is a lower bound."""
        last, ramp, blocked = self.last.tolist(), self.ramp.tolist(), self.blocked.tolist()
        starts: list[int] = []
        reader: list[int] = []
        for pixel, word in enumerate(last):
            before = behind[pixel]
            here = max(lead[pixel], reader[before]) if before >= 0 else lead[pixel]
            start = word + here + 1
            if starts:
                start = max(start, starts[-1] + ramp[pixel] - ramp[pixel - 1])
            starts.append(start)
            release = start + self.hold - blocked[pixel]
            reader.append(max(release, reader[-1]) if reader else release)
        return np.array(starts, dtype=np.int64)


@lru_cache(maxsize=1024)
def _alone(block: Window) -> tuple[int, int]:
    return block.run_alone()
