# SPDX-License-Identifier: Apache-2.0
"""What can be done with a design folder: map, simulate, implement, compare, report."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.arrays import read_array
from bitwright.base.errors import DataError, MismatchError, RecipeError
from bitwright.base.figures import Figure, Source
from bitwright.base.files import atomic_write
from bitwright.base.progress import Progress, no_progress
from bitwright.base.version import __version__
from bitwright.ir import Graph, IntArray, load_graph, print_graph, random_feeds, save_graph
from bitwright.pipeline.designs.folder import Design, check_levels
from bitwright.pipeline.diff.results import DiffReport, Stage, StageResult
from bitwright.pipeline.steps.results import Result, load_result
from bitwright.pipeline.steps.results_hardware import MapResult
from bitwright.report.record import Report, SummaryRow

MAP, SIMULATE, IMPLEMENT, REPORT = "map", "simulate", "implement", "report"
_CHUNK, _CHUNK_CYCLES, _LEAST, _RATE = 100, 2_000_000, 3, 12
_CHECKED = 8
_BUG = "this is a bug in Bitwright; please report it with the design folder"


class ProofResult(Result):
    """The RTL, cycle by cycle, against the graph: every value of every output, by ``==``.

    Attributes:
        images: frames back to back; ``real``: of data, not random.
        stall_images: how many of them again, with each of ``stall_patterns`` on both sides.
        compared_values: over all runs.
        interval, latency: cycles an image in the steady state; of a lone image.
        high_water: FIFO -> most beats it ever held.
    """

    images: int
    real: bool
    stall_images: int
    stall_patterns: tuple[str, ...]
    compared_values: int
    interval: int
    latency: int
    high_water: dict[str, int]


def map_design(design: Design, progress: Progress = no_progress) -> Path:
    """The hardware graph and its RTL, proven equal to the graph; gives the step's folder.

    Raises:
        TargetError: it does not fit its target, or cannot be as fast as asked.
        ModelError: an operation has no hardware.
    """
    return design.step(
        MAP, design.settings.hardware.model_dump(mode="json"),
        lambda folder: _map(design, folder, progress),
    )  # fmt: skip


def _map(design: Design, folder: Path, progress: Progress) -> None:
    from bitwright.build.target import load_target
    from bitwright.hw import folding_of
    from bitwright.hw.tokens import check_tokens_if_fast
    from bitwright.pipeline.steps.map import (
        FOLDING,
        HARDWARE,
        RTL,
        choose_mapping,
        describe_mapping,
        require_equal,
    )
    from bitwright.rtl.emit import emit

    wanted, graph = design.settings.hardware, design.graph
    if wanted.devices > 1:
        raise RecipeError(
            "a design folder is built for one device",
            where="hardware.devices",
            hint="several devices need a recipe",
        )
    target = load_target(wanted.target)
    hardware = choose_mapping(graph, wanted, target, progress)
    progress("checking the hardware graph", 0, 0)
    frames = {edge: values[:_CHECKED] for edge, values in design.frames().items()}
    drawn = random_feeds(graph, _CHECKED, np.random.default_rng(design.settings.seed))
    for feeds in (frames, drawn):
        found = hardware.run(random_feeds(hardware, len(next(iter(feeds.values()))),
                                          np.random.default_rng(0)) | feeds)  # fmt: skip
        require_equal(graph, graph.run(feeds), found, "the hardware graph")
    run, unchecked = check_tokens_if_fast(hardware)
    save_graph(hardware, folder / HARDWARE)
    folding_of(hardware).save(folder / FOLDING)
    progress("writing the RTL", 0, 0)
    emit(hardware, folder / RTL)
    result = describe_mapping(hardware, target, wanted.clock_mhz)
    changes = {
        "checked_cycles": run.cycles if run else 0,
        "unchecked": unchecked,
    }
    result.model_copy(update=changes).save(folder)
    for later in (SIMULATE, IMPLEMENT, REPORT):  # they were of another design
        shutil.rmtree(design.folder / later, ignore_errors=True)


def simulate_design(design: Design, progress: Progress = no_progress) -> Path:
    """The RTL simulated on the design's frames, and again with stalls and behind a reset.

    Raises:
        MismatchError: a value or the rate differs: a bug.
        ToolError: no simulation is possible here.
    """
    mapped = map_design(design, progress)
    facts = {
        "hardware": design.settings.hardware.model_dump(mode="json"),
        "simulate": design.settings.simulate.model_dump(mode="json"),
        "seed": design.settings.seed,
    }
    return design.step(SIMULATE, facts, lambda folder: _prove(design, mapped, folder, progress))


def _prove(design: Design, mapped: Path, folder: Path, progress: Progress) -> None:
    from bitwright.pipeline.steps.map import RTL
    from bitwright.sim import Simulator, burst_stalls, compare, random_stalls

    predicted, settings = load_result(MapResult, mapped), design.settings
    feeds = design.frames()
    count = len(next(iter(feeds.values())))
    progress("compiling the simulation", 0, 0)
    simulator = Simulator.build(mapped / RTL, frames=count)
    ports = simulator.design
    expected = _run(design.graph, feeds)
    lanes = {port.name: port.spec.lanes for port in ports.outputs}
    high_water: dict[str, int] = {}
    compared = 0

    def run(chosen: IntArray, stalls: Any = None, reset_at: int | None = None) -> Any:
        nonlocal compared
        given = {p.name: feeds[e][chosen] for p, e in _named(ports.inputs, design.graph.inputs)}
        result = simulator.run(simulator.pack(given), len(chosen), stalls, reset_at=reset_at)
        wanted = {
            p.name: expected[e][chosen] for p, e in _named(ports.outputs, design.graph.outputs)
        }
        difference = compare(wanted, result.levels, lanes)
        if difference is not None:
            raise MismatchError(
                f"the simulated RTL gives other integers than the graph, image "
                f"{int(chosen[difference.frame])}: {difference}",
                where=f"simulation of {ports.top}, stalls: {result.stalls}",
                hint=_BUG,
            )
        for name, mark in result.fifo_high_water.items():
            if mark > result.fifo_depths[name]:
                raise MismatchError(
                    f"held {mark} beats, its depth is {result.fifo_depths[name]}", where=name
                )
            high_water[name] = max(high_water.get(name, 0), mark)
        compared += sum(values.size for values in wanted.values())
        return result

    size = max(_LEAST, min(_CHUNK, _CHUNK_CYCLES // predicted.interval))
    for start in range(0, count, size):
        progress("simulating", start, count)
        run(np.arange(start, min(start + size, count)))
    progress("simulating", count, count)
    rate = run(np.arange(_RATE) % count).interval
    if rate != predicted.interval:
        raise MismatchError(
            f"{rate} cycles an image in the steady state, {predicted.interval} predicted",
            where=f"simulation of {ports.top}",
            hint=_BUG,
        )
    latency = run(np.arange(1)).latency
    stalled = min(settings.simulate.stall_images, count)
    patterns = (
        random_stalls(settings.simulate.stall_probability, settings.seed + 1),
        burst_stalls(seed=settings.seed + 1),
    )
    told = []
    for position, pattern in enumerate(patterns):
        progress("simulating with random stalls", position, len(patterns))
        told.append(run(np.arange(stalled), pattern).stalls)
    progress("simulating a reset in mid-frame", 0, 0)
    run(np.arange(min(_LEAST, count)), reset_at=predicted.interval + predicted.interval // 2)
    ProofResult(
        images=count,
        real=design.levels is not None,
        stall_images=stalled,
        stall_patterns=tuple(told),
        compared_values=compared,
        interval=int(rate or 0),
        latency=latency,
        high_water=high_water,
    ).save(folder)


def _named(ports: Any, edges: tuple[str, ...]) -> Any:
    return zip(ports, edges, strict=True)


def _run(graph: Graph, feeds: Mapping[str, IntArray]) -> dict[str, IntArray]:
    """Outputs of many frames, by the executor; of the first ones by the definition, too."""
    from bitwright.ir.executor import Executor

    found = Executor(graph).run(dict(feeds))
    defined = graph.run({edge: values[:_CHECKED] for edge, values in feeds.items()})
    for edge in graph.outputs:
        if not np.array_equal(defined[edge], found[edge][:_CHECKED]):
            raise MismatchError("interpreter and executor disagree", where=f"edge {edge}")
    return {edge: found[edge] for edge in graph.outputs}


def implement_design(design: Design, progress: Progress = no_progress) -> Path:
    """Synthesis, place and route, bitstream; the folder holds ``implement.json``.

    Raises:
        TargetError: it does not fit.
        ToolError: a tool is missing or failed.
    """
    mapped = map_design(design, progress)
    facts = {
        "hardware": design.settings.hardware.model_dump(mode="json"),
        "implement": design.settings.implement.model_dump(mode="json"),
    }
    return design.step(
        IMPLEMENT, facts, lambda folder: _implement(design, mapped, folder, progress)
    )


def _implement(design: Design, mapped: Path, folder: Path, progress: Progress) -> None:
    from bitwright.build.implement import ImplementOptions, implement
    from bitwright.build.target import load_target
    from bitwright.pipeline.steps.map import RTL

    wanted = design.settings
    options = ImplementOptions(
        clock_mhz=wanted.hardware.clock_mhz,
        seeds=wanted.implement.seeds,
        timeout_s=wanted.implement.timeout_s,
    )
    target = load_target(wanted.hardware.target)
    implement(mapped / RTL, target, folder, options, progress)


def diff_design(
    design: Design,
    *,
    index: int = 0,
    file: Path | None = None,
    until: str = Stage.RTL,
    progress: Progress = no_progress,
) -> DiffReport:
    """One frame through graph, hardware graph and RTL, and the first value that differs.

    Args:
        index: which of the design's frames.
        file: a frame instead: ``.npy`` with levels of the graph's input.
        until: ``hardware`` or ``rtl``.

    Raises:
        RecipeError: another comparison; the network that was trained is not here.
        DataError: there is no such frame.
    """
    from bitwright.hw.dialect import HARDWARE as DIALECT
    from bitwright.pipeline.diff.hardware import against_graph, against_rtl
    from bitwright.pipeline.steps.map import HARDWARE, RTL

    if until not in (Stage.HARDWARE, Stage.RTL):
        raise RecipeError(
            f"a design folder cannot be compared up to {until!r}",
            where="--until",
            hint=f"{Stage.HARDWARE} or {Stage.RTL}: the model in torch is not here",
        )
    frame, source = _frame(design, index, file)
    folder = map_design(design, progress)
    hardware = load_graph(folder / HARDWARE, {"hardware": DIALECT})
    edges = design.graph.run(frame, edges=True)
    feeds = random_feeds(hardware, 1, np.random.default_rng(0)) | frame
    values = hardware.run(feeds, edges=True)
    progress("comparing", 0, 0)
    results: list[StageResult] = [against_graph(design.graph, hardware, edges, values)]
    if until == Stage.RTL:
        results.append(against_rtl(hardware, folder / RTL, values))
    return DiffReport(source, tuple(results))


def _frame(design: Design, index: int, file: Path | None) -> tuple[dict[str, IntArray], str]:
    if file is None:
        frames = design.frames()
        count = len(next(iter(frames.values())))
        if not 0 <= index < count:
            raise DataError(f"no frame {index}", where=str(design.folder), hint=f"0 to {count - 1}")
        kind = "random" if design.levels is None else "real"
        chosen = {edge: values[index : index + 1] for edge, values in frames.items()}
        return chosen, f"{kind} frame {index}"
    (edge,) = design.graph.inputs
    try:
        array = read_array(file)
        return {edge: check_levels(design.graph, edge, array[np.newaxis])}, str(file)
    except (DataError, ValueError) as error:
        reason = error.message if isinstance(error, DataError) else error
        raise DataError(
            f"holds no levels of one frame: {reason}",
            where=str(file),
            hint=f"write integers {design.graph.types[edge].shape} with numpy.save",
        ) from error


def report_design(design: Design, progress: Progress = no_progress) -> Path:
    """One page and one JSON of what has been done; the folder holds ``report.html``.

    Raises:
        BitwrightError: as `map_design`.
    """
    mapped = map_design(design, progress)
    made = [name for name in (SIMULATE, IMPLEMENT) if (design.folder / name / "key.json").is_file()]
    keys = {name: (design.folder / name / "key.json").read_text() for name in made}

    def write(folder: Path) -> None:
        from bitwright.pipeline.steps.summary import PAGE, RECORD
        from bitwright.report.page import markdown_summary, render_page

        report = _report(design, mapped)
        atomic_write(folder / RECORD, report.model_dump_json(indent=1) + "\n")
        atomic_write(folder / PAGE, render_page(report))
        atomic_write(folder / "summary.md", markdown_summary(report))

    facts = {"hardware": design.settings.hardware.model_dump(mode="json"), "done": keys}
    return design.step(REPORT, facts, write)


def proof_of(design: Design) -> ProofResult | None:
    """What `simulate_design` has found; None if it has not been done."""
    folder = design.folder / SIMULATE
    return load_result(ProofResult, folder) if (folder / "key.json").is_file() else None


def summary_of(design: Design) -> tuple[SummaryRow, ...]:
    """Every figure that is there."""
    from bitwright.build.implement import RESULT, read_result
    from bitwright.pipeline.steps.results_run import Results
    from bitwright.pipeline.steps.summary import summary_rows

    done = design.folder / IMPLEMENT
    found = Results(
        map=load_result(MapResult, design.folder / MAP),
        implement=read_result(done / RESULT) if (done / "key.json").is_file() else None,
    )
    rows = [row for row in summary_rows(found) if row.figure is not None]
    proof = proof_of(design)
    if proof is not None:
        simulated = (("cycles an image, simulated", proof.interval), ("latency", proof.latency))
        for place, (label, cycles) in enumerate(simulated):
            figure = Figure(cycles, "cycles", Source.SIMULATION)
            rows.insert(1 + place, SummaryRow(label=label, figure=figure))
    return tuple(rows)


def proof_words(proof: ProofResult) -> str:
    """What has been proven, in a line."""
    kind = "real" if proof.real else "random"
    return (
        f"RTL = integer graph: {proof.compared_values} values of {proof.images} {kind} frames "
        f"compared, {proof.stall_images} of them with random stalls on both sides, a reset in "
        "mid-frame: 0 differ"
    )


def _report(design: Design, mapped: Path) -> Report:
    result, proof = load_result(MapResult, mapped), proof_of(design)
    marks = {} if proof is None else proof.high_water
    return Report(
        name=design.graph.name,
        description="A design of an integer graph",
        bitwright=__version__,
        summary=summary_of(design),
        stages=(),
        quality=(),
        proof=() if proof is None else (proof_words(proof),),
        blocks=result.blocks,
        fifos=tuple(
            fifo.model_copy(update={"high_water": marks.get(fifo.instance)})
            for fifo in result.fifos
        ),
        edges=result.edges,
        interval=result.interval if proof is None else proof.interval,
        clock_mhz=result.rate_clock_mhz,
        lut_kind=result.lut_kind,
        capacity=result.capacity,
        target=result.target,
        facts={"graph": design.graph.digest, "bitwright": __version__},
        recipe=design.settings.model_dump_json(indent=1),
        graph=print_graph(design.graph),
    )
