# SPDX-License-Identifier: Apache-2.0
"""What a run directory holds, as one table of labelled figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwright.figures import Figure, Source
from bitwright.run import Run
from bitwright.steps.results import (
    LowerResult,
    MapResult,
    QuantizeResult,
    SimulateResult,
    TrainResult,
    load_result,
)


@dataclass(frozen=True)
class Row:
    """One line: a figure and what it is."""

    name: str
    figure: Figure

    @property
    def text(self) -> str:
        """The figure as people read it."""
        return format_figure(self.figure)


@dataclass(frozen=True)
class Summary:
    """The state of a run.

    Attributes:
        run_dir: the directory.
        rows: every figure that is there.
        done: step -> seconds that it took.
        report: the page, if it is written.
    """

    run_dir: Path
    rows: tuple[Row, ...]
    done: dict[str, float]
    report: Path | None

    def figure(self, name: str) -> Figure:
        """The figure of one row.

        Raises:
            KeyError: there is no such row.
        """
        return {row.name: row.figure for row in self.rows}[name]

    def to_json(self) -> dict[str, Any]:
        return {
            "run_dir": str(self.run_dir),
            "figures": {row.name: row.figure.to_json() for row in self.rows},
            "seconds": self.done,
            "report": None if self.report is None else str(self.report),
        }


def format_figure(figure: Figure) -> str:
    """Value and unit for a table."""
    value = figure.value
    if figure.unit == "share":
        return f"{100 * value:.2f} %"
    if isinstance(value, int) or float(value).is_integer():
        text = f"{int(value):,}".replace(",", " ")
    else:
        text = f"{value:,.3g}" if abs(value) < 100 else f"{value:,.1f}"
        text = text.replace(",", " ")
    return f"{text} {figure.unit}".strip()


def summarise(run: Run) -> Summary:
    """Collect the figures of every fresh step."""
    folders = {step.name: run.folder_of(step.name) for step in run.steps if run.is_fresh(step.name)}
    rows: list[Row] = []
    for name, collect in _COLLECTORS.items():
        if name in folders:
            rows += collect(folders[name])
    seconds = {}
    for name in folders:
        record = run.record(name)
        seconds[name] = 0.0 if record is None else record.seconds
    page = folders["report"] / "report.html" if "report" in folders else None
    return Summary(run.folder, tuple(rows), seconds, page)


def _train(folder: Path) -> list[Row]:
    return [Row("accuracy, float", load_result(TrainResult, folder).accuracy)]


def _quantize(folder: Path) -> list[Row]:
    return [Row("accuracy, quantized", load_result(QuantizeResult, folder).accuracy)]


def _lower(folder: Path) -> list[Row]:
    result = load_result(LowerResult, folder)
    size = Figure(result.size_bits / 8 / 1024, "KiB", Source.MEASUREMENT)
    return [Row("accuracy, integer graph", result.accuracy), Row("model size", size)]


def _map(folder: Path) -> list[Row]:
    result = load_result(MapResult, folder)
    return [
        Row("cycles per image, predicted", Figure(result.interval, "cycles", Source.MODEL)),
        Row("latency, predicted", Figure(result.latency, "cycles", Source.MODEL)),
        *_resources("predicted", result.resources.to_json(), Source.MODEL),
    ]


def _simulate(folder: Path) -> list[Row]:
    result = load_result(SimulateResult, folder)
    cycles = Figure(result.interval, "cycles", Source.SIMULATION)
    different = Figure(result.differences, "values", Source.SIMULATION)
    return [
        Row("accuracy, RTL", result.accuracy),
        Row("RTL differs from graph in", different),
        Row("cycles per image, simulated", cycles),
        Row("latency, simulated", Figure(result.latency, "cycles", Source.SIMULATION)),
    ]


def _implement(folder: Path) -> list[Row]:
    from bitwright.build.implement import RESULT, read_result

    result = read_result(folder / RESULT)
    words = {"lut": "LUT", "ff": "FF", "bram": "BRAM", "dsp": "DSP", "fmax_mhz": "Fmax"}
    return [Row(words[k], result.figures[k]) for k in words if k in result.figures]


def _report(folder: Path) -> list[Row]:
    import json

    rows = json.loads((folder / "report.json").read_text(encoding="utf-8"))["derived"]
    return [
        Row(name, Figure(entry["value"], entry["unit"], Source(entry["source"])))
        for name, entry in rows.items()
    ]


def _resources(word: str, values: dict[str, float], source: Source) -> list[Row]:
    return [
        Row(f"{name.upper()}, {word}", Figure(round(value), "", source))
        for name, value in values.items()
    ]


_COLLECTORS = {
    "train": _train,
    "quantize": _quantize,
    "lower": _lower,
    "map": _map,
    "simulate": _simulate,
    "implement": _implement,
    "report": _report,
}
