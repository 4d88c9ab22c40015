# SPDX-License-Identifier: Apache-2.0
"""Integer graph -> program of the engine, by pure passes: layers, plan, steps, order and tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.engine.compiler.emit import Emitter
from bitwright.engine.compiler.front import Network, network_of
from bitwright.engine.compiler.plan import plan_network
from bitwright.engine.compiler.schedule import program_of
from bitwright.engine.compiler.values import Value
from bitwright.engine.config import EngineConfig
from bitwright.engine.image import (
    EngineImage,
    HostStep,
    Region,
    program_bytes,
    program_words,
)
from bitwright.engine.isa import Buffer, Instruction, Load, Result, Store
from bitwright.ir import Graph

#: Words behind the last one that the fetcher may read: it runs ahead of HALT.
READ_AHEAD = 32


def compile_graph(graph: Graph, config: EngineConfig) -> EngineImage:
    """The program of an integer graph on an engine; the same bytes every time.

    Raises:
        ModelError: a node has no mapping or does not fit; says which, why, and what to do.
    """
    try:
        network = network_of(graph, config)
    except RecursionError as error:
        raise ModelError(
            "hundreds of operations without an activation follow one another",
            where=f"engine, {graph.name}",
            hint="put activations between them, or concatenate all at once",
        ) from error
    plan = plan_network(network, config)
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
        tuple(_region(graph, e, v, emitter, regions) for e, v in network.inputs.items()),
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


__all__ = ["compile_graph"]
