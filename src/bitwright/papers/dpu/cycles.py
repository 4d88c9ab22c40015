# SPDX-License-Identifier: Apache-2.0
"""How long the published processor takes: a model, calibrated on what has been measured of it.

The processor is closed, so this is no simulation: the time of its array follows from the printed
parallelism, the rest from three constants that `calibration` fits to the printed latencies and
throughputs. It is kept apart from the timing of this package's own engine, which is exact.

A fused node takes ``max(array, bytes / bandwidth) + layer_cycles`` cycles:

* array: one step computes PP pixels x ICP input channels x OCP output channels;
* bytes: weights, the maps that it reads and those that it writes, all of them by external memory;
* bandwidth: what the ports of a core carry, or a core's share of the memory, if that is less;
* layer_cycles: instructions, filling and emptying, waiting for the layer before.

One image takes the sum over its nodes, and ``host_ms`` of the processor beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from bitwright.base.errors import GraphError, RecipeError
from bitwright.papers.dpu.architecture import Architecture
from bitwright.papers.dpu.compiler import Compiled
from bitwright.papers.dpu.nodes import Kind
from bitwright.papers.dpu.work import Work, work_of

_PRODUCTS = (Kind.CONV, Kind.DENSE)


@dataclass(frozen=True)
class Timing:
    """The constants of the model.

    Attributes:
        host_ms: of an image, on the processor: submitting, waiting, copying; not on the engine.
        layer_cycles: that a fused node takes beside its work.
        memory_gbytes: 10^9 bytes a second that all cores of a device get together.
        port_bytes: a cycle of general logic and core: two data ports of 128 bits (AMD, PG338).
        host_cores: images whose host part can be done at the same time.
    """

    host_ms: float
    layer_cycles: float
    memory_gbytes: float
    port_bytes: float = 32.0
    host_cores: int = 4


def array_cycles(work: Work, architecture: Architecture) -> int:
    """Steps of the array for one node.

    With channel augmentation a layer of fewer input channels than ICP takes as many pixels of the
    kernel's row at a time as fit beside each other. A depthwise convolution has half the pixels in
    parallel and one input channel an output (Vailakis 2022, section 6.2). Pools and additions go
    through PP pixels x ICP channels, a step an element of their window.
    """
    parallel = architecture.parallelism
    height, width, outputs = work.output
    rows, columns = work.window
    pixels = ceil(height * width / parallel.pixel)
    if work.kind in _PRODUCTS:
        channels, lanes = work.inputs[2], parallel.input_channel
        if architecture.options.channel_augmentation and channels < lanes:
            steps = rows * ceil(columns * channels / lanes)
        else:
            steps = rows * columns * ceil(channels / lanes)
        return pixels * steps * ceil(outputs / parallel.output_channel)
    if work.kind is Kind.DEPTHWISE:
        pixels = ceil(height * width / max(1, parallel.pixel // 2))
    elements = work.inputs[2] // outputs if work.kind is Kind.ADD else rows * columns
    return pixels * elements * ceil(outputs / parallel.input_channel)


def node_cycles(work: Work, architecture: Architecture, timing: Timing, busy: int = 1) -> float:
    """Cycles of general logic that a node takes while so many cores are busy."""
    array = array_cycles(work, architecture)
    if not architecture.dsp_double_rate:
        array *= 2  # as many slices make half the products
    moved = work.bytes / bytes_a_cycle(architecture, timing, busy)
    return max(array, moved) + timing.layer_cycles


def bytes_a_cycle(architecture: Architecture, timing: Timing, busy: int) -> float:
    """What one of so many busy cores moves in a cycle."""
    shared = timing.memory_gbytes * 1e3 / architecture.clock_mhz / busy
    return min(timing.port_bytes, shared)


def core_ms(
    works: Sequence[Work], architecture: Architecture, timing: Timing, busy: int = 1
) -> float:
    """Milliseconds that a core takes for one image."""
    cycles = sum(node_cycles(work, architecture, timing, busy) for work in works)
    return cycles / architecture.clock_mhz / 1e3


def latency_ms(works: Sequence[Work], architecture: Architecture, timing: Timing) -> float:
    """Of one image, by one thread, all else idle."""
    return timing.host_ms + core_ms(works, architecture, timing)


def images_a_second(
    works: Sequence[Work], architecture: Architecture, timing: Timing, threads: int
) -> float:
    """Throughput of one device with so many threads, each with one image under way.

    A thread is either with its host part or on a core; the smallest of what threads, cores and the
    processor can do is what comes out (the bounds of a closed queueing network). Real threads meet
    at random, so the published processor needs a few more of them for its best.

    Raises:
        RecipeError: no thread.
    """
    if threads < 1:
        raise RecipeError(f"expected one thread or more, got {threads}", where="threads")
    busy = min(threads, architecture.cores)
    core = core_ms(works, architecture, timing, busy)
    bounds = [threads / (timing.host_ms + core), busy / core]
    if timing.host_ms:
        bounds.append(timing.host_cores / timing.host_ms)
    return 1e3 * min(bounds)


@dataclass(frozen=True)
class LayerTime:
    """Where the time of one image goes.

    Attributes:
        array, memory, total: cycles of general logic.
        utilization: share of the array's products in the total.
    """

    name: str
    kind: str
    macs: int
    array: int
    memory: float
    total: float
    utilization: float


def layer_times(
    works: Sequence[Work], architecture: Architecture, timing: Timing, busy: int = 1
) -> tuple[LayerTime, ...]:
    """Every node's cycles while so many cores are busy."""
    peak = architecture.parallelism.operations / 2
    rows = []
    for work in works:
        total = node_cycles(work, architecture, timing, busy)
        rows.append(
            LayerTime(
                work.name,
                str(work.kind),
                work.macs,
                array_cycles(work, architecture),
                work.bytes / bytes_a_cycle(architecture, timing, busy),
                total,
                work.macs / (total * peak),
            )
        )
    return tuple(rows)


def works_of(compiled: Compiled) -> tuple[Work, ...]:
    """The work of a network that runs on the engine as one part.

    Raises:
        GraphError: the processor does some of it, of whose time nothing has been printed.
    """
    if compiled.outside:
        first = compiled.outside[0]
        raise GraphError(
            f"{len(compiled.outside)} of its nodes run on the processor beside the engine, of "
            f"whose time nothing is known; the first is {first.node.source}: {first.reasons[0]}",
            where=compiled.graph.name,
            hint="`bitwright dpu compile` shows all of them",
        )
    return work_of(compiled.on_engine)
