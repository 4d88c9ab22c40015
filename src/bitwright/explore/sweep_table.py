# SPDX-License-Identifier: Apache-2.0
"""Tables and plot of a sweep: means over seeds with their standard errors, then every point."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, TypeAdapter

from bitwright.base.described import Described
from bitwright.base.records import Finite
from bitwright.base.statistics import mean_of
from bitwright.explore.sweep_axes import Axis, SweepPoint, short, shown
from bitwright.jobs import JobResult
from bitwright.report.scatter import Point, Scatter
from bitwright.report.table import Column, Kind, Table, Value
from bitwright.report.table_page import Section

SEED = "seed"
_SHARE = "share"
#: Of these the first that there is, is drawn.
_DRAWN = ("RTL", "integer graph", "quantized", "float")
#: Beyond this ratio of largest to smallest an axis is logarithmic.
_WIDE = 20.0
# Figures of a pipeline in the order it makes them.
_ORDER = ("teacher", "float", "calibrated", "quantized", "integer graph", "RTL")
_ABOUT = {
    "calibrated": "quantized after training only, before training in few bits",
    "quantized": "the integers, after training in few bits",
}


#: Columns that are no figures and no axes.
_OTHERS = ("seeds", "seconds", "attempts", "run", "failure")


class _Figure(Described):
    value: Finite
    unit: str


class _Figures(Described):
    figures: dict[str, _Figure]


def kind_of(axes: Sequence[Axis]) -> TypeAdapter[Any]:
    """What the job of a point gives back: figures, none of which is called as another column is."""
    taken = {*_OTHERS, *(axis.key for axis in axes)}

    def checked(found: _Figures) -> _Figures:
        if not taken.isdisjoint(found.figures):
            raise ValueError("a figure is called as another column of the table is")
        return found

    return TypeAdapter(Annotated[_Figures, AfterValidator(checked)])


@dataclass(frozen=True)
class Outcome:
    """A point and what came of it."""

    point: SweepPoint
    result: JobResult

    @property
    def figures(self) -> Mapping[str, Mapping[str, Any]]:
        """Label -> value, unit and source; empty if the point failed."""
        if self.result.failure is not None:
            return {}
        found: Mapping[str, Mapping[str, Any]] = self.result.value["figures"]
        return found


def sections_of(axes: Sequence[Axis], outcomes: Sequence[Outcome]) -> list[Section]:
    """The table of means with the plot, and the table of all points."""
    labels = _labels(outcomes)
    grouped = [axis for axis in axes if axis.key != SEED]
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(json.dumps(outcome.point.without(SEED)), []).append(outcome)
    return [
        Section(
            _means(axes, grouped, list(groups.values()), labels, outcomes),
            _plots(grouped, list(groups.values()), labels),
        ),
        Section(_points(axes, labels, outcomes)),
    ]


def _means(
    axes: Sequence[Axis],
    grouped: Sequence[Axis],
    groups: Sequence[Sequence[Outcome]],
    labels: Mapping[str, str],
    outcomes: Sequence[Outcome],
) -> Table:
    has_seeds = any(axis.key == SEED for axis in axes)
    columns = [_axis_column(axis) for axis in grouped]
    if has_seeds:
        columns.append(Column("seeds", "seeds", Kind.NUMBER, digits=0))
    columns += [_figure_column(label, unit) for label, unit in labels.items()]
    rows: list[dict[str, Value]] = []
    for group in groups:
        row: dict[str, Value] = _settings(group[0].point, grouped)
        if has_seeds:
            row["seeds"] = sum(1 for outcome in group if outcome.figures)
        for label in labels:
            values = [float(o.figures[label]["value"]) for o in group if label in o.figures]
            row[label] = mean_of(values) if values else None
        rows.append(row)
    notes = []
    if has_seeds:
        notes.append("\u00b1 is the standard error of the mean over seeds.")
    failed = sum(1 for outcome in outcomes if outcome.result.failure is not None)
    if failed:
        notes.append(f"{failed} of {len(outcomes)} points failed: see the table of points.")
    return Table("Results", tuple(columns), tuple(rows), tuple(notes))


def _points(axes: Sequence[Axis], labels: Mapping[str, str], outcomes: Sequence[Outcome]) -> Table:
    columns = [_axis_column(axis) for axis in axes]
    columns += [_figure_column(label, unit) for label, unit in labels.items()]
    columns += [
        Column("seconds", "seconds", Kind.NUMBER, digits=1, about="of the point's last process"),
        Column("attempts", "attempts", Kind.NUMBER, digits=0, about="0: done by an earlier call"),
        Column("run", "run directory", about="below `points`"),
        Column("failure", "failure"),
    ]
    rows: list[dict[str, Value]] = []
    for outcome in outcomes:
        result = outcome.result
        row: dict[str, Value] = _settings(outcome.point, axes)
        row |= {label: figure["value"] for label, figure in outcome.figures.items()}
        row |= {"seconds": result.seconds, "attempts": result.attempts}
        row["run"] = outcome.point.folder
        row["failure"] = None if result.failure is None else result.failure.reason
        rows.append(row)
    return Table("Points", tuple(columns), tuple(rows))


def _labels(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Every figure that a point has, with its unit, accuracies first."""
    units = {
        label: str(figure["unit"])
        for outcome in outcomes
        for label, figure in outcome.figures.items()
    }
    ordered = [label for stage in _ORDER for label in units if _stage(label) == stage]
    return {label: units[label] for label in (*ordered, *(x for x in units if x not in ordered))}


def _axis_column(axis: Axis) -> Column:
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in axis.values)
    return Column(axis.key, axis.key, Kind.NUMBER if numeric else Kind.TEXT)


def _stage(label: str) -> str:
    """Of a label such as ``accuracy, RTL`` the part that says where it was measured."""
    metric, _, stage = label.rpartition(", ")
    return stage if metric else ""


def _figure_column(label: str, unit: str) -> Column:
    about = _ABOUT.get(_stage(label), "")
    if unit == _SHARE:
        return Column(label, label, Kind.SHARE, about=about)
    return Column(label, label, Kind.NUMBER, "" if unit == "count" else unit, about=about)


def _settings(point: SweepPoint, axes: Sequence[Axis]) -> dict[str, Value]:
    given = dict(point.settings)
    return {axis.key: _cell(given[axis.key]) for axis in axes}


def _cell(value: Any) -> Value:
    return value if isinstance(value, str | int | float | bool) else shown(value)


def _plots(
    axes: Sequence[Axis], groups: Sequence[Sequence[Outcome]], labels: Mapping[str, str]
) -> tuple[Scatter, ...]:
    """The task's metric along the first numeric axis; the other axes make the series."""
    found = (name for stage in _DRAWN for name in labels if _stage(name) == stage)
    label = next(found, None)
    if label is None:
        return ()
    along = next((axis for axis in axes if _axis_column(axis).kind is Kind.NUMBER), None)
    times = 100 if labels[label] == _SHARE else 1
    points = []
    for number, group in enumerate(groups, 1):
        values = [times * float(o.figures[label]["value"]) for o in group if label in o.figures]
        if not values:
            continue
        settings = dict(group[0].point.settings)
        x = number if along is None else settings[along.key]
        others = [
            f"{short(axis.key)}={shown(settings[axis.key])}" for axis in axes if axis is not along
        ]
        name = ", ".join(others) or label
        mean = mean_of(values)
        mark = name if along is None else f"{mean.value:.2f}"
        points.append(Point(mark, name, float(x), mean.value, mean.error))
    if not points:
        return ()
    title = label if along is None else f"{label} by {along.key}"
    xs = [point.x for point in points]
    wide = min(xs) > 0 and max(xs) / min(xs) >= _WIDE
    axis_name = "point" if along is None else along.key
    unit = "%" if labels[label] == _SHARE else labels[label]
    y_name = f"test images, {unit}".rstrip(", ")
    return (Scatter(title, axis_name, y_name, tuple(points), log_x=wide),)
