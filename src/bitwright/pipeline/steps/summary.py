# SPDX-License-Identifier: Apache-2.0
"""The summary table of a run: every figure that is there, in one order, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwright.base.figures import Figure, Source
from bitwright.base.files import atomic_write
from bitwright.pipeline.run import Run
from bitwright.pipeline.steps.rates import rate_rows
from bitwright.pipeline.steps.results import Metered, load_result, read_record_of
from bitwright.pipeline.steps.results_hardware import EngineResult, SimulateResult
from bitwright.pipeline.steps.results_run import Results
from bitwright.report.page import render_precision
from bitwright.report.record import Baseline, Energy, Report, SummaryRow

PAGE, RECORD, PRECISION_PAGE = "report.html", "report.json", "precision.html"


@dataclass(frozen=True)
class Summary:
    """The state of a run.

    Attributes:
        run_dir: the directory.
        rows: every figure that is there.
        seconds: finished step -> seconds that it took.
        report: the page, if it is written.
        proof: what the simulation compared; empty if it has not been done.
    """

    run_dir: Path
    rows: tuple[SummaryRow, ...]
    seconds: Mapping[str, float]
    report: Path | None
    proof: str = ""

    def figure(self, label: str) -> Figure | None:
        """The figure of one row; None if its step has not been done.

        Raises:
            KeyError: there is no such row.
        """
        return {row.label: row.figure for row in self.rows}[label]

    def to_json(self) -> dict[str, Any]:
        figures = {
            row.label: None if row.figure is None else row.figure.to_json() for row in self.rows
        }
        return {
            "run_dir": str(self.run_dir),
            "figures": figures,
            "seconds": dict(self.seconds),
            "report": None if self.report is None else str(self.report),
            "proof": self.proof,
        }


def write_precision_page(run: Run, name: str) -> None:
    """Beside the steps, a page of a training in low precision, as soon as it is over."""
    found = Results.load({"train": run.folder_of("train")}) if run.is_fresh("train") else None
    if found is not None and found.train is not None and found.train.precision:
        page = render_precision(found.train.precision, f"{name}: training in low precision")
        atomic_write(run.folder / PRECISION_PAGE, page)


def summarise(run: Run) -> Summary:
    """What a run directory holds."""
    folders = {step.name: run.folder_of(step.name) for step in run.steps if run.is_fresh(step.name)}
    seconds = {name: record.seconds for name in folders if (record := run.record(name)) is not None}
    found, proof = Results.load(folders), ""
    if "simulate" in folders:
        proof = load_result(SimulateResult, folders["simulate"]).words(found.noun.many)
    if "report" in folders:
        rows = read_record_of(Report, folders["report"] / RECORD).summary
        return Summary(run.folder, rows, seconds, folders["report"] / PAGE, proof)
    return Summary(run.folder, summary_rows(found), seconds, None, proof)


def summary_rows(
    found: Results, energy: Energy | None = None, baselines: tuple[Baseline, ...] = ()
) -> tuple[SummaryRow, ...]:
    """The table that `build` ends with and the report begins with."""
    rows = [*_quality(found), *_cycles(found), *_device(found), *rate_rows(found)]
    if energy is not None:
        rows.append(
            SummaryRow(label=f"energy {found.noun.each}", figure=energy.total, note="estimate")
        )
    rows += [
        SummaryRow(
            label=f"CPU, {entry.engine}, batch {entry.batch}",
            figure=entry.images_per_second,
            note=f"{entry.threads} thread{'s' if entry.threads > 1 else ''}",
        )
        for entry in baselines
    ]
    return tuple(rows)


def _quality(found: Results) -> list[SummaryRow]:
    """The task's metric that chooses, at every stage."""
    size = None
    if found.lower is not None:
        size = Figure(round(found.lower.size_bits / 8 / 1024, 2), "KiB", Source.MEASUREMENT)
    stages = {
        "float": found.train,
        "quantized": found.quantize,
        "integer graph": found.lower,
        "RTL": found.simulate,
    }

    def counted(result: Metered | None) -> Figure | None:
        figure = None if result is None else result.figure
        return None if figure is None else figure.of(found.noun)

    metric = found.metric
    rows = [
        SummaryRow(label=f"{metric}, {stage}", figure=counted(result))
        for stage, result in stages.items()
    ]
    if found.lower is not None and found.lower.labels_that_tie:
        note = f"{found.lower.labels_that_tie:,} labels not the model's: equal scores in float32"
        rows[2] = SummaryRow(label=rows[2].label, figure=rows[2].figure, note=note)
    if found.train is not None and found.train.shipped is not None:
        note = f"pretrained weights {found.train.shipped.name}, not trained in this run"
        rows[0] = SummaryRow(label=rows[0].label, figure=rows[0].figure, note=note)
    if found.teach is not None:
        rows.insert(0, SummaryRow(label=f"{metric}, teacher", figure=counted(found.teach)))
    return [*rows, SummaryRow(label="model size", figure=size, note=_size_note(found))]


def _size_note(found: Results) -> str:
    if found.lower is None:
        return ""
    return f"float32: {found.lower.float_bits / 8 / 1024:,.1f} KiB"


def _program(made: EngineResult, each: str) -> list[SummaryRow]:
    """What there is of a program for the engine."""
    rows = (
        (
            f"cycles {each}, predicted",
            Figure(made.cycles, "cycles", Source.MODEL),
            "exact" if made.exact else "an estimate: no C++ compiler for the exact model here",
        ),
        (
            "utilisation",
            Figure(round(made.utilisation, 4), "share", Source.MODEL),
            f"multiply-accumulates of what {made.engine} could do in that time",
        ),
        ("program", Figure(made.instructions, "instructions", Source.MEASUREMENT), ""),
        ("memory", Figure(round(made.memory_bytes / 1024, 1), "KiB", Source.MEASUREMENT), "in all"),
    )
    return [SummaryRow(label=label, figure=figure, note=note) for label, figure, note in rows]


def _cycles(found: Results) -> list[SummaryRow]:
    mapped, simulated = found.map, found.simulate
    if found.engine is not None:
        rows = _program(found.engine, found.noun.each)
        if simulated is not None:
            interval = Figure(simulated.interval, "cycles", Source.SIMULATION)
            label = f"cycles {found.noun.each}, simulated"
            rows.insert(1, SummaryRow(label=label, figure=interval))
        return rows
    model = None if mapped is None else Figure(mapped.interval, "cycles", Source.MODEL)
    real = None if simulated is None else Figure(simulated.interval, "cycles", Source.SIMULATION)
    latency = None if simulated is None else Figure(simulated.latency, "cycles", Source.SIMULATION)
    return [
        SummaryRow(label=f"cycles {found.noun.each}, predicted", figure=model),
        SummaryRow(label=f"cycles {found.noun.each}, simulated", figure=real),
        SummaryRow(label="latency", figure=latency),
    ]


def _device(found: Results) -> list[SummaryRow]:
    """Resources and Fmax by the tools; by the model where no tool has run."""
    rows = []
    for label in ("LUT", "FF", "BRAM", "DSP"):
        figure = None
        if found.implement is not None:
            figure = found.implement.figures.get(label.lower())
        elif found.map is not None:
            predicted = getattr(found.map.resources, label.lower())
            figure = Figure(round(predicted), "count", Source.MODEL)
        note = "" if found.map is None else f"of {getattr(found.map.capacity, label.lower()):,.0f}"
        if label == "LUT" and found.map is not None:
            note += _lut_note(found)
        rows.append(SummaryRow(label=label, figure=figure, note=note))
    fmax = None if found.implement is None else found.implement.figures.get("fmax_mhz")
    note = ""
    if found.implement is not None and fmax is None:
        note = "synthesis only: not placed and routed"
    elif found.implement is not None and found.implement.bitstream_clock_mhz is not None:
        note = f"the bitstream runs at {found.implement.bitstream_clock_mhz:g} MHz"
    return [*rows, SummaryRow(label="Fmax", figure=fmax, note=note)]


def _lut_note(found: Results) -> str:
    """Which LUTs are counted: those that the device fills, beside the cells of synthesis."""
    cells = None if found.implement is None else found.implement.figures.get("lut_cells")
    packed = found.map is not None and found.map.lut_kind == "packed"
    if not packed:
        return ", as synthesis counts"
    return ", packed" if cells is None else f", packed; {cells.value:,.0f} cells of synthesis"
