# SPDX-License-Identifier: Apache-2.0
"""GM: MuPPET for the whole network, and single products of convolutions below its level.

Vink 2023, chapter 6 (specification 004, 2.5; its correction of 6.7 is used: a product is lowered
when its passes reach psi). What is measured and what a lower precision saves come from outside:
`StepSeen.errors`, `Plan.seconds`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bitwright.base.errors import RecipeError
from bitwright.low_precision.muppet import Muppet
from bitwright.low_precision.policy import Entry, EpochSeen, Plan, PrecisionPolicy, StepSeen
from bitwright.low_precision.settings import GmSettings

#: (layer, product).
Key = tuple[str, str]


class Gm(PrecisionPolicy):
    """MuPPET overrules; between its switches, ticks lower products one level at a time.

    Attributes:
        chosen: conv_acc, the products that take part; the others are float32.
    """

    wants_steps = True

    def __init__(self, plan: Plan, settings: GmSettings, climbs: tuple[int, ...]) -> None:
        """
        Args:
            climbs: indices of MuPPET's levels in the ladder, rising.

        Raises:
            RecipeError: no times of the products are known, or the metric cannot be imported.
        """
        super().__init__(plan)
        if not plan.seconds:
            raise RecipeError(
                "the policy gm weighs time against error, and no time is known",
                where="low_precision.device",
                hint="name a device, such as fpgpt-u250",
            )
        self.settings, self.climbs = settings, climbs
        names = tuple(plan.names[level] for level in climbs) if plan.names else ()
        self.muppet = Muppet(
            replace(plan, levels=len(climbs), names=names, float_level=None), settings
        )
        self.chosen = most_to_save(plan.seconds, settings.tau_total)
        self._histories: dict[Key, deque[int]] = {
            key: deque(maxlen=settings.eta) for key in self.chosen
        }
        self._enter(climbs[0])

    def _enter(self, level: int) -> None:
        """Every product at one level; nothing is known about any."""
        self._levels = dict.fromkeys(self.chosen, level)
        self._sums = {key: (0.0, 0) for key in self.chosen}
        for history in self._histories.values():
            history.clear()
        self._ran = dict(self._levels)

    @property
    def _is_last(self) -> bool:
        return self.muppet.last_phase is not None

    def level(self, epoch: int) -> Mapping[Key, int]:
        return dict(self._levels)

    @property
    def wants_gradients(self) -> bool:
        return self.muppet.wants_gradients

    @property
    def last_phase(self) -> int | None:
        return self.muppet.last_phase

    def done(self, epoch: int) -> bool:
        return self.muppet.done(epoch)

    def tau(self, key: Key) -> float:
        """What a step saves if a product runs one level lower (6.1), in the unit of the settings;
        nothing at the lowest level."""
        level = self._levels[key]
        if not level:
            return 0.0
        times = self.plan.seconds[key]
        saved = times[level] - times[level - 1]
        if self.settings.tau_unit == "seconds":
            return saved
        everything = sum(
            seconds[self._levels.get(other, -1)] for other, seconds in self.plan.seconds.items()
        )
        return saved / everything if everything else 0.0

    def candidates(self) -> tuple[Key, ...]:
        """conv_tau, the products that a lower level would make fast enough (6.2)."""
        if self._is_last and not self.settings.after_float32:
            return ()
        least = self.settings.tau_threshold
        return tuple(key for key in self.chosen if self._levels[key] and self.tau(key) >= least)

    def watched(self) -> Mapping[Key, tuple[int, ...]]:
        return {key: (self._levels[key], self._levels[key] - 1) for key in self.candidates()}

    def after_step(self, step: StepSeen) -> Mapping[Key, int] | None:
        for key, (present, lower) in step.errors.items():
            total, count = self._sums[key]
            self._sums[key] = total + lower - present, count + 1
        ticks, steps = self.settings.omega, self.plan.steps_per_epoch
        if (step.batch + 1) * ticks // steps == step.batch * ticks // steps:
            return None
        return dict(self._levels) if self._tick() else None

    def _tick(self) -> bool:
        """Look at every candidate; whether one is lowered."""
        lowered = []
        for key in self.candidates():
            total, count = self._sums[key]
            if not count:
                continue
            history = self._histories[key]
            history.append(int(total / count <= self.settings.eps_threshold))
            if sum(history) >= self.settings.psi:
                history.clear()
                lowered.append(key)
        self._sums = {key: (0.0, 0) for key in self.chosen}
        for key in lowered:
            self._levels[key] -= 1
        return bool(lowered)

    def after_epoch(self, seen: EpochSeen) -> Entry:
        ran, here = self._ran, self.muppet.level(seen.epoch)
        found = self.muppet.after_epoch(seen)
        before = sum(ran[key] != self._levels[key] for key in self.chosen)
        below = sum(level < self.climbs[here] for level in self._levels.values())
        reason = (
            f"{found.reason}; {before} products lowered in this epoch, {below} of "
            f"{len(self.chosen)} are below {self.plan.name(self.climbs[here])}"
        )
        now = self.muppet.level(seen.epoch + 1)
        if now != here:
            self._enter(self.climbs[now])
        switched = found.switched_to
        if now == here and before:
            switched = self.name_of(self._levels)
        self._ran = dict(self._levels)
        return replace(
            found,
            reason=reason,
            level=self.name_of(ran),
            products=self.named(ran),
            switched_to=switched,
        )

    def state_dict(self) -> dict[str, Any]:
        keys = list(self.chosen)
        return {
            "muppet": self.muppet.state_dict(),
            "keys": [list(key) for key in keys],
            "levels": [self._levels[key] for key in keys],
            "ran": [self._ran[key] for key in keys],
            "histories": [list(self._histories[key]) for key in keys],
            "sums": [list(self._sums[key]) for key in keys],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if [tuple(key) for key in state["keys"]] != list(self.chosen):
            raise ValueError("the state is of other products: device or tau_total have changed")
        self.muppet.load_state_dict(state["muppet"])
        for place, key in enumerate(self.chosen):
            self._levels[key] = int(state["levels"][place])
            self._ran[key] = int(state["ran"][place])
            self._histories[key].clear()
            self._histories[key].extend(int(one) for one in state["histories"][place])
            total, count = state["sums"][place]
            self._sums[key] = float(total), int(count)


def most_to_save(seconds: Mapping[Key, tuple[float, ...]], share: float) -> tuple[Key, ...]:
    """conv_acc: the fewest products that hold a share of all time that the ladder could save, from
    its highest level to its lowest (specification 004, 2.5.2); in the order of the network."""
    saved = {key: times[-1] - times[0] for key, times in seconds.items() if times[-1] > times[0]}
    wanted, held, chosen = share * sum(saved.values()), 0.0, set()
    for key in sorted(saved, key=lambda one: -saved[one]):
        # Sums in another order differ in their last bits.
        if held >= wanted * (1 - 1e-12):
            break
        held += saved[key]
        chosen.add(key)
    return tuple(key for key in seconds if key in chosen)
