# SPDX-License-Identifier: Apache-2.0
"""Policies whose switches are known before training: they differ in where the list comes from."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bitwright.base.errors import RecipeError, RunError
from bitwright.low_precision.log import read_log
from bitwright.low_precision.policy import Entry, EpochSeen, Plan, PrecisionPolicy

_REPLAY = "low_precision.policy"


class Schedule(PrecisionPolicy):
    """A list of switches.

    With ``ends`` the run is over ``float_epochs`` after the switch to the last level of the ladder,
    and the learning rate falls from there on; else the run has all its epochs, and the learning
    rate falls from ``last_phase`` on, if at all.
    """

    def __init__(
        self,
        plan: Plan,
        starts: Mapping[int, int],
        name: str,
        *,
        ends: bool = True,
        last_phase: int | None = None,
    ) -> None:
        """
        Args:
            starts: number of epochs done -> level from then on; 0 is among them.
            name: of the schedule, in the log.
        """
        super().__init__(plan)
        self.starts = dict(sorted(starts.items()))
        self.name = name
        self.ends = ends
        self._last_phase = last_phase
        if ends:
            self._last_phase = next(e for e, at in self.starts.items() if at == plan.last_level)

    def level(self, epoch: int) -> int:
        return [level for start, level in self.starts.items() if start <= epoch][-1]

    @property
    def last_phase(self) -> int | None:
        return self._last_phase

    def done(self, epoch: int) -> bool:
        if super().done(epoch):
            return True
        start = self._last_phase
        return self.ends and start is not None and epoch >= start + self.plan.float_epochs

    def after_epoch(self, seen: EpochSeen) -> Entry:
        here, after = self.level(seen.epoch), self.level(seen.epoch + 1)
        level = self.plan.name(here)
        if after == here:
            return self.entry(seen, f"{level}, as {self.name} says")
        reason = f"{level} is left after {seen.epoch + 1} epochs, as {self.name} says"
        return self.entry(seen, reason, switched_to=self.plan.name(after))

    def state_dict(self) -> dict[str, Any]:
        return {"starts": [list(pair) for pair in self.starts.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Raises:
            RunError: the run began with another schedule, as that of a file that has changed since.
        """
        before = {int(epoch): int(level) for epoch, level in state["starts"]}
        if before != self.starts:
            raise RunError(
                f"the run began with the schedule {self._shown(before)}, now it is "
                f"{self._shown(self.starts)}",
                where=_REPLAY,
                hint="bring the recorded schedule back, or use another run directory",
            )

    def _shown(self, starts: Mapping[int, int]) -> str:
        return ", ".join(f"{self.plan.name(level)} from {epoch}" for epoch, level in starts.items())


def draw(plan: Plan, between: tuple[int, int], seed: int) -> dict[int, int]:
    """A climb through all levels at different epochs, drawn at random; the same for one seed.

    Args:
        between: first and last number of epochs done at which a switch may be.

    Raises:
        RecipeError: there are fewer such epochs than switches.
    """
    switches = plan.levels - 1
    epochs = range(between[0], between[1] + 1)
    if len(epochs) < switches:
        raise RecipeError(
            f"{switches} switches at different epochs do not fit between {between[0]} and "
            f"{between[1]}",
            where="low_precision.policy.between",
            hint="widen between, train longer, or shorten the ladder",
        )
    generator = random.Random(seed)
    order = sorted(epochs, key=lambda _: generator.random())
    chosen = sorted(order[:switches])
    return {0: 0} | {epoch: index + 1 for index, epoch in enumerate(chosen)}


def replay(
    plan: Plan, file: Path | None, schedule: Sequence[tuple[int, str]] | None
) -> PrecisionPolicy:
    """The schedule of a file or a list, on this run's ladder.

    Raises:
        RecipeError: it names a level that the ladder has not, or does not reach the last level in
            time.
        DataError: the file cannot be read.
    """
    where = f"{_REPLAY}.schedule" if file is None else str(file)
    pairs = recorded(file) if file is not None else list(schedule or ())
    starts = {}
    for epoch, name in pairs:
        if name not in plan.names:
            raise RecipeError(
                f"names the level {name} after {epoch} epochs, which the ladder has not",
                where=where,
                hint=f"the ladder is {', '.join(plan.names)}: give it the recorded levels",
            )
        starts[epoch] = plan.names.index(name)
    last = [epoch for epoch, level in starts.items() if level == plan.last_level]
    if not last:
        raise RecipeError(
            f"never reaches {plan.name(plan.last_level)}, the last level of the ladder",
            where=where,
            hint="replay a finished run, or shorten the ladder to its levels; for one level "
            "throughout there is the policy fixed",
        )
    if last[0] + plan.float_epochs > plan.max_epochs:
        raise RecipeError(
            f"reaches {plan.name(plan.last_level)} after {last[0]} epochs; with "
            f"{plan.float_epochs} epochs of it that is more than epochs ({plan.max_epochs})",
            where=where,
            hint=f"set epochs to {last[0] + plan.float_epochs} or more, or shorten float_epochs",
        )
    return Schedule(plan, starts, "the replayed schedule")


def recorded(path: Path) -> list[tuple[int, str]]:
    """[epochs done, level] of every switch in a ``precision.jsonl``.

    Raises:
        DataError: the file is missing, damaged, or empty.
        RecipeError: its products had different levels.
    """
    found: list[tuple[int, str]] = []
    for entry in read_log(path):
        if entry.products is not None:
            raise RecipeError(
                f"epoch {entry.epoch} had a precision for each product",
                where=str(path),
                hint="only schedules of the whole network can be replayed",
            )
        if not found or found[-1][1] != entry.level:
            found.append((entry.epoch - 1, entry.level))
    return found
