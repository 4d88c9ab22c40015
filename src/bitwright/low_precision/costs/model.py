# SPDX-License-Identifier: Apache-2.0
"""Time and energy of training, from what one step costs at each level of precision.

The model of MuPPET (Rajagopal et al. 2020; Vink 2023, section 3.3)::

    T_epoch(level) = T_rest + sum over layers and products of T_product(level)
                     + T_quantize(level: weights, activations, gradients) + T_policy

Where a step's costs come from makes no difference here: numbers that somebody gives, measurements
of a machine, or a described device. Every table says which.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from bitwright.base.errors import RecipeError, TargetError
from bitwright.base.figures import Figure, Source
from bitwright.low_precision.costs.schedule import Phase, Schedule
from bitwright.low_precision.ladder import FLOAT32

if TYPE_CHECKING:
    from bitwright.low_precision.costs.network import Network

#: The part that stands for all products together.
SUM = "products"
#: Which product's level says how a part is quantized.
_TAKEN_BY = {"weights": "forward", "activations": "forward", "gradients": "grad_weight"}


class Variant(StrEnum):
    """How numbers get from one layer to the next.

    current: they are float32 in between, so a step pays for quantizing them; ideal: the device
    computes in every format natively, and quantizing costs nothing.
    """

    CURRENT = "current"
    IDEAL = "ideal"


@dataclass(frozen=True)
class Cost:
    """Time, and energy where it is known; additive.

    Attributes:
        joules: None if nothing is known about energy, and so of every sum with such a cost.
        spread: seconds either way that measurements differed by; they add up, as if all of them
            had been slow together.
    """

    seconds: float
    joules: float | None = None
    spread: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        known = self.joules is not None and other.joules is not None
        joules = self.joules + other.joules if known else None  # type: ignore[operator]
        return Cost(self.seconds + other.seconds, joules, self.spread + other.spread)

    def __mul__(self, count: float) -> Cost:
        joules = None if self.joules is None else self.joules * count
        return Cost(self.seconds * count, joules, self.spread * count)

    def figures(self, source: Source) -> dict[str, Any]:
        """Labelled, for JSON."""
        found = {"time": Figure(self.seconds, "s", source).to_json()}
        if self.joules is not None:
            found["energy"] = Figure(self.joules, "J", source).to_json()
        if self.spread:
            found["spread"] = Figure(self.spread, "s", source).to_json()
        return found


NOTHING = Cost(0.0, 0.0)


def total(costs: Iterable[Cost]) -> Cost:
    """Sum of costs; of none, nothing."""
    return sum(costs, NOTHING)


@dataclass(frozen=True)
class PartCost:
    """One product of one layer, or quantizing for one layer, in one step.

    Attributes:
        layer: its path; empty where only a sum over the network is known.
        part: a product (``forward``, ``grad_input``, ``grad_weight``), or what is quantized
            (``weights``, ``activations``, ``gradients``); ``products`` for a sum of all products.
        unit: what computes it.
    """

    layer: str
    part: str
    cost: Cost
    unit: str = ""


@dataclass(frozen=True)
class LevelCosts:
    """A step at one level.

    Attributes:
        level: as the ladder names it.
        products: one a product, or fewer where only sums are known.
        native: the same on a device that computes natively; None: as ``products``.
        quantize: weights, activations and gradients, layer by layer or as sums.
        rest: all other operations, where the level changes them; None: as at any level.
    """

    level: str
    products: tuple[PartCost, ...]
    native: tuple[PartCost, ...] | None = None
    quantize: tuple[PartCost, ...] = ()
    rest: Cost | None = None


@dataclass(frozen=True)
class EpochCost:
    """An epoch in parts."""

    rest: Cost
    products: Cost
    quantize: Cost
    policy: Cost

    @property
    def total(self) -> Cost:
        return self.rest + self.products + self.quantize + self.policy

    def to_json(self, source: Source) -> dict[str, Any]:
        parts = {**vars(self), "total": self.total}
        return {name: part.figures(source) for name, part in parts.items()}


@dataclass(frozen=True)
class CostTable:
    """What training a network costs by level.

    Attributes:
        name: network and machine.
        source: where the numbers come from.
        steps: of an epoch.
        rest: of a step, all that is no product: batch norm, activations, loss, optimizer.
        policy: of an epoch in few bits, what deciding about precision costs.
        levels: by name.
        notes: what a reader must know: assumptions, sources, how it was measured.
    """

    name: str
    source: Source
    steps: int
    rest: Cost
    policy: Cost
    levels: Mapping[str, LevelCosts]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise RecipeError(
                f"{self.steps} steps an epoch", where=self.name, hint="expected 1 or more"
            )

    def level(self, name: str) -> LevelCosts:
        """Costs of one level.

        Raises:
            RecipeError: there is no number for it.
        """
        found = self.levels.get(name)
        if found is None:
            raise RecipeError(
                f"no numbers for level {name!r}; there are some for {', '.join(self.levels)}",
                where=self.name,
                hint="give its times, measure it, or use a schedule of these levels",
            )
        return found

    def seconds(self, levels: Sequence[str]) -> dict[tuple[str, str], tuple[float, ...]]:
        """(layer, product) -> of a step at each of the levels, lowest first.

        Raises:
            RecipeError: there is no number for one of them, or only sums over the network.
        """
        found: dict[tuple[str, str], list[float]] = {}
        for place, name in enumerate(levels):
            for part in self.level(name).products:
                if not part.layer:
                    raise RecipeError(
                        "only sums over the network are known, not each layer's products",
                        where=self.name,
                        hint="name a described device, or give the times of each layer's products",
                    )
                times = found.setdefault((part.layer, part.part), [0.0] * len(levels))
                times[place] += part.cost.seconds
        return {key: tuple(times) for key, times in found.items()}

    def epoch(
        self, level: str, variant: Variant = Variant.CURRENT, *, adaptive: bool = True
    ) -> EpochCost:
        """One epoch at a level.

        Args:
            adaptive: a policy looks at gradients (it does so in few bits only).

        Raises:
            RecipeError: there is no number for the level.
        """
        found = self.level(level)
        ideal = variant is Variant.IDEAL
        products = found.native if ideal and found.native is not None else found.products
        few_bits = level != FLOAT32
        return EpochCost(
            (self.rest if found.rest is None else found.rest) * self.steps,
            total(each.cost for each in products) * self.steps,
            NOTHING if ideal else total(each.cost for each in found.quantize) * self.steps,
            self.policy if adaptive and few_bits else NOTHING,
        )

    def mixture(self, name: str, levels: Mapping[tuple[str, str], str]) -> CostTable:
        """The table with one more level, whose products run at different ones.

        Args:
            name: of the new level.
            levels: (layer, product) -> level; a product that is not named runs in float32.

        Raises:
            RecipeError: there is no number for one of them, or only sums over the network.
        """
        named = {*levels.values()} | ({FLOAT32} & self.levels.keys())
        known = {level: self.level(level) for level in named}
        every = [each for costs in known.values() for each in costs.products]
        if any(not each.layer for each in every):
            raise RecipeError(
                f"level {name!r} differs from layer to layer, and only sums over the network are "
                "known",
                where=self.name,
                hint="give the times of each layer's products",
            )
        if any((each.layer, each.part) not in levels for each in every):
            known[FLOAT32] = self.level(FLOAT32)

        def chosen(kind: str) -> tuple[PartCost, ...]:
            found = []
            for level, costs in known.items():
                parts: tuple[PartCost, ...] | None = getattr(costs, kind)
                for each in costs.products if parts is None else parts:
                    product = _TAKEN_BY.get(each.part, each.part)
                    if levels.get((each.layer, product), FLOAT32) == level:
                        found.append(each)
            return tuple(found)

        added = LevelCosts(name, chosen("products"), chosen("native"), chosen("quantize"))
        return replace(self, levels={**self.levels, name: added})

    def run(self, schedule: Schedule, variant: Variant = Variant.CURRENT) -> RunCost:
        """A whole training run.

        Raises:
            RecipeError: there is no number for one of its levels.
        """
        phases = tuple(
            (
                phase,
                self.epoch(phase.level, variant, adaptive=schedule.adaptive).total * phase.epochs,
            )
            for phase in schedule.phases
        )
        return RunCost(schedule, variant, phases, self.source)


class Accelerator(ABC):
    """A machine with a model of its own, not the roofline of a described device; plug-ins add it by
    its name (`base.plugins.Plugin.devices`).

    Attributes:
        name: of the machine.
        formats: that it computes in, in words.
        notes: what its numbers are, and what they leave out.
    """

    name: str
    formats: ClassVar[str]
    notes: ClassVar[tuple[str, ...]]

    @abstractmethod
    def computes(self, level: str) -> bool:
        """Whether it has numbers of a level."""

    @abstractmethod
    def products(self, network: Network, level: str) -> LevelCosts:
        """A step's products at a level that it computes in.

        Raises:
            TargetError: it cannot hold a layer.
        """

    def costs(self, network: Network, levels: Sequence[str], steps: int) -> CostTable:
        """What a network's training costs at each of the levels, steps being those of an epoch.

        Raises:
            TargetError: it cannot compute in a level, or cannot hold a layer.
        """
        for level in levels:
            if not self.computes(level):
                raise TargetError(
                    f"{self.name} does not compute in {level}",
                    hint=f"it has {self.formats}: take a ladder, or a schedule, of these",
                )
        known = {level: self.products(network, level) for level in levels}
        name = f"{network.name} on {self.name}"
        return CostTable(name, Source.MODEL, steps, NOTHING, NOTHING, known, self.notes)


@dataclass(frozen=True)
class RunCost:
    """A training run by phases."""

    schedule: Schedule
    variant: Variant
    phases: tuple[tuple[Phase, Cost], ...]
    source: Source

    @property
    def total(self) -> Cost:
        return total(cost for _, cost in self.phases)

    def speed_up(self, other: RunCost) -> float:
        """How many times faster than another run this one is."""
        return other.total.seconds / self.total.seconds if self.total.seconds else math.inf

    def to_json(self) -> dict[str, Any]:
        return {
            "schedule": self.schedule.name,
            "variant": self.variant.value,
            "epochs": self.schedule.epochs,
            "phases": [
                {"level": phase.level, "epochs": phase.epochs, **cost.figures(self.source)}
                for phase, cost in self.phases
            ],
            "total": self.total.figures(self.source),
        }


@dataclass(frozen=True)
class Comparison:
    """A run beside float32.

    Attributes:
        equal_epochs: speed-up over float32 for as many epochs; None of a machine without float32.
        baseline: speed-up over the float32 baseline, however many epochs that has.
    """

    run: RunCost
    equal_epochs: float | None
    baseline: float | None

    def to_json(self) -> dict[str, Any]:
        label = {"unit": "times", "source": self.run.source.value}
        found = {"equal_epochs": self.equal_epochs, "baseline": self.baseline}
        known = {
            f"speed_up_{name}": {"value": v, **label}
            for name, v in found.items()
            if v is not None and math.isfinite(v)
        }
        return {**self.run.to_json(), **known}


def compare(
    table: CostTable,
    schedules: Sequence[Schedule],
    variants: Sequence[Variant] = (Variant.CURRENT, Variant.IDEAL),
    *,
    baseline_epochs: int = 150,
) -> tuple[Comparison, ...]:
    """Every schedule in every variant, against float32 where there are numbers of it.

    Args:
        baseline_epochs: of the float32 baseline; MuPPET's has 150.

    Raises:
        RecipeError: there are no numbers for one of the levels.
    """
    found = []
    for schedule in schedules:
        floats = [
            table.run(Schedule.constant(FLOAT32, epochs, "float32"))
            for epochs in (schedule.epochs, baseline_epochs)
            if FLOAT32 in table.levels
        ]
        for variant in variants:
            run = table.run(schedule, variant)
            equal, baseline = [run.speed_up(each) for each in floats] or (None, None)
            found.append(Comparison(run, equal, baseline))
    return tuple(found)
