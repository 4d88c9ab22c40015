# SPDX-License-Identifier: Apache-2.0
"""Which processor a network needs on a board: the fewest options, and the cores that are fastest.

Vailakis 2022 names this as future work: a design with only what DenseNet needs, and more cores, in
place of the prebuilt one. Every size, number of cores, channel augmentation and use of DSP slices
is tried (128 designs); resources are those of the tables, times those of the calibrated model. High
RAM usage is not tried: it is said to be faster, by how much nobody has printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from bitwright.base.errors import TargetError
from bitwright.base.figures import number
from bitwright.ir import Graph
from bitwright.papers.dpu.architecture import (
    MOST_CORES,
    MOST_LABELS,
    Architecture,
    load_architecture,
    plain,
    sizes,
)
from bitwright.papers.dpu.calibration import calibrated
from bitwright.papers.dpu.compiler import Compiled, compile_graph
from bitwright.papers.dpu.cycles import Timing, images_a_second, latency_ms, works_of
from bitwright.papers.dpu.nodes import FusedNode, Kind
from bitwright.papers.dpu.reasons import reasons
from bitwright.papers.dpu.resources import Board, Fit, fit, require_fit

#: Threads of each device: more than cores, so that none waits for its host.
THREADS = 8


@dataclass(frozen=True)
class Needs:
    """What a network cannot do without.

    Attributes:
        depthwise, average_pool: options of the core.
        softmax: asked for by the user; scores are enough to tell the label.
    """

    depthwise: bool
    average_pool: bool
    softmax: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, wanted in self.__dict__.items() if wanted)


@dataclass(frozen=True)
class Candidate:
    """A design that fits.

    Attributes:
        latency_ms: of one image.
        throughput: images a second of all devices.
    """

    fit: Fit
    latency_ms: float
    throughput: float

    @property
    def architecture(self) -> Architecture:
        return self.fit.architecture

    @property
    def options(self) -> tuple[str, ...]:
        """Options beyond the plain core."""
        options = self.architecture.options
        flags = ("channel_augmentation", "depthwise", "average_pool", "softmax")
        names = [name for name in flags if getattr(options, name)]
        return (*names, *(("low_dsp",) if options.dsp_usage == "low" else ()))

    @property
    def rank(self) -> tuple[float, int, float]:
        """Larger is better: throughput, then fewer options, then fewer LUTs."""
        return self.throughput, -len(self.options), -self.fit.need.lut


def full_architecture() -> Architecture:
    """The largest size with every option that a network may need."""
    return load_architecture("B4096").changed(depthwise=True, average_pool=True)


def needs_of(compiled: Compiled, *, softmax: bool = False) -> Needs:
    """The options of what runs on the engine.

    Raises:
        TargetError: softmax of more classes than its unit takes.
    """
    nodes = compiled.on_engine
    if softmax:
        _check_labels(compiled)
    return Needs(
        depthwise=_any(nodes, Kind.DEPTHWISE),
        average_pool=_any(nodes, Kind.AVERAGE_POOL),
        softmax=softmax,
    )


def _any(nodes: Sequence[FusedNode], kind: Kind) -> bool:
    return any(node.kind is kind for node in nodes)


def _check_labels(compiled: Compiled) -> None:
    scores = compiled.graph.types[compiled.graph.outputs[0]]
    if len(scores.shape) != 1 or scores.channels > MOST_LABELS:
        raise TargetError(
            f"scores of shape {scores.shape}: the softmax unit takes a vector of at most "
            f"{MOST_LABELS}",
            where=compiled.graph.name,
            hint="leave softmax out: the processor does it",
        )


def designs(needs: Needs, clock_mhz: float) -> Iterator[Architecture]:
    """Every design with what a network needs."""
    choices = product(sizes(), range(1, MOST_CORES + 1), (False, True), ("high", "low"))
    for size, cores, augmented, dsp_usage in choices:
        fields = plain(size).model_dump() | {"name": f"{cores}x{size}", "clock_mhz": clock_mhz}
        fields["cores"] = cores
        fields["options"] |= {
            "channel_augmentation": augmented,
            "depthwise": needs.depthwise,
            "average_pool": needs.average_pool,
            "softmax": needs.softmax,
            "dsp_usage": dsp_usage,
        }
        yield Architecture.model_validate(fields)


def search(
    graph: Graph,
    board: Board,
    *,
    clock_mhz: float = 300.0,
    softmax: bool = False,
    timing: Timing | None = None,
) -> tuple[Candidate, ...]:
    """The best design of every size that fits, the best of all first.

    Args:
        graph: an integer graph, all of which the engine can run.
        timing: of the model; None: the calibrated one.

    Raises:
        GraphError: the engine cannot run all of it.
        TargetError: no design fits; says what the smallest lacks.
    """
    constants = timing or calibrated()
    compiled = compile_graph(graph, full_architecture())
    needs = needs_of(compiled, softmax=softmax)
    works = works_of(compiled)  # which says what the engine cannot do, if anything
    runs: dict[str, bool] = {}
    best: dict[str, Candidate] = {}
    for design in designs(needs, clock_mhz):
        if design.size not in runs:
            runs[design.size] = not any(reasons(node, design) for node in compiled.on_engine)
        found = fit(design, board)
        if not found.fits or not runs[design.size]:
            continue
        candidate = Candidate(
            found,
            latency_ms(works, design, constants),
            board.devices * images_a_second(works, design, constants, THREADS),
        )
        known = best.get(design.size)
        if known is None or candidate.rank > known.rank:
            best[design.size] = candidate
    if not best:
        smallest = next(designs(needs, clock_mhz))
        require_fit(smallest, board)
        raise TargetError(
            f"no size that fits {board.target} runs all of it",
            where=graph.name,
            hint=f"{number(len(needs.names))} options are needed; take a larger device",
        )
    return tuple(sorted(best.values(), key=lambda c: c.rank, reverse=True))
