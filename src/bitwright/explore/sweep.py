# SPDX-License-Identifier: Apache-2.0
"""`bitwright sweep`: one recipe at every point of a grid, each point a run directory.

::

    OUT/plan.json      what is swept
    OUT/points/POINT/  a run directory, with the log and the result of its job
    OUT/sweep.md ..    tables and plot

A point is done by the same function as `bitwright build`, so what is finished stays finished, and a
change redoes what depends on it. Steps that several points share (the float network, mostly) are
done by one of them and taken over by the others.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwright.base.errors import BitwrightError, RecipeError, RunError
from bitwright.base.files import atomic_write, parse_json, regular_bytes
from bitwright.base.ownership import check_owner
from bitwright.base.places import kept_place
from bitwright.base.progress import Progress, no_progress
from bitwright.base.version import __version__
from bitwright.data import DataSplits
from bitwright.explore.changes import job_arguments, recipe_of
from bitwright.explore.sweep_axes import Axis, SweepPoint, shown
from bitwright.explore.sweep_table import Outcome, kind_of, sections_of
from bitwright.jobs import Job, JobResult, OnResult, check_options, run_jobs
from bitwright.jobs.job import RESULT
from bitwright.pipeline.api import Pipeline
from bitwright.pipeline.run import Run
from bitwright.pipeline.run_files import cannot_write, digest_of, locked, read_record
from bitwright.pipeline.steps.facts import facts_of
from bitwright.pipeline.steps.names import STEP_NAMES, step_folder
from bitwright.pipeline.steps.order import make_steps
from bitwright.pipeline.steps.preflight import check_model
from bitwright.pipeline.steps.results_run import Results
from bitwright.pipeline.steps.versions import versions
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.report.table import Table
from bitwright.report.table_page import write_report

NAME = "sweep"
SCHEMA = 1
_PLAN, _POINTS = "plan.json", "points"
_TELL_S = 10.0
#: What the process of a point imports, see `jobs.forks`.
PRELOAD = ("torch._dynamo", "bitwright.train.loop", "bitwright.quantize")


@dataclass(frozen=True)
class SweepRequest:
    """What a sweep is asked.

    Attributes:
        name: of the recipe.
        axes, points: see `parse_axes` and `grid`.
        out: the folder of the sweep.
        until: the last step of every point.
        workers, ray, threads, timeout_s, retries: see `run_jobs`.
        command: how to repeat it, for the report.
    """

    name: str
    axes: tuple[Axis, ...]
    points: tuple[SweepPoint, ...]
    out: Path
    until: str = "quantize"
    workers: int | None = None
    ray: str | None = None
    threads: int | None = None
    timeout_s: float | None = None
    retries: int = 2
    command: str = ""


@dataclass(frozen=True)
class Sweep:
    """What came of it.

    Attributes:
        table: a row for every point of the grid, means over seeds.
        results: of every point, in order.
        paths: the files written, by kind.
    """

    table: Table
    results: tuple[JobResult, ...]
    paths: Mapping[str, Path]

    @property
    def failures(self) -> tuple[JobResult, ...]:
        return tuple(result for result in self.results if result.failure is not None)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.table.to_json(),
            "points": [result.to_json() for result in self.results],
            "files": {kind: str(path) for kind, path in self.paths.items()},
        }


def run_sweep(
    request: SweepRequest,
    progress: Progress = no_progress,
    on_result: OnResult | None = None,
) -> Sweep:
    """Do every point that is not done, and write tables and plot.

    A point that fails is a row with its reason; the others go on.

    Raises:
        BitwrightError: before the first point starts: data or models that cannot be used, an
            output folder that holds something else or is in use, a cluster that does not answer.
    """
    if request.until not in STEP_NAMES:
        raise RecipeError(f"no step is called {request.until!r}", hint=", ".join(STEP_NAMES))
    how: dict[str, Any] = {
        name: getattr(request, name)
        for name in ("workers", "ray", "threads", "timeout_s", "retries")
    }
    check_options(**how)
    check_folder(request.out, request.name)
    with _held(request.out):
        jobs = _jobs(request, progress)
        _write_plan(request)
        start = time.monotonic()
        results = {
            result.name: result
            for result in run_jobs(jobs, **how, on_progress=progress, on_result=on_result)
        }
        seconds = time.monotonic() - start
        return _report(request, [results[p.title] for p in request.points], seconds)


def check_folder(out: Path, name: str) -> None:
    """A new or empty folder, or one with a sweep of this recipe.

    Raises:
        RunError: it is something else.
    """
    hint = "name another folder with --out"
    if not out.exists():
        return
    if not out.is_dir():
        raise RunError("is a file", where=str(out), hint=hint)
    try:
        plan = parse_json(regular_bytes(out / _PLAN))
        schema, owner, version = plan["schema"], plan["recipe"], plan["bitwright"]
    except FileNotFoundError:
        if any(not entry.name.startswith(".") for entry in out.iterdir()):
            raise RunError("is not empty and holds no sweep", where=str(out), hint=hint) from None
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"cannot be read: {error}", where=str(out / _PLAN), hint=hint) from error
    if schema != SCHEMA:
        raise RunError(f"is a sweep of Bitwright {version}", where=str(out), hint=hint)
    if owner != name:
        raise RunError(f"holds a sweep of the recipe {owner!r}", where=str(out), hint=hint)


def run_point(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The job of one point; ``folder`` is its run directory, among those of its neighbours.

    Raises:
        BitwrightError: as `Pipeline.build`.
    """
    pipeline = Pipeline(recipe_of(arguments), folder, _Teller(), reuse=folder.parent)
    summary = pipeline.build(arguments["until"])
    figures = {
        row.label: row.figure.to_json() for row in summary.rows if row.figure is not None
    } | _calibrated(folder)
    taken = {o.name: o.taken_from.name for o in pipeline.outcomes if o.taken_from is not None}
    return {"figures": figures, "seconds": dict(summary.seconds), "taken_from": taken}


def _calibrated(folder: Path) -> dict[str, Any]:
    """Accuracy of post-training quantization alone, which a summary leaves out."""
    place = folder / step_folder("quantize")
    found = Results.load({"quantize": place}).quantize if place.is_dir() else None
    return {} if found is None else {f"{found.metric}, calibrated": found.calibrated.to_json()}


class _Teller:
    """Progress as lines of the log, now and then."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        if time.monotonic() >= self._next:
            share = f" {done / total:.0%}" if total else ""
            print(f"{what}{share}", flush=True)
            self._next = time.monotonic() + _TELL_S


@contextmanager
def _held(out: Path) -> Iterator[None]:
    """The folder, for this process alone."""
    with ExitStack() as stack:
        stack.enter_context(kept_place(out))
        if (out / _POINTS).is_dir():
            check_owner(out / _POINTS)
        try:
            stack.enter_context(locked(out, "--out"))
        except OSError as error:
            raise cannot_write(out, error, "--out") from error
        yield


def _jobs(request: SweepRequest, progress: Progress) -> list[Job]:
    """A job for every point; those come first whose shared steps no earlier one does.

    Raises:
        BitwrightError: the data, the model or the policy of a point cannot be used.
    """
    jobs, rounds = [], []
    kind = kind_of(request.axes)
    seen: Counter[str] = Counter()
    for point, keys in zip(request.points, _keys(request, progress), strict=True):
        folder = request.out / _POINTS / point.folder
        arguments = {**job_arguments(point.recipe), "until": request.until}
        call = f"{run_point.__module__}:{run_point.__name__}"
        job = Job(point.title, call, arguments, folder, keys[request.until], kind)
        if job.finished() is not None and not _is_done(folder, request.until, keys):
            (folder / RESULT).unlink(missing_ok=True)  # its run directory is no longer there
        jobs.append(job)
        shared = digest_of([keys.get("teach"), keys["train"]])
        rounds.append(seen[shared])
        seen[shared] += 1
    return [jobs[index] for index in sorted(range(len(jobs)), key=lambda index: rounds[index])]


def _is_done(folder: Path, until: str, keys: Mapping[str, str]) -> bool:
    record = read_record(folder / step_folder(until))
    return record is not None and record.key == keys[until]


def _keys(request: SweepRequest, progress: Progress) -> list[dict[str, str]]:
    """Of every point the keys of its steps, once its data and model are known to be usable."""
    found: dict[int, dict[str, str]] = {}
    checked: set[str] = set()
    data: tuple[str, DataSplits] | None = None
    fields = [point.recipe.resolved() for point in request.points]
    sources = [digest_of([entry["data"], entry["task"], entry["seed"]]) for entry in fields]
    for number in sorted(range(len(fields)), key=lambda index: sources[index]):
        point, entry = request.points[number], fields[number]
        progress("checking the points", len(found), len(fields))
        work = Workspace(point.recipe)
        if data is not None and data[0] == sources[number]:
            work.data = data[1]
        kind = digest_of([entry[name] for name in ("data", "model", "task", "quant", "teacher")])
        try:
            data = (sources[number], work.data)
            folder = request.out / _POINTS / point.folder
            run = Run(folder, make_steps(work), facts_of(work))
            keys = {name: run.key(name) for name in _steps(work, request.until)}
            if kind not in checked and not _is_done(folder, request.until, keys):
                check_model(work)
                work.fresh_teachers()
                checked.add(kind)
            found[number] = keys
        except BitwrightError as error:
            where = point.title if error.where is None else f"{point.title}: {error.where}"
            raise type(error)(error.message, where=where, hint=error.hint) from error
    return [found[number] for number in range(len(fields))]


def _steps(work: Workspace, until: str) -> tuple[str, ...]:
    last = STEP_NAMES.index(until)
    return tuple(name for name in work.step_names if STEP_NAMES.index(name) <= last)


def _write_plan(request: SweepRequest) -> None:
    plan = {
        "schema": SCHEMA,
        "bitwright": __version__,
        "recipe": request.name,
        "until": request.until,
        "axes": {axis.key: list(axis.values) for axis in request.axes},
        "points": {point.title: point.folder for point in request.points},
    }
    atomic_write(request.out / _PLAN, json.dumps(plan, indent=1) + "\n")


def _report(request: SweepRequest, results: Sequence[JobResult], seconds: float) -> Sweep:
    outcomes = [
        Outcome(point, result) for point, result in zip(request.points, results, strict=True)
    ]
    sections = sections_of(request.axes, outcomes)
    threads = sorted({result.threads for result in results if result.threads})
    facts = {
        "command": request.command or "bitwright.explore.sweep.run_sweep",
        "recipe": request.name,
        "until": request.until,
        "swept": "; ".join(
            f"{axis.key} = {', '.join(map(shown, axis.values))}" for axis in request.axes
        ),
        "CPU threads a point": ", ".join(map(str, threads)) or "-",
        "machines": ", ".join(sorted({r.host for r in results if r.host})) or "-",
        "seconds": f"{sum(result.seconds for result in results):.0f} of work, "
        f"{seconds:.0f} of waiting for it in the last call",
        **{name: version for name, version in versions().items() if name in ("python", "torch")},
    }
    paths = write_report(
        request.out,
        NAME,
        title=f"{request.name}: {len(request.points)} points",
        lead=f"One recipe at every point of a grid, each up to {request.until}; means over seeds.",
        sections=sections,
        facts=facts,
    )
    return Sweep(sections[0].table, tuple(results), paths)
