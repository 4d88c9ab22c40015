# SPDX-License-Identifier: Apache-2.0
"""Simulation of a mapped design beat by beat, without data: does it finish, and how fast is it?

It knows nothing of the timing model's schedule: it takes the hardware graph with its actual FIFOs
and steps every block cycle by cycle by the rules of its module (ready and valid, pipelines that
stand still as a whole, output registers of two entries). So it proves for one design what
`hw.dataflow` claims for all: that no FIFO is too shallow to go on (no deadlock), and that frames
leave at the predicted interval. A million cycles of a hundred blocks take a second or two.

Whether a design deadlocks does not depend on how fast its ends are fed and emptied: blocks never
choose (each step needs a fixed set of beats and room), so the numbers of beats that can ever move
are the same under every stall pattern, and one run without stalls decides for all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import gcd

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError, MismatchError, ToolError
from bitwright.hw.blocks import Block, Fifo, Firing, Flatten, Window, blocks_of
from bitwright.hw.dataflow import Dataflow, analyse, readers
from bitwright.hw.tokens_native import MAKES, SINK, SOURCE, STEPS, TOKENS, WINDOW, CBlock, CQueue
from bitwright.ir import Graph

_REGISTER = 2  # beats in the register at the end of a block
_UNBOUNDED = 1 << 40
_MOST_LATENCY = 65  # register stages that `pipe` of tokens.c holds, and the output register
_FRAMES = 6
_MOST_FRAMES = 96
_MOST_STEPS = 1_000_000_000  # blocks times cycles that `check_tokens_if_fast` spends: some seconds
_FINISHED, _STUCK = 0, 1


@dataclass(frozen=True)
class TokenRun:
    """What happened.

    Attributes:
        ends: output edge -> cycle in which each frame's last beat left; -1 where it never did.
        cycles: cycles simulated.
        stuck: where nothing could move any more, the blocks that wait for one another, each with
            what it waits for; empty otherwise.
        high_water: edge -> largest number of beats behind its producer at one time.
    """

    ends: Mapping[str, tuple[int, ...]]
    cycles: int
    stuck: tuple[str, ...]
    high_water: Mapping[str, int]

    @property
    def finished(self) -> bool:
        """Whether every frame left by every output."""
        return all(end >= 0 for ends in self.ends.values() for end in ends)

    @property
    def frame_ends(self) -> tuple[int, ...]:
        """The cycle in which the last beat of each frame left, over all outputs."""
        return tuple(max(ends) for ends in zip(*self.ends.values(), strict=True))

    @property
    def latency(self) -> int:
        """Cycles from the first input beat to the last output beat of the first frame."""
        return self.frame_ends[0] + 1

    @property
    def interval(self) -> int:
        """Cycles between the last frames; see `steady_interval`."""
        return steady_interval(self.frame_ends)


def steady_interval(ends: Sequence[int]) -> int:
    """Cycles between the last frames, rounded up.

    The average over four, because where writer and reader of a window wait for each other a
    critical cycle may span several frames: then frames leave after 12 and 13 cycles in turn.
    """
    spans = min(4, len(ends) - 1)
    return -((ends[-1 - spans] - ends[-1]) // spans)


def simulate_tokens(
    hardware: Graph, frames: int = _FRAMES, *, unbounded: bool = False, limit: int | None = None
) -> TokenRun:
    """Run frames through a design as fast as it takes them.

    Args:
        frames: how many, at least 2.
        unbounded: let every stream hold any number of beats (then no block ever waits for room).
        limit: cycles after which to give up; by default more than the timing model allows.

    Raises:
        ToolError: there is no C compiler.
        GraphError: a block has more than 65 cycles of latency.
    """
    if limit is None:
        flow = analyse(hardware)
        limit = 4 * (flow.latency + (frames + 1) * flow.interval) + 10_000
    return _Machine(hardware, unbounded).run(frames, limit)


def check_tokens(hardware: Graph, *, frames: int = _FRAMES) -> TokenRun:
    """Prove that a design does not deadlock and runs at the predicted interval.

    The interval is that between the last of `frames` frames; where deep FIFOs have not filled by
    then, up to 16 times as many frames are run.

    Raises:
        MismatchError: it deadlocks, or it is slower or faster than the timing model says; names
            the blocks.
        ToolError: there is no C compiler.
    """
    flow = analyse(hardware)
    while True:
        result = simulate_tokens(hardware, frames)
        if result.stuck:
            raise MismatchError(
                "the design deadlocks: " + "; ".join(result.stuck),
                where=hardware.name,
                hint="leave the FIFO depths to the mapper, or make the named FIFOs deeper",
            )
        if result.finished and result.interval == flow.interval:
            break
        if frames >= _MOST_FRAMES:
            raise MismatchError(_slow_words(result, flow), where=hardware.name)
        frames *= 2
    if result.latency < flow.latency:
        raise MismatchError(
            f"the first frame takes {result.latency} cycles; the timing model says at least "
            f"{flow.latency}",
            where=hardware.name,
        )
    return result


def check_tokens_if_fast(hardware: Graph) -> tuple[TokenRun | None, str]:
    """`check_tokens`, unless it would take long.

    Returns:
        what happened and an empty reason; or None and the reason why it was left out.

    Raises:
        MismatchError: as `check_tokens`.
    """
    flow = analyse(hardware)
    steps = len(hardware.nodes) * (flow.latency + _FRAMES * flow.interval)
    if steps > _MOST_STEPS:
        return None, (
            f"too large to check beat by beat: {len(hardware.nodes)} blocks, "
            f"{flow.interval:,} cycles a frame"
        )
    try:
        return check_tokens(hardware), ""
    except ToolError as error:
        return None, f"no simulation of beats: {error.message}"


def _slow_words(result: TokenRun, flow: Dataflow) -> str:
    if not result.finished:
        return f"{result.cycles} cycles are over and not all frames have left"
    return (
        f"a frame every {result.interval} cycles in the simulation of beats; the timing model says "
        f"{flow.interval} ({flow.bottleneck})"
    )


class _Machine:
    """The design as the C program takes it."""

    def __init__(self, hardware: Graph, unbounded: bool) -> None:
        self.hardware, self.unbounded = hardware, unbounded
        all_blocks = blocks_of(hardware)
        self._roots: dict[str, str] = {}  # a flatten is another name for its input
        self._queue_of: dict[str, int] = {}
        self.queues: list[CQueue] = []
        self.blocks: list[CBlock] = []
        self.names: list[str] = []
        self._keep: list[NDArray[np.uint8]] = []  # step tables, which the program only points to
        by_edge = readers(hardware)
        for edge in hardware.inputs:
            node = by_edge[edge]
            port = all_blocks[node.name].inputs[node.inputs.index(edge)]
            self._end(SOURCE, f"input {edge}", edge, port.beats)
        for name, block in all_blocks.items():
            if isinstance(block, Flatten):
                self._roots[block.node.output] = self._root(block.node.inputs[0])
            else:
                self._block(name, block)
        for edge in hardware.outputs:
            self._output(edge, all_blocks)

    def _root(self, edge: str) -> str:
        return self._roots.get(edge, edge)

    def _queue(self, edge: str, capacity: int = _REGISTER, delay: int = 1) -> int:
        """The queue of an edge, made by its producer."""
        number = self._queue_of[edge] = len(self.queues)
        most = _UNBOUNDED if self.unbounded else capacity
        self.queues.append(CQueue(capacity=most, delay=delay))
        return number

    def _end(self, kind: int, name: str, edge: str, beats: int) -> None:
        block = CBlock(kind=kind, steps=beats, latency=1)
        if kind == SOURCE:
            block.outputs, block.out[0] = 1, self._queue(edge)
        else:
            block.inputs, block.in_[0] = 1, self._queue_of[edge]
        self._add(name, block)

    def _add(self, name: str, block: CBlock) -> None:
        self.names.append(name)
        self.blocks.append(block)

    def _output(self, edge: str, blocks: Mapping[str, Block]) -> None:
        """The register at the end of the top, and what takes its beats."""
        producer = self.hardware.producer(self._root(edge))
        assert producer is not None  # the template refuses an input that is an output
        port = blocks[producer.name].outputs[0]
        register = CBlock(kind=STEPS, latency=1, steps=1, inputs=1, outputs=1)
        self._table(register, np.array([MAKES | 1], dtype=np.uint8))
        register.in_[0] = self._queue_of[self._root(edge)]
        register.out[0] = self._queue(f"{edge} register")
        self._add(f"register of output {edge}", register)
        self._end(SINK, f"output {edge}", f"{edge} register", port.beats)

    def _block(self, name: str, block: Block) -> None:
        if block.pipeline > _MOST_LATENCY:
            raise GraphError(
                f"the latency of {block.pipeline} cycles is more than the {_MOST_LATENCY} that the "
                "simulation of beats can hold",
                where=name,
                hint="split the block into two of fewer register stages",
            )
        made = CBlock(latency=block.pipeline)
        made.inputs, made.outputs = len(block.node.inputs), len(block.node.outputs)
        for number, edge in enumerate(block.node.inputs):
            made.in_[number] = self._queue_of[self._root(edge)]
        deep = (block.depth, block.LATENCY) if isinstance(block, Fifo) else (_REGISTER, 1)
        if not isinstance(block, Window) and block.firing().produce[-1] >= block.firing().fires:
            self._in_two_parts(name, block, made)
            return
        for number, edge in enumerate(block.node.outputs):
            made.out[number] = self._queue(edge, *deep)
        if isinstance(block, Window):
            self._window(made, block)
        else:
            made.kind = STEPS
            if isinstance(block, Fifo):
                made.latency = 1  # the rest of it is the queue's delay
            self._table(made, step_table(block.firing()))
        self._add(name, made)

    def _in_two_parts(self, name: str, block: Block, first: CBlock) -> None:
        """A block that gives the rest of its results, one a cycle, while it takes the next frame:
        what makes the first of them, and a shift register.
        """
        firing = block.firing()
        count = len(firing.produce)
        first.kind, first.outputs, first.latency = STEPS, 1, firing.latency - 1
        first.out[0] = self._queue(f"{name} results")
        self._table(first, step_table(replace(firing, produce=firing.produce[:1])))
        self._add(name, first)
        rest = CBlock(kind=STEPS, latency=1, inputs=1, outputs=1)
        rest.in_[0] = first.out[0]
        rest.out[0] = self._queue(block.node.output)
        steps = np.arange(count, dtype=np.int64)
        self._table(rest, step_table(Firing(count, steps[:1], steps, 1)))
        self._add(f"{name} results", rest)

    @staticmethod
    def _window(made: CBlock, block: Window) -> None:
        made.kind, made.words, made.span = WINDOW, block.depth, block.span * block.fold
        made.rows_out, made.columns_out = block.output_type.shape[:2]
        made.pixel_out = block.pixel_out
        frame, first = block.inputs[0].beats, block.first_words
        places = [*first.tolist(), frame]
        made.pixel_drop = places[1] - places[0]
        made.row_drop = places[made.columns_out] - places[made.columns_out - 1]
        made.last_drop = frame - places[-2]

    def _table(self, made: CBlock, flags: NDArray[np.uint8]) -> None:
        self._keep.append(flags)
        made.steps, made.flags = len(flags), flags.ctypes.data

    def run(self, frames: int, limit: int) -> TokenRun:
        blocks = (CBlock * len(self.blocks))(*self.blocks)
        queues = (CQueue * len(self.queues))(*self.queues)
        ends = np.full((len(self.hardware.outputs), frames), -1, dtype=np.int64)
        cycles = ctypes.c_int64()
        status = TOKENS.require().bw_tokens(
            blocks, len(self.blocks), queues, len(self.queues), frames, limit,
            ends.ctypes.data, ctypes.byref(cycles),
        )  # fmt: skip
        stuck = _waiting_ring(self.names, list(blocks), list(queues)) if status == _STUCK else ()
        return TokenRun(
            ends={
                edge: tuple(int(e) for e in row)
                for edge, row in zip(self.hardware.outputs, ends, strict=True)
            },
            cycles=cycles.value,
            stuck=stuck,
            high_water={edge: queues[i].high for edge, i in self._queue_of.items()},
        )


def step_table(firing: Firing) -> NDArray[np.uint8]:
    """For each step of a frame: bit k if it takes a beat of input k, and `MAKES` if it makes one;
    only the part that repeats, if the frame is a repetition.
    """
    ports = (*firing.consumes, firing.produce)
    repeats = reduce(gcd, (len(times) for times in ports), firing.fires)
    part = firing.fires // repeats
    for times in ports:
        rows = times.reshape(repeats, -1)
        if (rows != rows[0] + part * np.arange(repeats, dtype=np.int64)[:, None]).any():
            repeats, part = 1, firing.fires
            break
    flags = np.zeros(part, dtype=np.uint8)
    for number, times in enumerate(ports):
        bit = MAKES if number == len(ports) - 1 else 1 << number
        flags[times[: len(times) // repeats]] |= bit
    return flags


def _waiting_ring(names: list[str], blocks: list[CBlock], queues: list[CQueue]) -> tuple[str, ...]:
    """Blocks of a deadlock: each waits for the next one, the last for the first."""
    made_by = {b.out[i]: n for n, b in enumerate(blocks) for i in range(b.outputs)}
    taken_by = {b.in_[i]: n for n, b in enumerate(blocks) for i in range(b.inputs)}

    def wait(number: int) -> tuple[str, int]:
        block = blocks[number]
        for i in range(block.outputs):
            queue = queues[block.out[i]]
            if queue.count >= queue.capacity:
                reader = taken_by[block.out[i]]
                return f"waits for room behind it ({queue.capacity} beats are full)", reader
        takes = 1
        if block.kind == STEPS:
            takes = ctypes.c_uint8.from_address(block.flags + block.step).value
        empty = [
            block.in_[i]
            for i in range(block.inputs)
            if takes >> i & 1 and queues[block.in_[i]].count == 0
        ]
        return "waits for input", made_by[empty[0]] if empty else number

    start = next(n for n, b in enumerate(blocks) if b.kind == SINK and b.inputs)
    path = [start]
    while path.count(path[-1]) < 2:
        path.append(wait(path[-1])[1])
    ring = path[path.index(path[-1]) : -1]
    return tuple(
        f"{names[n]} {wait(n)[0]} since cycle {blocks[n].active + 1}: {names[wait(n)[1]]}"
        for n in ring
    )
