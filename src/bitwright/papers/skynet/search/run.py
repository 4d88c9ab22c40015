# SPDX-License-Identifier: Apache-2.0
"""`bitwright skynet search`: search a detector for a recipe's data and target, and write it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bitwright.base.errors import TargetError
from bitwright.base.files import atomic_write
from bitwright.base.folders import make_folder
from bitwright.base.progress import Progress, no_progress
from bitwright.papers.skynet.search.candidate import sketch
from bitwright.papers.skynet.search.measure import Bench, recipe_for
from bitwright.papers.skynet.search.strategies import STRATEGIES, Trial, best_of, nearest_to
from bitwright.papers.skynet.search.swarm import Settings, hypervolume
from bitwright.pipeline.recipe import Recipe
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.report.scatter import Point, Scatter
from bitwright.report.table import Column, Kind, Table, Value
from bitwright.report.table_page import Section, check_folder, write_report

NAME, CHOSEN = "search", "chosen.yaml"
_COLUMNS = (
    Column("candidate", "candidate", about="bundle, channels behind each repetition, P a pool"),
    Column("epochs", "epochs", Kind.NUMBER),
    Column("latency", "time", Kind.NUMBER, "ms", 3, "an image, predicted for the target"),
    Column("accuracy", "accuracy", Kind.NUMBER, "", 4, "the task's metric on validation images"),
    Column("front", "front", about="no other one is faster and better"),
    Column("reason", "not built", about="why there is no hardware for it"),
)


@dataclass(frozen=True)
class SearchRequest:
    """What to search.

    Attributes:
        recipe: data, task, formats, training and hardware; its model is replaced.
        settings: of the swarm; the other strategies get its budget.
        strategy: one of `STRATEGIES`.
        out: folder of candidates and results; a search that was stopped goes on there.
        bundles: how many of the kinds of bundles go on: those of the front of their sketches, by
            accuracy; None takes all groups as they are.
        sketch: repetitions are those of the bounds; channels of the first.
    """

    recipe: Recipe
    settings: Settings
    strategy: str
    out: Path
    bundles: int | None = None
    sketch: int = 16
    workers: int | None = None
    threads: int | None = None
    ray: str | None = None
    per: str = "interval_ms"


@dataclass(frozen=True)
class SearchResult:
    """What was found.

    Attributes:
        trials: every candidate that was looked at.
        sketches: of the kinds of bundles, if they were compared.
        chosen: the most accurate one that meets the target.
        trained: epochs of training, counted as if nothing had been known.
        paths: of the files written.
        table: of the front.
    """

    trials: tuple[Trial, ...]
    sketches: tuple[Trial, ...]
    chosen: Trial
    trained: int
    paths: dict[str, Path]
    table: Table


def run_search(request: SearchRequest, progress: Progress = no_progress) -> SearchResult:
    """Search, and write table, plot and the recipe of the chosen network.

    Raises:
        TargetError: no candidate meets the target; says which is the nearest. The files are there.
        RunError: a candidate failed.
    """
    check_folder(request.out)
    bench = Bench(
        request.recipe,
        request.out / "candidates",
        request.workers,
        request.threads,
        request.ray,
        request.per,
        progress,
    )
    sketches = _sketches(request, bench) if request.bundles is not None else ()
    settings = request.settings
    if request.bundles is not None:
        kept = sorted(best_of(sketches), key=lambda t: -(t.measured.accuracy or 0))
        names = tuple(t.candidate.bundle for t in kept[: request.bundles])
        settings = replace(settings, groups=names or settings.groups)
    trials = STRATEGIES[request.strategy](settings, bench)
    target = settings.fitness.target_ms
    chosen, meets = nearest_to(trials, target)
    paths = _write(request, trials, sketches, chosen if meets else None)
    if chosen is None:
        reason = next((t.measured.reason for t in trials if t.measured.reason), "")
        raise TargetError(f"no candidate has hardware: {reason}", where="search")
    if not meets:
        raise TargetError(
            f"none of {len(trials)} candidates takes {target:g} ms or less; the nearest is "
            f"{chosen.candidate.name} with {chosen.measured.time_ms:.3g} ms and an accuracy of "
            f"{chosen.measured.accuracy:.4g}",
            where="target",
            hint=f"a slower target, a larger device, or smaller channels; see {paths['md']}",
        )
    table = _section("Front", tuple(best_of(trials))).table
    return SearchResult(trials, sketches, chosen, bench.trained, paths, table)


def _sketches(request: SearchRequest, bench: Bench) -> tuple[Trial, ...]:
    """Each kind of bundle in a sketch network, trained as the first iteration is."""
    settings, bounds = request.settings, request.settings.bounds
    drawn = [
        sketch(bundle, bounds.repeats, request.sketch, bounds.pools) for bundle in settings.groups
    ]
    found = bench(drawn, settings.epochs[0])
    return tuple(Trial(c, m, settings.epochs[0]) for c, m in zip(drawn, found, strict=True))


def volume(trials: tuple[Trial, ...], slowest_ms: float) -> float:
    """Hypervolume of the candidates above an accuracy of 0 and up to a time, as a share of it."""
    points = [
        (t.measured.time_ms, t.measured.accuracy)
        for t in trials
        if t.measured.time_ms is not None and t.measured.accuracy is not None
    ]
    return hypervolume(points, (slowest_ms, 0.0)) / slowest_ms


def _write(
    request: SearchRequest,
    trials: tuple[Trial, ...],
    sketches: tuple[Trial, ...],
    chosen: Trial | None,
) -> dict[str, Path]:
    make_folder(request.out)
    sections = [_section("Candidates", trials)]
    if sketches:
        sections.append(_section("Kinds of bundles", sketches))
    settings = request.settings
    facts = {
        "recipe": request.recipe.name,
        "target": f"{request.recipe.hardware.target}, {settings.fitness.target_ms:g} ms",
        "strategy": f"{request.strategy}, seed {settings.seed}",
        "budget": f"{settings.total_epochs} epochs of training",
        "processor": cpu_name(),
    }
    paths = write_report(
        request.out,
        NAME,
        title=f"Search: {request.recipe.name}",
        lead="Networks of one kind of bundle each; time and resources by the models of the "
        "hardware that would be built, accuracy after a short training.",
        sections=sections,
        facts=facts,
    )
    (request.out / CHOSEN).unlink(missing_ok=True)  # of an earlier search in this folder
    if chosen is not None:
        text = recipe_for(request.recipe, chosen.candidate).to_yaml()
        atomic_write(request.out / CHOSEN, text)
        paths["recipe"] = request.out / CHOSEN
    return paths


def _section(title: str, trials: tuple[Trial, ...]) -> Section:
    best = {id(t) for t in best_of(trials)}
    rows: list[dict[str, Value]] = []
    points = []
    for trial in trials:
        known = trial.measured
        on_front = id(trial) in best
        row: dict[str, Any] = {
            "candidate": trial.candidate.name,
            "epochs": trial.epochs,
            "latency": known.time_ms,
            "accuracy": known.accuracy,
            "front": "yes" if on_front else "",
            "reason": known.reason,
        }
        rows.append(row)
        if known.time_ms is not None and known.accuracy is not None:
            label = trial.candidate.name if on_front else ""
            series = "front" if on_front else trial.candidate.bundle
            points.append(Point(label, series, known.time_ms, known.accuracy))
    plot = Scatter(title, "time an image, ms (predicted)", "accuracy", tuple(points), log_x=True)
    return Section(Table(title, _COLUMNS, tuple(rows)), (plot,))
