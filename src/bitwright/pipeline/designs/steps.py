# SPDX-License-Identifier: Apache-2.0
"""What can be done with a design folder: map, simulate, implement, compare, report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from bitwright.base.arrays import read_array
from bitwright.base.errors import DataError, GraphError, RecipeError
from bitwright.base.files import atomic_write
from bitwright.base.folders import remove_folder
from bitwright.base.memory import room_for
from bitwright.base.nouns import IMAGES, Noun, noun_of
from bitwright.base.progress import Progress, no_progress
from bitwright.base.version import __version__
from bitwright.ir import IntArray, load_graph, print_graph, random_feeds
from bitwright.ir.footprint import frames_within
from bitwright.ir.levels import check_levels
from bitwright.pipeline.designs.folder import Design, expected_outputs
from bitwright.pipeline.diff.results import DiffReport, Stage, StageResult
from bitwright.pipeline.recipe_hardware import HardwareSection
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import EngineResult, MapResult, SimulateResult
from bitwright.report.record import Report, SummaryRow

MAP, SIMULATE, IMPLEMENT, REPORT = "map", "simulate", "implement", "report"


class ProofResult(SimulateResult):
    """What the step simulate of a run has found; without metrics, since labels are unknown.

    Attributes:
        real: frames are of data, not random.
    """

    real: bool


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _alone(step: Callable[Concatenate[Design, _P], _T]) -> Callable[Concatenate[Design, _P], _T]:
    """The function holds the folder while it works in it: two steps of one folder would mix."""

    @wraps(step)
    def holding(design: Design, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with design.alone():
            return step(design, *args, **kwargs)

    return holding


@_alone
def map_design(design: Design, progress: Progress = no_progress) -> Path:
    """The hardware graph and its RTL, proven equal to the graph; gives the step's folder.

    Raises:
        TargetError: it does not fit its target, or cannot be as fast as asked.
        ModelError: an operation has no hardware.
    """

    def make(folder: Path) -> None:
        from bitwright.pipeline.steps.map import map_network

        wanted = design.settings.hardware
        if wanted.kind == "engine":
            from bitwright.pipeline.steps.map_engine import map_engine

            map_engine(design.graph, wanted, design.frames(), folder, progress, chosen=False)
        else:
            map_network(design.graph, wanted, design.frames(), folder, progress)
        for later in (SIMULATE, IMPLEMENT, REPORT):  # they were of another design
            remove_folder(design.folder / later)

    return design.step(MAP, _facts(design, MAP), make)


def _needs_dataflow(design: Design, name: str) -> None:
    """Raises RecipeError for a design of another kind: there is no hardware graph of it."""
    kind = design.settings.hardware.kind
    if kind != "dataflow":
        raise RecipeError(
            f"a design of kind {kind} has no step {name!r}: there is no hardware graph of it",
            where="hardware.kind",
            hint="`bitwright simulate` compares the engine's RTL with the integer graph",
        )


def _facts(design: Design, name: str) -> dict[str, Any]:
    """What a step depends on, besides the graph."""
    hardware, wanted = design.hardware_facts(), design.kept_settings
    if name == MAP:
        return hardware
    if name == SIMULATE:
        return {
            "hardware": hardware,
            "simulate": wanted.simulate.model_dump(mode="json"),
            "seed": wanted.seed,
            "frames": design.frames_digest(),
        }
    return {
        "hardware": hardware,
        "implement": design.settings.implement.facts(),
        "host": design.host and design.host.model_dump(mode="json"),
    }


def done_here(design: Design, name: str) -> Path | None:
    """The folder of a step, if it was done here for the settings as they are."""
    return design.done(name, _facts(design, name))


@_alone
def simulate_design(design: Design, progress: Progress = no_progress) -> Path:
    """The RTL simulated on the design's frames, and again with stalls and behind a reset.

    Raises:
        MismatchError: a value or the rate differs: a bug.
        ToolError: no simulation is possible here.
    """
    mapped = map_design(design, progress)

    def make(folder: Path) -> None:
        from bitwright.pipeline.steps.simulate import prove_mapped, write_performance

        feeds = design.frames()
        result, _, clock_mhz = prove_mapped(
            mapped, design.graph, feeds, expected_outputs(design.graph, feeds),
            design.settings.simulate, design.settings.seed, progress,
        )  # fmt: skip
        ProofResult(**dict(result), real=design.levels is not None).save(folder)
        write_performance(result, clock_mhz, folder)

    return design.step(SIMULATE, _facts(design, SIMULATE), make)


@_alone
def implement_design(design: Design, progress: Progress = no_progress) -> Design:
    """Synthesis, place and route, bitstream: ``implement/implement.json`` of the folder.

    Where a rate is asked for and the clock that is reached does not give it, the folding is
    searched again for that clock (`pipeline.steps.planning`), and what had been simulated is
    simulated again.

    Returns:
        The design as the folder now holds it: its settings say for which clock it is folded.

    Raises:
        TargetError: it does not fit.
        ToolError: a tool is missing or failed.
    """
    from bitwright.build.implement import RESULT, read_result
    from bitwright.pipeline.steps.planning import (
        MOST_SEARCHES,
        first_that_is_kept,
        searched_again,
        searching_words,
    )

    if design.settings.hardware.kind == "engine":  # it has no folding to search again
        _implemented(design, progress, searching=False)
        return design
    proven, was_done = (done_here(design, name) is not None for name in (SIMULATE, IMPLEMENT))
    for left in reversed(range(MOST_SEARCHES + 1)):
        made = _implemented(design, progress, searching=left > 0)
        mapped, found = load_result(MapResult, design.folder / MAP), read_result(made / RESULT)
        ended = left == 0 or (was_done and found.missed_mhz is None)
        plans = [] if ended else searched_again(design.settings.hardware, mapped, found)
        if not plans:
            break
        progress(searching_words(plans[0], mapped, found), 0, 0)

        def attempt(plan: HardwareSection, design: Design = design) -> Design:
            settings = design.settings.model_copy(update={"hardware": plan})
            faster = replace(design, settings=settings)
            map_design(faster, progress)
            return faster

        faster = first_that_is_kept(plans, attempt)
        if faster is None:
            shutil.rmtree(made)  # without a bitstream, which it is to have at the clock it reaches
            _implemented(design, progress, searching=False)
            break
        design, was_done = faster, False
        design.save_settings()
        if proven:
            simulate_design(design, progress)
    return design


def _implemented(design: Design, progress: Progress, *, searching: bool) -> Path:
    mapped = map_design(design, progress)

    def make(folder: Path) -> None:
        from bitwright.pipeline.steps.implement import implement_network

        wanted = design.settings
        implement_network(
            mapped, design.graph, design.host, wanted.hardware, wanted.implement, folder, progress,
            searching=searching,
        )  # fmt: skip

    return design.step(IMPLEMENT, _facts(design, IMPLEMENT), make)


@_alone
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
        GraphError: the edges of one of the graphs take more memory than a stranger's may.
    """
    from bitwright.hw.dialect import HARDWARE as DIALECT
    from bitwright.pipeline.diff.hardware import against_graph, against_rtl
    from bitwright.pipeline.steps.map import HARDWARE, RTL

    _needs_dataflow(design, "diff")
    if until not in (Stage.HARDWARE, Stage.RTL):
        raise RecipeError(
            f"a design folder cannot be compared up to {until!r}",
            where="--until",
            hint=f"{Stage.HARDWARE} or {Stage.RTL}: the model in torch is not here",
        )
    where = str(design.folder)
    frames_within(design.graph, 1, room_for(chosen=False), where, edges=True)
    frame, source = _frame(design, index, file)
    folder = map_design(design, progress)
    hardware = load_graph(folder / HARDWARE, {"hardware": DIALECT}, chosen=True)
    frames_within(hardware, 1, room_for(chosen=False), where, edges=True)  # windows are larger
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
        origin = "random" if design.levels is None else "real"
        chosen = {edge: values[index : index + 1] for edge, values in frames.items()}
        return chosen, f"{origin} frame {index}"
    edge = design.graph.only_input
    kind = design.graph.types[edge]
    try:
        array = read_array(file)
        return {edge: check_levels(edge, kind, array[np.newaxis])}, str(file)
    except (DataError, GraphError) as error:
        raise DataError(
            f"holds no levels of one frame: {error.message}",
            where=str(file),
            hint=f"write integers {kind.shape} with numpy.save",
        ) from error


@_alone
def report_design(design: Design, progress: Progress = no_progress) -> Path:
    """One page and one JSON of what has been done; the folder holds ``report.html``.

    Raises:
        BitwrightError: as `map_design`.
    """
    mapped = map_design(design, progress)
    done = {name: _facts(design, name) for name in (SIMULATE, IMPLEMENT) if done_here(design, name)}

    def write(folder: Path) -> None:
        from bitwright.pipeline.steps.summary import PAGE, RECORD
        from bitwright.report.page import markdown_summary, render_page

        report = _report(design, mapped)
        atomic_write(folder / RECORD, report.model_dump_json(indent=1) + "\n")
        atomic_write(folder / PAGE, render_page(report))
        atomic_write(folder / "summary.md", markdown_summary(report))

    facts = {"hardware": design.hardware_facts(), "done": done,
             "settings": design.kept_settings.model_dump(mode="json")}  # fmt: skip
    return design.step(REPORT, facts, write)


def proof_of(design: Design) -> ProofResult | None:
    """What `simulate_design` has found; None if it has not been done here for these settings."""
    folder = done_here(design, SIMULATE)
    return None if folder is None else load_result(ProofResult, folder)


def summary_of(design: Design) -> tuple[SummaryRow, ...]:
    """Every figure that is there, of the settings as they are."""
    from bitwright.build.implement import RESULT, read_result
    from bitwright.pipeline.steps.results_run import Results
    from bitwright.pipeline.steps.summary import summary_rows

    done = done_here(design, IMPLEMENT)
    kind = design.settings.hardware.kind
    mapped: dict[str, Any] = (
        {"engine": load_result(EngineResult, design.folder / MAP)}
        if kind == "engine"
        else {"map": load_result(MapResult, design.folder / MAP)}
    )
    found = Results(
        **mapped,
        simulate=proof_of(design),
        implement=None if done is None else read_result(done / RESULT),
        inputs=_noun(design),
    )
    return tuple(row for row in summary_rows(found) if row.figure is not None)


def _noun(design: Design) -> Noun:
    """What the network's inputs are called, where the folder says it."""
    return IMAGES if design.host is None else noun_of(design.host.inputs)


def proof_words(proof: ProofResult) -> str:
    """What has been proven, in a sentence."""
    return proof.words("real frames" if proof.real else "random frames")


def _report(design: Design, mapped: Path) -> Report:
    proof = proof_of(design)
    facts = {"graph": design.graph.digest, "bitwright": __version__}
    return Report(
        name=design.graph.name,
        description="A design of an integer graph",
        bitwright=__version__,
        summary=summary_of(design),
        stages=(),
        quality=(),
        proof=() if proof is None else (proof_words(proof),),
        inputs=_noun(design).many,
        recipe=design.kept_settings.model_dump_json(indent=1),
        graph=print_graph(design.graph),
        **_hardware_of(design, mapped, proof, facts),
    )


def _hardware_of(
    design: Design, mapped: Path, proof: ProofResult | None, facts: dict[str, str]
) -> dict[str, Any]:
    """What the page says of the hardware, by its kind."""
    from bitwright.pipeline.steps.report import device_facts
    from bitwright.pipeline.steps.report_engine import engine_fields

    if design.settings.hardware.kind == "engine":
        made = load_result(EngineResult, mapped)
        fields = engine_fields(mapped, design.settings.hardware.target)
        cycles = made.cycles if proof is None else proof.interval
        return {**fields, "interval": cycles, "clock_mhz": made.clock_mhz, "facts": facts}
    result = load_result(MapResult, mapped)
    parts = result.partition
    marks = {} if proof is None else proof.high_water
    return {
        "blocks": result.blocks,
        "fifos": tuple(
            fifo.model_copy(update={"high_water": marks.get(fifo.instance)})
            for fifo in result.fifos
        ),
        "edges": result.edges,
        "interval": result.interval if proof is None else proof.interval,
        "clock_mhz": result.rate_clock_mhz,
        "lut_kind": result.lut_kind,
        "capacity": result.capacity,
        "target": result.target,
        "facts": facts | (device_facts(parts, result.target, _noun(design)) if parts else {}),
    }
