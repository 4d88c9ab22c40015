# SPDX-License-Identifier: Apache-2.0
"""`bitwright study`: what each phase of distillation is worth, over seeds and widths, in one table.

The arms are those of quantization-aware knowledge distillation's own comparison: the float
student, post-training quantization, self-study, self-study with a tutor, and all three phases.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter

from bitwright.base.arrays import read_npz
from bitwright.base.errors import RecipeError, RunError
from bitwright.base.figures import Measured
from bitwright.base.plugins import own_code
from bitwright.base.progress import Progress, no_progress
from bitwright.base.records import Finite
from bitwright.base.source import code_key
from bitwright.base.statistics import mean_difference, mean_of, share_of
from bitwright.base.store import content_key
from bitwright.base.trust import module_folders
from bitwright.explore.changes import job_arguments, with_bits, with_seed
from bitwright.explore.measuring import Outcome
from bitwright.explore.study_jobs import ARMS, BASELINE, PTQ, RIGHT, SS_EQUAL
from bitwright.jobs import Job, JobResult, run_jobs
from bitwright.pipeline.recipe import Recipe
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.pipeline.steps.versions import versions
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.report.scatter import Point, Scatter
from bitwright.report.table import Column, Kind, Table, Value
from bitwright.report.table_page import Section, write_report
from bitwright.tasks.catalog import SHARE
from bitwright.train.config import PHASES


class _Arm(BaseModel):
    train: Finite
    test: Finite
    epochs: Annotated[int, Field(ge=0, lt=1 << 31)]


_Found = Mapping[tuple[int | None, int], JobResult]
"""Finished jobs by width and seed."""
_MOST = 1e100  # of a figure of an image
_JOBS = "bitwright.explore.study_jobs"
_VERSIONS = ("python", "torch", "numpy", "lightning-fabric")
_COLUMNS = (
    Column("bits", "formats", about="of weights / activations"),
    Column("arm", "arm"),
    Column("epochs", "epochs", Kind.NUMBER, about="of training in few bits"),
    Column("train", "training", Kind.SHARE, about="accuracy on the training images"),
    Column("test", "test", Kind.SHARE, about="accuracy on the test images"),
    Column(
        "float", "against float", Kind.POINTS, about="points above the same seed's float student"
    ),
    Column("ptq", "against PTQ", Kind.POINTS, about="points above the same seed's PTQ"),
)


@dataclass(frozen=True)
class StudyRequest:
    """What to compare.

    Attributes:
        recipe: has all three phases in ``train.quantized``.
        out: folder of the study; what is there already is not done again.
        seeds: how many, from 0.
        bits: widths of weights and activations instead of the recipe's own formats.
        arms: keys of `ARMS`.
        workers, ray, threads: as for `jobs.run_jobs`.
        command: shown with the table.
    """

    recipe: Recipe
    out: Path
    seeds: int = 5
    bits: tuple[int, ...] = ()
    arms: tuple[str, ...] = tuple(arm for arm in ARMS if arm != SS_EQUAL)
    workers: int | None = 1
    ray: str | None = None
    threads: int | None = None
    command: str = ""


@dataclass(frozen=True)
class StudyReport:
    """The table, one row an arm and width, and where it was written."""

    table: Table
    paths: Mapping[str, Path]
    failures: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table.to_json(),
            "files": {kind: str(path) for kind, path in self.paths.items()},
            "failures": list(self.failures),
        }


def run_study(request: StudyRequest, progress: Progress = no_progress) -> StudyReport:
    """Run the arms of every seed and width that are not there yet, and write the table.

    Raises:
        RecipeError: the recipe has not all phases, or an arm or width makes no sense.
        RunError: no seed came through.
        ToolError: the cluster does not answer.
    """
    _check(request)
    run = partial(run_jobs, workers=request.workers, ray=request.ray, threads=request.threads)
    recipe = request.recipe
    own = own_code(recipe.resolved(), module_folders(recipe.base_dir))
    code = content_key(code_key(_JOBS), own)
    base = [_float_job(request, seed) for seed in range(request.seeds)]
    progress("float networks", 0, len(base))
    floats = run(base, on_progress=_named(progress, "float networks"))
    jobs = {
        (bits, seed): _arms_job(request, bits, seed, f"{code} {floats[seed].value}")
        for bits in request.bits or (None,)
        for seed in range(request.seeds)
        if floats[seed].failure is None
    }
    made = run(list(jobs.values()), on_progress=_named(progress, "arms"))
    results = dict(zip(jobs, made, strict=True))
    failures = tuple(
        f"{result.name}: {result.failure.reason}"
        for result in (*floats, *results.values())
        if result.failure is not None
    )
    whole = {key: result for key, result in results.items() if result.failure is None}
    if not whole:
        raise RunError(
            f"no seed came through: {failures[0]}",
            where=str(request.out),
            hint="the log of each job lies in its folder; mend the reason and run this again",
        )
    return _report(request, whole, failures)


def _check(request: StudyRequest) -> None:
    phases = request.recipe.train.quantized
    missing = [name for name in PHASES if phases is None or getattr(phases, name) is None]
    if missing:
        raise RecipeError(
            f"a study compares all three phases, and {missing[0]} is not there",
            where="train.quantized",
            hint=f"give {', '.join(PHASES)}; `bitwright list recipes` names recipes that have them",
        )
    unknown = [arm for arm in request.arms if arm not in ARMS]
    if unknown or not request.arms:
        named = repr(unknown[0]) if unknown else "none"
        raise RecipeError(f"no such arm: {named}", hint=f"arms: {', '.join(ARMS)}")
    if request.seeds < 1:
        raise RecipeError(f"expected at least one seed, found {request.seeds}", where="--seeds")
    metric = Workspace(request.recipe).task.metric
    if metric.unit != SHARE:
        raise RecipeError(
            f"a study compares shares in percent, and {metric.name} is none",
            where="task",
            hint="put a metric of your own whose unit is share in front: task.metric",
        )
    for bits in request.bits:
        if not 1 <= bits <= 16:
            raise RecipeError(f"expected 1 to 16 bits, found {bits}", where="--bits")
        with_bits(request.recipe, bits)


def _float_job(request: StudyRequest, seed: int) -> Job:
    """Never found done: the run directory inside knows by itself what is fresh."""
    folder = request.out / f"seed-{seed}" / "float"
    arguments = job_arguments(with_seed(request.recipe, seed))
    call = f"{_JOBS}:train_float"
    return Job(f"seed {seed}, float", call, arguments, folder, version=uuid.uuid4().hex)


def _arms_job(request: StudyRequest, bits: int | None, seed: int, version: str) -> Job:
    recipe = with_seed(request.recipe, seed)
    name = "own" if bits is None else f"w{bits}a{bits}"
    arguments = {
        **job_arguments(recipe if bits is None else with_bits(recipe, bits)),
        "arms": list(request.arms),
        "version": version,
        "run": str((request.out / f"seed-{seed}" / "float" / "run").resolve()),
    }
    folder = request.out / f"seed-{seed}" / name
    kind = _kind_of(request.arms)
    return Job(f"seed {seed}, {name}", f"{_JOBS}:train_arms", arguments, folder, kind=kind)


def _kind_of(arms: Sequence[str]) -> TypeAdapter[Any]:
    """What the job of a seed's arms gives back: figures of each."""

    def checked(found: dict[str, _Arm]) -> dict[str, _Arm]:
        if not found.keys() >= set(arms):
            raise ValueError("an arm is missing")
        return found

    return TypeAdapter(Annotated[dict[str, _Arm], AfterValidator(checked)])


def _named(progress: Progress, what: str) -> Progress:
    def told(_: str, done: int, total: int) -> None:
        progress(what, done, total)

    return told


def _report(request: StudyRequest, found: _Found, failures: tuple[str, ...]) -> StudyReport:
    rows: list[dict[str, Value]] = []
    widths = list(dict.fromkeys(bits for bits, _ in found))
    for bits in widths:
        results = [result for (width, _), result in found.items() if width == bits]
        arms = [arm for arm in request.arms if arm != BASELINE or bits == widths[0]]
        rows += [_row(request, bits, arm, results) for arm in arms]
    seeds = [sum(width == bits for width, _ in found) for bits in widths]
    notes = (
        _error_note(min(seeds)),
        *(f"{arm}: {ARMS[arm]}" for arm in request.arms),
        *(f"left out: {failure}" for failure in failures),
    )
    table = Table("Arms", _COLUMNS, tuple(rows), notes)
    facts = {
        "command": request.command or "bitwright.explore.study.run_study",
        "recipe": ": ".join(filter(None, (request.recipe.name, request.recipe.description))),
        "seeds": _seeds_note(min(seeds), request.seeds),
        "processor": cpu_name(),
        **{key: version for key, version in versions().items() if key in _VERSIONS},
    }
    title = f"What each phase is worth: {request.recipe.name}"
    lead = "One float student a seed, quantized and trained in each of these ways."
    section = Section(table, (_plot(rows, request),))
    each = Section(_by_seed(request, found))
    paths = write_report(
        request.out, "study", title=title, lead=lead, sections=[section, each], facts=facts
    )
    return StudyReport(table, paths, failures)


def _seeds_note(whole: int, wanted: int) -> str:
    named = f"0 to {wanted - 1}" if wanted > 1 else "0"
    return f"{named}; {whole} of {wanted} came through" if whole < wanted else named


def _error_note(seeds: int) -> str:
    if seeds > 1:
        return f"± is the standard error of the mean of {seeds} seeds; differences are paired."
    return "± is the standard error of one network on these test images; differences are paired."


def _row(
    request: StudyRequest, bits: int | None, arm: str, results: Sequence[JobResult]
) -> dict[str, Value]:
    own = {result.folder: result.value[arm] for result in results}
    row: dict[str, Value] = {
        "bits": _formats(request, bits) if arm != BASELINE else "float32",
        "arm": arm,
        "epochs": int(next(iter(own.values()))["epochs"]),
        "train": mean_of([value["train"] for value in own.values()]),
        "test": mean_of([value["test"] for value in own.values()]),
    }
    if len(results) == 1:
        row["test"] = _outcome(results[0], arm).accuracy
    for other, key in ((BASELINE, "float"), (PTQ, "ptq")):
        if other in request.arms and other != arm:
            row[key] = _difference(results, arm, other)
    return row


def _difference(results: Sequence[JobResult], arm: str, other: str) -> Measured:
    """Mean of the paired differences with its standard error, over seeds or over images."""
    if len(results) == 1:
        return _outcome(results[0], arm).loss_against(_outcome(results[0], other))
    own, reference = ([r.value[name]["test"] for r in results] for name in (arm, other))
    return mean_difference(own, reference)


def _outcome(result: JobResult, arm: str) -> Outcome:
    found = read_npz(result.folder / RIGHT, "biuf")
    first = next(iter(found.values()), np.empty(0))
    right = found.get(arm, np.empty(0))
    whole = right.ndim == 1 and right.size and right.shape == first.shape
    if not whole or not (np.abs(right.astype(float)) <= _MOST).all():
        raise RunError(
            f"does not tell of each test image what {arm} made of it",
            where=str(result.folder / RIGHT),
            hint="delete the folder, and run the study again",
        )
    shares = right.dtype == np.bool_
    return Outcome(share_of(right) if shares else mean_of(right), right, np.empty(0))


def _formats(request: StudyRequest, bits: int | None) -> str:
    recipe = request.recipe if bits is None else with_bits(request.recipe, bits)
    texts = []
    for role in ("weight", "activation"):
        given = recipe.quant.get(role, "default")
        texts.append(str(given.get("format")) if isinstance(given, Mapping) else str(given))
    return "/".join(texts)


def _by_seed(request: StudyRequest, found: _Found) -> Table:
    columns = (
        Column("bits", "formats"),
        Column("seed", "seed", Kind.NUMBER),
        *(Column(arm, arm, Kind.SHARE) for arm in request.arms),
    )
    rows = tuple(
        {
            "bits": _formats(request, bits),
            "seed": seed,
            **{arm: result.value[arm]["test"] for arm in request.arms},
        }
        for (bits, seed), result in found.items()
    )
    return Table("Test accuracy of each seed", columns, rows)


def _plot(rows: Sequence[Mapping[str, Value]], request: StudyRequest) -> Scatter:
    """Accuracy of each arm over the epochs that it took."""
    points = []
    baseline = None
    for row in rows:
        measured, epochs = row["test"], row["epochs"]
        assert isinstance(measured, Measured)
        assert isinstance(epochs, int)
        if row["arm"] == BASELINE:
            baseline = ("float", 100 * measured.value)
            continue
        error = None if measured.error is None else 100 * measured.error
        label, series = str(row["arm"]), str(row["bits"])
        points.append(Point(label, series, float(epochs), 100 * measured.value, error))
    return Scatter(
        f"{request.recipe.name}: test accuracy",
        "epochs in few bits",
        "accuracy [%]",
        tuple(points),
        baseline=baseline,
    )
