# SPDX-License-Identifier: Apache-2.0
"""The searches as one call: subject, search, final figure, files. All files are written at the end.

No torch is imported until a search begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright.base.files import atomic_write, json_text
from bitwright.explore.subject import find_subject
from bitwright.report.scatter import Point, Scatter
from bitwright.report.svg import standalone
from bitwright.report.table_page import check_folder

if TYPE_CHECKING:
    from bitwright.base.progress import Progress
    from bitwright.explore.search.mixed_result import MixedResult

_KILOBYTE = 8000
_X_LABEL = {
    "size": "parameters, kB",
    "memory": "parameters and features of one image, kB",
    "bops": "million bit operations of one image",
}


@dataclass(frozen=True)
class SearchRequest:
    """What `bitwright search` is asked.

    Attributes:
        subject: run directory or model.
        budget: see `explore.search.goals`.
        out: folder for the files.
        candidates, activations: formats of weights and of features; None: the usual ones.
        data, weights, input_shape: see `find_subject`.
        metric: see `metric_for`.
        minimise: size, memory or bops, under an accuracy budget.
        images: for sensitivities and calibration.
        minutes: no new network is measured after this time.
        fold: fold batch norms first.
        seed: of the data.
    """

    subject: str
    budget: str
    out: Path
    candidates: str | None = None
    activations: str | None = None
    data: str | None = None
    weights: Path | None = None
    input_shape: tuple[int, int, int] | None = None
    metric: str | None = None
    minimise: str = "memory"
    images: int = 128
    minutes: float | None = None
    fold: bool = False
    seed: int = 0


@dataclass(frozen=True)
class SearchReport:
    """What came of it: the result, the final figures, the files."""

    result: MixedResult
    final: Mapping[str, float]
    final_float: Mapping[str, float]
    files: Mapping[str, Path] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.result.to_json(),
            "final": dict(self.final),
            "final_float": dict(self.final_float),
            "files": {name: str(path) for name, path in self.files.items()},
        }


def run_search(request: SearchRequest, progress: Progress) -> SearchReport:
    """Search a mixed-precision policy and write it, tables and plot into the folder.

    Files: ``policy.yaml``; ``search.md``, ``.csv`` and ``.json``; ``points.csv``,
    ``sensitivity.csv`` and ``front.svg``.

    Raises:
        BitwrightError: what is wrong with subject, budget, candidates or folder; then no file has
            been written.
    """
    from bitwright.explore.search.candidates import parse_candidates
    from bitwright.explore.search.goals import parse_budget, parse_cost

    goal, cost = parse_budget(request.budget), parse_cost(request.minimise)
    candidates = parse_candidates(request.candidates, request.activations)
    check_folder(request.out)
    subject = find_subject(
        request.subject,
        data=request.data,
        weights=request.weights,
        input_shape=request.input_shape,
        seed=request.seed,
    )
    from bitwright.explore.search.metrics import metric_for
    from bitwright.explore.search.mixed import Options, search_mixed
    from bitwright.quantize.ptq.calibration import calibrate

    metric = metric_for(subject, request.metric)
    model = subject.model
    if request.fold:
        from bitwright.quantize.ptq.folding import fold_batch_norms

        model = fold_batch_norms(model)
    options = Options(
        minimise=cost,
        images=request.images,
        calibration=request.images,
        seconds=None if request.minutes is None else 60 * request.minutes,
        base=subject.quant,
    )
    result = search_mixed(
        model, metric, subject.train, goal, candidates, options=options, progress=progress
    )
    progress("measuring the result", 0, 1)
    images = subject.train.take(range(min(request.images, len(subject.train))))
    chosen = calibrate(model, result.policy, images)
    report = SearchReport(result, subject.final(chosen), subject.final(subject.model))
    return replace(report, files=write_search(request.out, subject.name, report))


def write_search(folder: Path, name: str, report: SearchReport) -> dict[str, Path]:
    """Write all files of a search; the policy last."""
    result = report.result
    lines = [
        f"- {key}: {100 * value:.2f} % (float {100 * report.final_float.get(key, 0.0):.2f} %)"
        for key, value in report.final.items()
    ]
    heading, _, rest = result.to_markdown().partition("\n\n")
    parts = {
        "front.svg": front_svg(name, result),
        "sensitivity.csv": result.table.to_csv(),
        "points.csv": result.networks().to_csv(),
        "search.csv": result.layers().to_csv(),
        "search.md": "\n".join([f"{heading}: {name}", "", *lines, "", rest]),
        "search.json": json_text(report.to_json(), indent=1) + "\n",
        "policy.yaml": result.to_yaml(),
    }
    for file, text in parts.items():
        atomic_write(folder / file, text)
    return {file: folder / file for file in parts}


def front_svg(name: str, result: MixedResult, more: tuple[Point, ...] = ()) -> str:
    """Accuracy over cost of every network that was measured, as an SVG file by itself."""
    front = {point.chosen for point in result.front()}
    unit = 1e6 if result.cost.value == "bops" else _KILOBYTE
    points = []
    for point in result.points:
        series = "on the front" if point.chosen in front else "measured"
        label = ""
        if point.chosen == result.best.chosen:
            series, label = "chosen", "chosen"
        cost = point.cost(result.cost) / unit
        points.append(Point(label, series, cost, 100 * point.accuracy))
    order = ("on the front", "measured", "chosen")
    points.sort(key=lambda p: (order.index(p.series), p.x))
    best = max(100 * p.accuracy for p in result.points)
    # Far below the best a network is of no interest; it is drawn at the lower edge.
    floor = max(0.0, min(100 * result.best.accuracy, best) - 15)
    plot = Scatter(
        f"{name}: mixed precision, {result.goal}",
        _X_LABEL[result.cost.value],
        f"{result.metric}, %",
        (*points, *more),
        floor=floor,
        baseline=(f"float {100 * result.baseline:.2f}", 100 * result.baseline),
    )
    return standalone(plot.to_svg())
