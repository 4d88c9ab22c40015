# SPDX-License-Identifier: Apache-2.0
"""Integer graph -> program of the engine, by pure passes: layers, plan, steps, order and tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.engine.compiler.emit import Emitter
from bitwright.engine.compiler.front import network_of
from bitwright.engine.compiler.network import Network
from bitwright.engine.compiler.plan import plan_network
from bitwright.engine.compiler.schedule import program_of
from bitwright.engine.compiler.segments import Plan, Wish
from bitwright.engine.compiler.values import Value
from bitwright.engine.config import EngineConfig
from bitwright.engine.estimate import Timeline, timeline
from bitwright.engine.image import (
    EngineImage,
    HostStep,
    Region,
    program_bytes,
    program_words,
)
from bitwright.engine.isa import Buffer, Instruction, Load, Result, Store
from bitwright.engine.profile import waits
from bitwright.ir import Graph

#: Words behind the last one that the fetcher may read: it runs ahead of HALT.
READ_AHEAD = 32
#: Parts of a move's time that X is thought to wait for, tried beside the first one.
_WAITED = (0.25,)
#: How often a value is sent outside to see whether that helps, and the part of the program's time
#: that X must stand still to make that worth while.
_ROUNDS, _LONG = 3, 0.02


def compile_graph(graph: Graph, config: EngineConfig) -> EngineImage:
    """The program of an integer graph on an engine; the same bytes every time.

    Raises:
        ModelError: as `compile_program`.
    """
    return compile_program(graph, config).image


def compile_program(graph: Graph, config: EngineConfig) -> Compiled:
    """The program of an integer graph on an engine, with the plan that it was made by.

    A few plans are made, and of their programs the one with the fewest estimated cycles is kept.

    Raises:
        ModelError: a node has no mapping or does not fit; says which, why, and what to do.
    """
    try:
        try:
            return _compiled(graph, network_of(graph, config), config)
        except ModelError:
            if not config.nibbles:
                raise
        # What works plane by plane needs less room with lanes of 8 bits.
        return _compiled(graph, network_of(graph, replace(config, nibbles=False)), config)
    except RecursionError as error:
        raise ModelError(
            "hundreds of operations without an activation follow one another",
            where=f"engine, {graph.name}",
            hint="put activations between them, or concatenate all at once",
        ) from error


def _compiled(graph: Graph, network: Network, config: EngineConfig) -> Compiled:
    """The best program of a network."""
    seen: set[tuple[object, ...]] = set()
    best = _try(graph, network, config, Wish(), seen)
    assert best is not None  # nothing was seen
    for waited in _WAITED:
        best = _better(best, _try(graph, network, config, replace(best.wish, waited=waited), seen))
    for _ in range(_ROUNDS):
        wish = _pushed(best)
        tried = None if wish is None else _try(graph, network, config, wish, seen)
        if tried is None or tried.cycles >= best.cycles:
            break
        best = tried
    return best


@dataclass(frozen=True)
class Compiled:
    """A program, the plan that it was made by, and what it takes, estimated."""

    wish: Wish
    plan: Plan
    image: EngineImage
    found: Timeline

    @property
    def cycles(self) -> int:
        return self.found.cycles


def _better(one: Compiled, other: Compiled | None) -> Compiled:
    return one if other is None or other.cycles >= one.cycles else other


def _try(
    graph: Graph, network: Network, config: EngineConfig, wish: Wish,
    seen: set[tuple[object, ...]],
) -> Compiled | None:  # fmt: skip
    """The program of a plan; None if it cannot be made, or was made before."""
    try:
        plan = plan_network(network, config, wish)
    except ModelError:
        if wish == Wish():
            raise
        return None
    if plan.signature in seen:
        return None
    seen.add(plan.signature)
    image = _image(graph, network, plan, config)
    return Compiled(wish, plan, image, timeline(image.program, config))


def _pushed(program: Compiled) -> Wish | None:
    """Of the segment that waits longest for its maps, the largest value that has other things'
    room goes outside; None if none waits long.
    """
    image, plan = program.image, program.plan
    for wait in waits(program.found, image.program, image.layers):
        if wait.what != "maps" or wait.cycles < _LONG * program.cycles:
            continue
        for segment, live in zip(plan.segments, plan.live, strict=True):
            if wait.layer in {layer.name for layer in segment.layers} and live:
                largest = max(live, key=lambda root: root.words)
                return replace(program.wish, outside=program.wish.outside | {largest.name})
    return None


def _image(graph: Graph, network: Network, plan: Plan, config: EngineConfig) -> EngineImage:
    """The image of a plan."""
    emitter = Emitter(network, plan, config)
    steps = emitter.run()
    placed = program_of(steps, config, emitter.memory_words)
    # Constants follow the program, whose length is known now; inputs and the like follow them.
    start = program_words(len(placed), config)
    regions = start + emitter.constants.words
    program = tuple(_moved(p.instruction, start, regions) for p in placed)
    pieces = [program_bytes(program, config), emitter.constants.table]
    return EngineImage(
        graph.name, config, graph.digest, program, tuple(p.layer for p in placed),
        np.concatenate(pieces), regions + emitter.memory_words + READ_AHEAD,
        tuple(
            replace(
                _region(graph, e, v, emitter, regions), columns=network.columns.get(e)
            )
            for e, v in network.inputs.items()
        ),
        tuple(_region(graph, e, v, emitter, regions) for e, v in network.outputs.items()),
        tuple(HostStep(n.output, n.inputs[0], n.integer("k")) for n in network.host),
        graph.outputs, _macs(network),
    )  # fmt: skip


def _moved(instruction: Instruction, constants: int, regions: int) -> Instruction:
    """A LOAD or STORE with its address counted from the image's beginning."""
    if not isinstance(instruction, Load | Store):
        return instruction
    constant = isinstance(instruction, Load) and instruction.buffer != Buffer.FEATURES
    return replace(instruction, memory=instruction.memory + (constants if constant else regions))


def _region(graph: Graph, edge: str, value: Value, emitter: Emitter, start: int) -> Region:
    root, plane = value.root
    pixels = value.height * value.width
    return Region(
        edge, graph.types[edge], start + emitter.memory[root] + plane * pixels, value.planes,
        pixels, value.places, value.signs, 32 if value.result == Result.RAW else 8,
    )  # fmt: skip


def _macs(network: Network) -> dict[str, int]:
    return {layer.name: layer.macs for layer in network.layers if layer.macs}


__all__ = ["Compiled", "compile_graph", "compile_program"]
