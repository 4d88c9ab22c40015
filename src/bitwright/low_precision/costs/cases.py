# SPDX-License-Identifier: Apache-2.0
"""Which schedules a precision policy can give, before anything is trained."""

from __future__ import annotations

from itertools import count, takewhile

from bitwright.base.errors import RecipeError
from bitwright.low_precision.config import GmSettings, LowPrecision, MuppetSettings
from bitwright.low_precision.costs.model import CostTable
from bitwright.low_precision.costs.schedule import Phase, Schedule
from bitwright.low_precision.make import make_policy
from bitwright.low_precision.policy import EpochSeen, Plan


def possible_schedules(
    settings: LowPrecision, plan: Plan, table: CostTable | None = None
) -> tuple[Schedule, ...]:
    """The schedule of a policy that knows it; of one that watches gradients the extreme ones.

    For MuPPET: ``soonest`` climbs as early as the rule allows, ``latest`` stays at the lowest level
    until the last phase must begin. With a table ``slowest`` is the one that takes longest: as
    ``soonest``, and all epochs that are left at the quantized level that costs most.

    Args:
        plan: of the run.
        table: costs of a step at each level.

    Raises:
        RecipeError: the policy is of the user's own and watches gradients, or does not fit.
    """
    policy = settings.policy
    if plan.max_epochs < 1:
        return ()
    if isinstance(policy, GmSettings):
        raise _unknown("what gm decides depends on gradients and errors: nobody knows before")
    if isinstance(policy, MuppetSettings):
        return _of_muppet(settings, policy, plan, table)
    made = make_policy(settings, plan)
    if made.wants_gradients or made.wants_steps:
        raise _unknown(
            f"what {policy.kind} decides depends on gradients: nobody knows before training"
        )
    named = made.plan
    levels = []
    for epoch in takewhile(lambda e: not made.done(e), count()):
        given = made.level(epoch)
        if not isinstance(given, int):
            raise _unknown(
                f"{policy.kind} gives every product a level of its own, so no level has a name"
            )
        levels.append(named.name(given))
        made.after_epoch(EpochSeen(epoch))
    return (Schedule.of_levels(policy.kind, levels, adaptive=False),)


def _unknown(message: str) -> RecipeError:
    hint = "give a schedule: --schedule int8:37,int12:9,float32:45"
    return RecipeError(message, where="low_precision.policy", hint=hint)


def shortest_stays(settings: MuppetSettings, levels: int) -> tuple[int, ...]:
    """How many epochs MuPPET stays at each level below the last one, at least.

    At the first level the window must fill; the metric of that epoch is the first to compare with,
    and every violation takes an epoch of its own. Later levels begin with a full window, unless the
    history is cleared.
    """
    violations = settings.patience + (settings.count == "exceeds")
    first = settings.gradients + violations
    later = first if settings.history == "clear" else 1 + violations
    return (first, *(later for _ in range(levels - 2)))[: levels - 1]


def _of_muppet(
    settings: LowPrecision, policy: MuppetSettings, plan: Plan, table: CostTable | None
) -> tuple[Schedule, ...]:
    ladder = settings.ladder
    last = Phase(ladder[-1], plan.float_epochs)
    if len(ladder) == 1:
        return (Schedule.constant(ladder[0], plan.float_epochs, policy.kind),)
    room = max(0, plan.last_start)
    stays = shortest_stays(policy, len(ladder))
    found = [
        _climb("soonest", ladder, list(stays), room, last),
        Schedule("latest", (Phase(ladder[0], room), last)),
    ]
    if table is not None:
        left = list(stays)
        slowest = max(range(len(stays)), key=lambda i: (table.epoch(ladder[i]).total.seconds, -i))
        left[slowest] += max(0, room - sum(stays))
        found.append(_climb("slowest", ladder, left, room, last))
    unique = {schedule.phases: schedule for schedule in reversed(found)}
    return tuple(schedule for schedule in found if unique[schedule.phases] is schedule)


def _climb(
    name: str, ladder: tuple[str, ...], stays: list[int], room: int, last: Phase
) -> Schedule:
    """So many epochs at each level, cut where the last phase must begin."""
    phases = []
    for level, stay in zip(ladder, stays, strict=False):
        epochs = min(stay, room - sum(phase.epochs for phase in phases))
        if epochs > 0:
            phases.append(Phase(level, epochs))
    return Schedule(name, (*phases, last))
