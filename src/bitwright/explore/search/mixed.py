# SPDX-License-Identifier: Apache-2.0
"""Mixed precision by layer: the formats that keep a budget at the least loss, or an accuracy at the
least cost.

Three steps. Every format of every layer is measured alone on a few images (`sensitivity`). An exact
solver chooses one format a layer so that the sum of the damages is least within a budget
(`allocate`), as in HAWQ-V2 and -V3 (Dong et al. 2020, Yao et al. 2021). What it chose is calibrated
as a whole and measured; where the real accuracy says otherwise, the choice is corrected by single
steps, each one measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from bitwright.base.errors import RecipeError
from bitwright.explore.model_sizes import bit_operations, size_of
from bitwright.explore.search.allocate import Choice, Problem, Product, allocate, sweep, undominated
from bitwright.explore.search.candidates import Candidates
from bitwright.explore.search.goals import Cost, Goal, parse_budget
from bitwright.explore.search.metrics import Metric
from bitwright.explore.search.mixed_result import MixedResult, Point
from bitwright.explore.search.sensitivity import (
    IMAGES,
    Damage,
    Progress,
    SensitivityTable,
    first_samples,
    no_progress,
    sensitivity_table,
)
from bitwright.explore.search.units import Option, Space, Unit
from bitwright.explore.sizes import FLOAT_BITS
from bitwright.quantize.ptq.calibration import calibrate
from bitwright.quantize.ptq.samples import Samples

_HAIR = 1e-9
_BISECTIONS = 7
_PROBES = (0.96, 0.92, 0.87, 0.8)


@dataclass(frozen=True)
class Options:
    """How a search works, and how much it may measure.

    Attributes:
        minimise: what is made small under an accuracy goal.
        measure: of the damages; None: ``kl`` for a metric of scores, else ``error``.
        images: for the sensitivities.
        calibration: images for the scales of every network that is measured as a whole.
        points: networks along the front that are measured beside those that the goal needs.
        refinements: single steps that are tried at the end.
        seconds: after this time no further network is measured; None: no limit.
        per_width: formats of one width that are measured for a weight; see `sensitivity_table`.
        base: fields of the recipe's ``quant`` section that hold whatever is chosen: ``input`` (of
            the network's input, which is not searched; uint8), ``threshold_bits``.
    """

    minimise: Cost = Cost.MEMORY
    measure: Damage | None = None
    images: int = IMAGES
    calibration: int = 128
    points: int = 8
    refinements: int = 16
    seconds: float | None = None
    per_width: int | None = 2
    base: Mapping[str, Any] = field(default_factory=dict)


def search_mixed(
    model: nn.Module,
    metric: Metric,
    samples: Samples,
    goal: Goal | str,
    candidates: Candidates,
    *,
    options: Options | None = None,
    table: SensitivityTable | None = None,
    progress: Progress = no_progress,
) -> MixedResult:
    """Choose a format for every layer of a float model; the model is left as it is.

    Args:
        model: a plain float module in evaluation mode, batch norm folded or not.
        metric: the real accuracy, on images that are not for the final figure.
        samples: typical inputs, from the training images.
        goal: a budget, or an accuracy; see `goals`.
        candidates: what there is to choose from.
        options: see `Options`.
        table: sensitivities measured before, for the same candidates.
        progress: called as ``progress(what, done, total)``.

    Raises:
        RecipeError: the budget cannot be kept or the accuracy not be reached; says what can.
        ModelError: the model cannot be converted.
        DataError: the samples do not fit it.
    """
    started = time.monotonic()
    goal, how = parse_budget(goal), options or Options()
    baseline = metric(model)
    if table is None:
        table = sensitivity_table(
            model,
            samples,
            candidates,
            measure=how.measure or damage_for(metric),
            images=how.images,
            base=how.base,
            per_width=how.per_width,
            progress=progress,
        )
    inputs = first_samples(samples, how.calibration)
    bench = _Bench(model, metric, inputs, table.space, started, how, progress)
    cost = goal.cost or how.minimise
    problem, kept = make_problem(table.space, model, cost)
    lane = _Lane(problem, kept, bench, cost)
    floating = {c: floating_cost(table.space, model, c) for c in Cost}
    if goal.is_accuracy:
        _least_cost(lane, goal, baseline)
    else:
        _least_damage(lane, goal, floating[cost])
    for assignment in sweep(problem, how.points) if how.points > 1 else []:
        if bench.out_of_time:
            break
        lane.measure(assignment)
    best = _pick(bench.points.values(), goal, cost, baseline, floating[cost])
    return MixedResult(
        goal=goal,
        cost=cost,
        metric=metric.name,
        baseline=baseline,
        best=best,
        points=tuple(bench.points.values()),
        table=table,
        recipe=table.space.recipe(best.chosen),
        report=size_of(table.space.chosen_facts(best.chosen), model),
        floating=floating,
        seconds=time.monotonic() - started,
    )


def _pick(points: Iterable[Point], goal: Goal, cost: Cost, baseline: float, floating: int) -> Point:
    """The best of all networks that were measured and keep the goal; there is one."""
    if goal.is_accuracy:
        least = goal.least(baseline) - _HAIR
        good = [point for point in points if point.accuracy >= least]
        return min(good, key=lambda p: (p.cost(cost), -p.accuracy))
    within = [point for point in points if point.cost(cost) <= goal.limit(floating)]
    return max(within, key=lambda p: (p.accuracy, -p.damage))


def damage_for(metric: Metric) -> Damage:
    """Scores are compared by their divergence, all else by squared error."""
    return Damage.KL if getattr(metric, "of_scores", False) else Damage.ERROR


def make_problem(space: Space, model: nn.Module, cost: Cost) -> tuple[Problem, list[list[int]]]:
    """The knapsack of a space; and for each unit which of its options it has, by index.

    Options that another one beats in damage, cost and width are left out.
    """
    every = [[_choice(option, unit, cost) for option in unit.options] for unit in space.units]
    kept = [undominated(choices) for choices in every]
    units = tuple(
        tuple(choices[i] for i in rows) for choices, rows in zip(every, kept, strict=True)
    )
    start = [rows[0] for rows in kept]
    facts = space.chosen_facts(start)
    report = size_of(facts, model)
    if cost is Cost.BOPS:
        products = tuple(_products(space))
        bare = Problem(units, 0, products)
        chosen = [0] * len(units)
        return Problem(units, bit_operations(facts) - bare.cost(chosen), products), kept
    total = report.total_bits if cost is Cost.MEMORY else report.parameter_bits
    fixed = total - sum(choices[0].cost for choices in units)
    return Problem(units, fixed), kept


def _choice(option: Option, unit: Unit, cost: Cost) -> Choice:
    counts = cost is Cost.MEMORY or (cost is Cost.SIZE and unit.is_weight)
    bits = option.width if cost is Cost.BOPS else option.bits
    return Choice(option.format.name, bits, option.stored_bits if counts else 0, option.damage)


def _products(space: Space) -> Iterator[Product]:
    """Layers whose weight and features are searched; others have a fixed cost."""
    unit_of = {key: i for i, unit in enumerate(space.units) for key in unit.keys}
    widths = {fact.key: fact.width for fact in space.facts}
    for fact in space.facts:
        if not fact.is_weight or fact.key not in unit_of:
            continue
        features = tuple(unit_of[key] for key in fact.reads if key in unit_of)
        others = [widths[key] for key in fact.reads if key not in unit_of]
        least = max(others, default=0 if features else FLOAT_BITS)
        yield Product(fact.macs, unit_of[fact.key], features, least)


def floating_cost(space: Space, model: nn.Module, cost: Cost) -> int:
    """What the float network has of a cost."""
    if cost is Cost.BOPS:
        return sum(fact.macs for fact in space.facts) * FLOAT_BITS**2
    report = size_of(list(space.facts), model)
    features = report.feature_count if cost is Cost.MEMORY else 0
    return FLOAT_BITS * (report.float_parameters + features)


@dataclass
class _Bench:
    """Measures whole networks, each once."""

    model: nn.Module
    metric: Metric
    samples: Tensor
    space: Space
    started: float
    options: Options
    progress: Progress
    points: dict[tuple[int, ...], Point] = field(default_factory=dict)

    @property
    def out_of_time(self) -> bool:
        limit = self.options.seconds
        return limit is not None and time.monotonic() - self.started > limit

    def measure(self, chosen: tuple[int, ...], damage: float) -> Point:
        """Calibrate and measure the network of an assignment (indices into all options)."""
        if chosen not in self.points:
            self.progress("measuring networks", len(self.points), 0)
            converted = calibrate(self.model, self.space.policy(chosen), self.samples)
            facts = self.space.chosen_facts(chosen)
            report = size_of(facts, self.model)
            self.points[chosen] = Point(
                chosen=chosen,
                size=report.parameter_bits,
                memory=report.total_bits,
                bops=bit_operations(facts),
                damage=damage,
                accuracy=self.metric(converted),
            )
        return self.points[chosen]


@dataclass
class _Lane:
    """A problem with its assignments measured: indices here are those of the problem."""

    problem: Problem
    kept: list[list[int]]
    bench: _Bench
    cost: Cost

    def measure(self, assignment: tuple[int, ...]) -> Point:
        chosen = tuple(rows[i] for rows, i in zip(self.kept, assignment, strict=True))
        return self.bench.measure(chosen, self.problem.damage(assignment))

    def steps_down(self, now: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Assignments with one unit a step cheaper, the best saving for its damage first."""
        found = []
        for unit, options in enumerate(self.problem.units):
            here = options[now[unit]]
            for index, other in enumerate(options):
                step = (*now[:unit], index, *now[unit + 1 :])
                saved = self.problem.cost(now) - self.problem.cost(step)
                if saved > 0 and other.bits <= here.bits:
                    found.append(((other.damage - here.damage) / saved, step))
        return [step for _, step in sorted(found)]

    def swaps(self, now: tuple[int, ...], limit: float) -> list[tuple[int, ...]]:
        """Assignments with one unit better and one worse, within the limit, least damage first."""
        found = []
        for up, options in enumerate(self.problem.units):
            for better in _better(options, now[up]):
                raised = (*now[:up], better, *now[up + 1 :])
                for down, others in enumerate(self.problem.units):
                    if down == up:
                        continue
                    for worse in _worse(others, now[down]):
                        step = (*raised[:down], worse, *raised[down + 1 :])
                        if self.problem.cost(step) <= limit:
                            found.append((self.problem.damage(step), step))
        return [step for _, step in sorted(found)]


def _better(options: Sequence[Choice], now: int) -> list[int]:
    """The next option up."""
    above = [i for i, o in enumerate(options) if o.damage < options[now].damage]
    return sorted(above, key=lambda i: options[i].cost)[:1]


def _worse(options: Sequence[Choice], now: int) -> list[int]:
    """The next option down."""
    below = [i for i, o in enumerate(options) if o.cost < options[now].cost]
    return sorted(below, key=lambda i: options[i].damage)[:1]


def _least_damage(lane: _Lane, goal: Goal, floating: int) -> None:
    """Measure what is predicted to be the most accurate network within a budget, and its kin."""
    problem, limit = lane.problem, goal.limit(floating)
    if problem.smallest > limit:
        raise RecipeError(
            f"{goal} cannot be kept: with these candidates networks go from "
            f"{_amount(problem.smallest, lane.cost)} to {_amount(problem.largest, lane.cost)}",
            where="--budget",
            hint="raise the budget, or name candidates of fewer bits",
        )
    now = allocate(problem, limit)
    lane.measure(now)
    for step in lane.swaps(now, limit)[: lane.bench.options.refinements]:
        if lane.bench.out_of_time:
            break
        lane.measure(step)


def _least_cost(lane: _Lane, goal: Goal, baseline: float) -> None:
    """Measure what leads to the cheapest network that is accurate enough."""
    problem, least = lane.problem, goal.least(baseline)
    top = allocate(problem, problem.largest)
    best = lane.measure(top)
    if best.accuracy < least - _HAIR:
        raise RecipeError(
            f"{goal} cannot be reached: with the best of these candidates it is "
            f"{100 * best.accuracy:.2f} %, in float {100 * baseline:.2f} %",
            where="--budget",
            hint="lower the accuracy, or name candidates of more bits",
        )

    def good(assignment: tuple[int, ...]) -> bool:
        return lane.measure(assignment).accuracy >= least - _HAIR

    now = _bisected(lane, good, top)
    now = _probed(lane, good, now)
    _stepped(lane, good, now)


def _bisected(
    lane: _Lane, good: Callable[[tuple[int, ...]], bool], top: tuple[int, ...]
) -> tuple[int, ...]:
    """The cheapest passing assignment on the predicted front, by halving costs."""
    problem = lane.problem
    low, high, best = float(problem.smallest), float(problem.cost(top)), top
    if good(allocate(problem, low)):
        return allocate(problem, low)
    for _ in range(_BISECTIONS):
        if lane.bench.out_of_time or high - low < 0.005 * high:
            break
        middle = allocate(problem, (low * high) ** 0.5)
        if good(middle):
            best, high = middle, float(problem.cost(middle))
        else:
            low = (low * high) ** 0.5
    return best


def _probed(
    lane: _Lane, good: Callable[[tuple[int, ...]], bool], now: tuple[int, ...]
) -> tuple[int, ...]:
    """Halving stops at the first network that fails, by chance perhaps: try some cheaper ones."""
    problem, here = lane.problem, lane.problem.cost(now)
    for share in _PROBES:
        limit = share * here
        if lane.bench.out_of_time or limit < problem.smallest:
            break
        if problem.cost(now) <= limit:
            continue
        found = allocate(problem, limit)
        if good(found):
            now = found
    return now


def _stepped(lane: _Lane, good: Callable[[tuple[int, ...]], bool], now: tuple[int, ...]) -> None:
    """Single steps down as long as they pass."""
    left = lane.bench.options.refinements
    failed: set[tuple[int, int]] = set()
    while left > 0 and not lane.bench.out_of_time:
        steps = [step for step in lane.steps_down(now) if _move(now, step) not in failed]
        if not steps:
            break
        left -= 1
        if good(steps[0]):
            now = steps[0]
        else:
            failed.add(_move(now, steps[0]))


def _move(now: tuple[int, ...], step: tuple[int, ...]) -> tuple[int, int]:
    """Which unit a step changes, and to what."""
    unit = next(i for i, (a, b) in enumerate(zip(now, step, strict=True)) if a != b)
    return unit, step[unit]


def _amount(value: float, cost: Cost) -> str:
    if cost is Cost.BOPS:
        return f"{value / 1e6:.4g} M bit operations"
    return f"{value / 8000:.4g} kB"
