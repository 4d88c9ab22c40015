# SPDX-License-Identifier: Apache-2.0
"""MuPPET's rule on a sequence of metrics: when a level of precision is left. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bitwright.low_precision.settings import MuppetSettings


@dataclass
class SwitchRule:
    """The rule alone, on a sequence of metrics: equations 3.10 to 3.12 of Vink 2023.

    Attributes:
        entered: the first epoch, from 0, of the present level (e).
        seen: the metrics of this level so far (S).
        violations: that count at present.
    """

    settings: MuppetSettings
    entered: int = 0
    seen: list[float] = field(default_factory=list)
    violations: int = 0

    def threshold(self, epoch: int) -> float:
        """T of an epoch, from 0: alpha + beta * exp(-lambda * j)."""
        rule = self.settings
        j = epoch if rule.epoch == "absolute" else epoch - self.entered
        return rule.alpha + rule.beta * math.exp(-rule.decay * j)

    def observe(self, epoch: int, diversity: float) -> float | None:
        """Take an epoch's metric in; gives p, or None where there is nothing to compare with."""
        p = None
        if self.seen:
            p = max(self.seen) / diversity
            if p > self.threshold(epoch):
                self.violations += 1
            elif self.settings.violations == "consecutive":
                self.violations = 0
        self.seen.append(diversity)
        return p

    @property
    def wants_switch(self) -> bool:
        """Whether there were enough violations."""
        if self.settings.count == "exceeds":
            return self.violations > self.settings.patience
        return self.violations >= self.settings.patience

    def enter(self, epoch: int) -> None:
        """Begin a level."""
        self.entered, self.seen, self.violations = epoch, [], 0
