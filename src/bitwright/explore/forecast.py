# SPDX-License-Identifier: Apache-2.0
"""What a recipe's training would cost: by level, by schedule, on devices that are only described,
by given numbers, or measured on this machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright.base.errors import RecipeError
from bitwright.base.progress import Progress, no_progress
from bitwright.base.trust import importable
from bitwright.low_precision.config import LowPrecision
from bitwright.low_precision.costs.cases import possible_schedules
from bitwright.low_precision.costs.devices import list_devices, load_device
from bitwright.low_precision.costs.given import read_costs, write_costs
from bitwright.low_precision.costs.log import EpochTimes, side_by_side, totals
from bitwright.low_precision.costs.model import Comparison, CostTable, Variant, compare
from bitwright.low_precision.costs.schedule import (
    Schedule,
    check_levels,
    parse_schedule,
    schedule_of_log,
)
from bitwright.low_precision.ladder import FLOAT32
from bitwright.low_precision.log import LOG, read_log
from bitwright.low_precision.policy import Plan
from bitwright.models.catalog import list_models
from bitwright.pipeline.context import LOGS
from bitwright.pipeline.inspection.inspect import build_for, known_shape
from bitwright.pipeline.recipe import Recipe
from bitwright.pipeline.steps.names import step_folder
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.report.table import Column, Kind, Table, Value
from bitwright.report.table_page import Section, write_report
from bitwright.train.records import METRICS, read_metrics

if TYPE_CHECKING:
    from torch import nn

    from bitwright.low_precision.costs.network import Network

MIXED = "float16"
_USUAL_EPOCHS = 150
_HOUR = 3600.0
_KWH = 3.6e6
_SMALL = 1e-3


@dataclass(frozen=True)
class ForecastRequest:
    """What to forecast.

    Attributes:
        recipe: whose training.
        devices: names or files; empty: all that come with Bitwright, unless numbers are given or
            measured.
        costs: a file of given or measured numbers.
        profile: measure on this machine.
        schedules: as text, or files ``precision.jsonl``; empty: what the recipe's policy can give.
        baseline_epochs: of the float32 baseline.
        run_dir: of a finished or interrupted run, whose epochs are set beside the model.
        images: training images; then no data is loaded, and `classes` and `input_shape` (H, W, C)
            say what the network takes (by default 10, and what a model of the zoo usually takes).
    """

    recipe: Recipe
    devices: tuple[str, ...] = ()
    costs: Path | None = None
    profile: bool = False
    schedules: tuple[str, ...] = ()
    baseline_epochs: int = _USUAL_EPOCHS
    run_dir: Path | None = None
    images: int | None = None
    classes: int | None = None
    input_shape: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Costed:
    """One source of costs, and what schedules cost by it."""

    table: CostTable
    runs: tuple[Comparison, ...]
    times: tuple[EpochTimes, ...] = ()


@dataclass(frozen=True)
class Forecast:
    """Everything that was worked out.

    Attributes:
        name: of the recipe.
        facts: the network and the run in words.
        found: one entry a device or source.
    """

    name: str
    facts: dict[str, str]
    found: tuple[Costed, ...]

    def tables(self) -> tuple[Table, ...]:
        """One source in detail, several side by side."""
        if len(self.found) == 1:
            (only,) = self.found
            parts = [levels_table(only.table), runs_table([only])]
            return (*parts, times_table(only)) if only.times else tuple(parts)
        return (runs_table(self.found),)

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": self.name,
            "facts": self.facts,
            "costs": [
                {
                    "name": each.table.name,
                    "source": each.table.source.value,
                    "notes": list(each.table.notes),
                    "levels": {
                        level: {
                            variant.value: each.table.epoch(level, variant).to_json(
                                each.table.source
                            )
                            for variant in Variant
                        }
                        for level in each.table.levels
                    },
                    "schedules": [run.to_json() for run in each.runs],
                    "epochs": [row.to_json() for row in each.times],
                }
                for each in self.found
            ],
        }

    def write(self, folder: Path) -> dict[str, Path]:
        """The tables as Markdown, CSV, JSON and HTML, and the costs by level as files that
        ``--costs`` takes.
        """
        sections = [Section(table) for table in self.tables()]
        lead = "What training would cost. " + "; ".join(f"{k} {v}" for k, v in self.facts.items())
        paths = write_report(
            folder,
            "forecast",
            title=f"Forecast of training {self.name}",
            lead=lead,
            sections=sections,
            facts=self.facts,
        )
        for number, each in enumerate(self.found):
            path = folder / ("costs.json" if len(self.found) == 1 else f"costs-{number}.json")
            write_costs(path, each.table, self.facts)
            paths[path.stem] = path
        return paths


def forecast(request: ForecastRequest, progress: Progress = no_progress) -> Forecast:
    """Forecast the training of a recipe; nothing is trained.

    Raises:
        BitwrightError: an unknown device, a schedule that is none or has levels that are not on the
            ladder, numbers that are missing, or a recipe whose network or data cannot be had.
    """
    job = _Job(request, progress)
    job.check()
    found = []
    for table in job.tables():
        known = job.schedules(table)
        runs = [*compare(table, known, baseline_epochs=request.baseline_epochs)]
        if MIXED in table.levels and MIXED not in job.settings.ladder:
            # native, as MuPPET's authors have it: what converts numbers costs nothing
            mixed = Schedule.constant(MIXED, request.baseline_epochs, "mixed precision")
            runs += compare(
                table, [mixed], [Variant.IDEAL], baseline_epochs=request.baseline_epochs
            )
        found.append(Costed(table, tuple(runs), job.times(table)))
    return Forecast(request.recipe.name, job.facts(), tuple(found))


class _Job:
    """A recipe's network, settings and sizes."""

    def __init__(self, request: ForecastRequest, progress: Progress) -> None:
        self.request = request
        self.progress = progress
        self.work = Workspace(request.recipe, progress)
        self.config = request.recipe.train.float_
        self.is_default = self.config.low_precision is None
        self.settings = self.config.low_precision or LowPrecision()

    def check(self) -> None:
        """Whatever is wrong with the request, before the network is built."""
        for name in self.request.devices:
            load_device(name)
        for text in self.request.schedules:
            self._schedule(text)
        if self.request.images is None and (self.request.classes or self.request.input_shape):
            raise RecipeError(
                "classes and the size of an image are those of the data set",
                where="--classes, --input-shape",
                hint="give --images too, to forecast without the data",
            )

    @property
    def epochs(self) -> int:
        """At most, of the run."""
        return max(self.config.epochs, _USUAL_EPOCHS) if self.is_default else self.config.epochs

    @property
    def images(self) -> int:
        """To train on, in an epoch."""
        given = self.request.images
        return len(self.work.data.train) if given is None else given

    @property
    def steps(self) -> int:
        if self.images < self.config.batch_size:
            raise RecipeError(
                f"{self.images} training images are less than one batch of "
                f"{self.config.batch_size}",
                where="train.float.batch_size",
                hint="make batches smaller",
            )
        return self.images // self.config.batch_size

    @cached_property
    def model(self) -> tuple[nn.Module, tuple[int, int, int]]:
        """The network with its first weights, and (C, H, W) of an image."""
        recipe = self.request.recipe
        if self.request.images is None:
            return self.work.fresh_model(), self.work.sample_shape
        usual = {info.name: info.image for info in list_models()}
        name = recipe.model.name
        shape = known_shape(name, self.request.input_shape, usual.get(name))
        plain = recipe.model.model_copy(update={"weights": None})
        with importable(self.work.recipe.base_dir):
            built, _ = build_for(plain, self.request.classes, shape, recipe.seed)
        return built, (shape[2], shape[0], shape[1])

    def tables(self) -> Iterable[CostTable]:
        request = self.request
        if request.costs is not None:
            yield read_costs(request.costs).table
        if request.profile:
            yield self._profile()
        devices = request.devices
        if not devices and request.costs is None and not request.profile:
            devices = tuple(device.name for device in list_devices())
        if not devices:
            return
        from bitwright.low_precision.costs.formats import ladder_costs

        network = self.network
        for name in devices:
            device = load_device(name)
            yield ladder_costs(network, device, self.settings, self.steps, [MIXED])

    @property
    def network(self) -> Network:
        from bitwright.low_precision.costs.counting import count_network

        model, shape = self.model
        return count_network(model, shape, self.config.batch_size, self.request.recipe.model.name)

    def _profile(self) -> CostTable:
        from bitwright.low_precision.arithmetic.choose import make_engine
        from bitwright.low_precision.costs.profiler import Setup, profile_network

        place = "cpu" if self.config.device == "auto" else self.config.device
        model, shape = self.model
        return profile_network(
            model,
            shape,
            self.settings,
            make_engine(self.settings.engine),
            Setup(self.config.batch_size, self.steps, place, seed=self.config.seed),
            name=self.request.recipe.model.name,
            on_progress=self.progress,
        )

    def schedules(self, table: CostTable) -> list[Schedule]:
        if self.request.schedules:
            return [self._schedule(text) for text in self.request.schedules]
        settings = self.settings
        plan = Plan(
            layers=(),
            levels=len(settings.ladder),
            float_level=settings.float_level,
            max_epochs=self.epochs,
            float_epochs=settings.float_epochs,
            steps_per_epoch=table.steps,
            seed=self.config.seed,
            names=settings.ladder,
        )
        return list(possible_schedules(settings, plan, table))

    def _schedule(self, text: str) -> Schedule:
        ladder = tuple(dict.fromkeys((*self.settings.ladder, FLOAT32)))
        if not text.endswith(".jsonl"):
            return parse_schedule(text, ladder)
        found = schedule_of_log(Path(text), name=text)
        check_levels((phase.level for phase in found.phases), ladder)
        return found

    def times(self, table: CostTable) -> tuple[EpochTimes, ...]:
        """Epochs that a run has trained, if it has trained in low precision."""
        if self.request.run_dir is None:
            return ()
        logs = self.request.run_dir / step_folder("train") / LOGS
        if not (logs / LOG).is_file():
            return ()
        measured = {each.epoch: each.seconds for each in read_metrics(logs / METRICS)}
        return side_by_side(read_log(logs / LOG), measured, table)

    def facts(self) -> dict[str, str]:
        policy = self.settings.policy.kind
        if self.is_default:
            policy += " with its defaults (the recipe trains in float32)"
        return {
            "model": self.request.recipe.model.name,
            "data": f"{self.request.recipe.data.name}, {self.images} training images",
            "batch": str(self.config.batch_size),
            "policy": policy,
            "ladder": ", ".join(self.settings.ladder),
            "epochs": f"at most {self.epochs}, baseline {self.request.baseline_epochs}",
        }


def levels_table(table: CostTable) -> Table:
    """An epoch at every level, in parts."""
    columns = (
        Column("level", "level"),
        Column("unit", "computed as", about="the unit or engine of most products"),
        Column("step", "step", Kind.NUMBER, "ms", about="as `current`: quantizing included"),
        Column("epoch", "epoch", Kind.NUMBER, "s"),
        Column("products", "products", Kind.NUMBER, "s", about="of an epoch, all three of a layer"),
        Column("quantize", "quantizing", Kind.NUMBER, "s", about="weights, activations, gradients"),
        Column("rest", "rest", Kind.NUMBER, "s", about="batch norm, activations, loss, optimizer"),
        Column("ideal", "ideal epoch", Kind.NUMBER, "s", about="native products, no quantizing"),
        Column("energy", "energy", Kind.NUMBER, "kJ", about="of an epoch"),
        Column("speed", "against float32", Kind.RATE),
    )
    slowest = table.epoch(FLOAT32).total.seconds if FLOAT32 in table.levels else None
    rows: list[dict[str, Value]] = []
    for name, level in table.levels.items():
        epoch = table.epoch(name)
        seconds = epoch.total.seconds
        units = [each.unit for each in level.products if each.unit]
        rows.append(
            {
                "level": name,
                "unit": max(units, key=units.count) if units else None,
                "step": 1e3 * seconds / table.steps,
                "epoch": seconds,
                "products": epoch.products.seconds,
                "quantize": epoch.quantize.seconds,
                "rest": epoch.rest.seconds,
                "ideal": table.epoch(name, Variant.IDEAL).total.seconds,
                "energy": None if epoch.total.joules is None else epoch.total.joules / 1e3,
                "speed": None if slowest is None or not seconds else slowest / seconds,
            }
        )
    title = f"{table.name}: by level ({table.source})"
    return Table(title, columns, tuple(rows), tuple(f"* {note}" for note in table.notes))


def runs_table(found: Sequence[Costed]) -> Table:
    """What schedules cost."""
    totals_of = [run.run.total for each in found for run in each.runs]
    hours = _digits(total.seconds / _HOUR for total in totals_of)
    energy = _digits(total.joules / _KWH for total in totals_of if total.joules)
    columns = [
        Column("schedule", "schedule"),
        Column("epochs", "epochs", Kind.NUMBER),
        Column("current", "time", Kind.NUMBER, "h", hours, "numbers are float32 between layers"),
        Column("ideal", "ideal", Kind.NUMBER, "h", hours, "native products, quantizing is free"),
        Column("energy", "energy", Kind.NUMBER, "kWh", energy),
        Column("equal", "equal epochs", Kind.RATE, about="float32 for as many epochs / time"),
        Column("baseline", "baseline", Kind.RATE, about="the float32 baseline / time"),
        Column("best", "ideal, baseline", Kind.RATE, about="the float32 baseline / ideal"),
    ]
    if len(found) > 1:
        columns.insert(0, Column("on", "on"))
    rows: list[dict[str, Value]] = []
    for each in found:
        for schedule in dict.fromkeys(run.run.schedule for run in each.runs):
            row = _row({r.run.variant: r for r in each.runs if r.run.schedule == schedule})
            rows.append({"on": each.table.name, **row} if len(found) > 1 else row)
    listed = dict.fromkeys(run.run.schedule for each in found for run in each.runs)
    notes = [f"* {each.name}: {each}" for each in listed if each.name != str(each)]
    sources = ", ".join(dict.fromkeys(str(each.table.source) for each in found))
    return Table(f"Training runs ({sources})", tuple(columns), tuple(rows), tuple(notes))


def _digits(values: Iterable[float]) -> int | None:
    """Digits that show the smallest value too, where the usual four would not."""
    least = min((value for value in values if value > 0), default=1.0)
    return None if least >= _SMALL else 1 - math.floor(math.log10(least))


def _row(runs: Mapping[Variant, Comparison]) -> dict[str, Value]:
    """One schedule, in both variants or in the ideal one alone."""
    ideal, now = runs[Variant.IDEAL], runs.get(Variant.CURRENT)
    total = (now or ideal).run.total
    row: dict[str, Value] = {
        "schedule": ideal.run.schedule.name,
        "epochs": ideal.run.schedule.epochs,
        "ideal": ideal.run.total.seconds / _HOUR,
        "energy": None if total.joules is None else total.joules / _KWH,
        "best": ideal.baseline,
    }
    if now is not None:
        seconds = now.run.total.seconds
        row |= {"current": seconds / _HOUR, "equal": now.equal_epochs, "baseline": now.baseline}
    return row


def times_table(found: Costed) -> Table:
    """Measured and modelled time of a run, by level."""
    columns = (
        Column("level", "level"),
        Column("epochs", "epochs", Kind.NUMBER),
        Column("measured", "measured", Kind.NUMBER, "s", about="wall clock, validation included"),
        Column("modelled", "modelled", Kind.NUMBER, "s", about="training alone"),
        Column("ratio", "modelled / measured", Kind.NUMBER, digits=2),
    )
    rows: list[dict[str, Value]] = [
        {
            "level": level,
            "epochs": epochs,
            "measured": measured,
            "modelled": modelled,
            "ratio": modelled / measured if modelled is not None and measured else None,
        }
        for level, (epochs, measured, modelled) in totals(found.times).items()
    ]
    return Table("The run so far, measured and modelled", columns, tuple(rows))
