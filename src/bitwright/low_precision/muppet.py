# SPDX-License-Identifier: Apache-2.0
"""MuPPET: the policy that climbs when gradients of different epochs agree more than they did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitwright.low_precision.custom import find_metric
from bitwright.low_precision.diversity import GradientHistory, Measured, measured, not_finite
from bitwright.low_precision.policy import Entry, EpochSeen, Plan, PrecisionPolicy
from bitwright.low_precision.rule import SwitchRule
from bitwright.low_precision.settings import MuppetSettings


class Muppet(PrecisionPolicy):
    """Climbs the ladder by `SwitchRule`, and ends with a phase at its top.

    Without a usable metric an epoch counts as none: it is no violation, and nothing is compared
    with it later. Where the last phase must begin for the run to end in time, it begins.
    """

    def __init__(self, plan: Plan, settings: MuppetSettings) -> None:
        """
        Raises:
            RecipeError: the metric cannot be imported.
        """
        super().__init__(plan)
        self.settings = settings
        self.metric = find_metric(settings.metric)
        self.rule = SwitchRule(settings)
        self.history = GradientHistory(settings.gradients, plan.shapes)
        self._level = 0

    def level(self, epoch: int) -> int:
        return self._level

    @property
    def wants_gradients(self) -> bool:
        return not self._is_last

    @property
    def last_phase(self) -> int | None:
        return self.rule.entered if self._is_last else None

    def done(self, epoch: int) -> bool:
        if super().done(epoch):
            return True
        return self._is_last and epoch >= self.rule.entered + self.plan.float_epochs

    def after_epoch(self, seen: EpochSeen) -> Entry:
        plan, here = self.plan, self.plan.name(self._level)
        if self._is_last:
            nth = seen.epoch - self.rule.entered + 1
            return self.entry(
                seen, f"{here}: the policy is off, epoch {nth} of {plan.float_epochs}"
            )
        found, p = self._measure(seen), None
        threshold = self.rule.threshold(seen.epoch)
        if found.value is not None:
            p = self.rule.observe(seen.epoch, found.value)
        reason = self._compared(found, p, threshold)
        target = self._level + 1 if self.rule.wants_switch else None
        if target is not None:
            reason += f": {here} is left"
        if seen.epoch + 1 >= plan.last_start and target != plan.last_level:
            target = plan.last_level
            reason += f"; the last {plan.float_epochs} of {plan.max_epochs} epochs begin"
        entry = self.entry(
            seen,
            reason,
            switched_to=None if target is None else plan.name(target),
            diversity=found.value,
            p=p,
            threshold=threshold,
            violations=self.rule.violations,
        )
        if target is not None:
            self._enter(target, seen.epoch + 1)
        return entry

    def state_dict(self) -> dict[str, Any]:
        return {
            "level": self._level,
            "entered": self.rule.entered,
            "seen": list(self.rule.seen),
            "violations": self.rule.violations,
            "history": self.history.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._level = int(state["level"])
        self.rule.enter(int(state["entered"]))
        self.rule.seen = [float(value) for value in state["seen"]]
        self.rule.violations = int(state["violations"])
        self.history.load_state_dict(state["history"])

    @property
    def _is_last(self) -> bool:
        return self._level == self.plan.last_level

    def _enter(self, level: int, epoch: int) -> None:
        self._level = level
        self.rule.enter(epoch)
        if self.settings.history == "clear" or self._is_last:
            self.history.clear()

    def _measure(self, seen: EpochSeen) -> Measured:
        """The metric of an epoch, or why it has none."""
        if not seen.gradients:
            return Measured(None, "no gradients of the last step")
        wrong = not_finite(seen.gradients)
        if wrong is not None:
            return Measured(None, f"the gradients of {wrong} are not finite")
        self.history.add(seen.gradients)
        if not self.history.is_full:
            wanted = self.settings.gradients
            return Measured(None, f"{len(self.history)} of {wanted} gradients stored")
        return measured(self.metric, self.history.window())

    def _compared(self, found: Measured, p: float | None, threshold: float) -> str:
        """What the metric says, in words."""
        note = f" ({found.note})" if found.note else ""
        if found.value is None:
            return f"not compared: {found.note}"
        if p is None:
            return f"the first diversity at this level: nothing to compare with{note}"
        needed = self.settings.patience + (self.settings.count == "exceeds")
        if p > threshold:
            nth = f"violation {self.rule.violations} of {needed}"
            return f"p {p:.5g} > threshold {threshold:.5g}{note}: {nth}"
        return f"p {p:.5g} <= threshold {threshold:.5g}{note}"
