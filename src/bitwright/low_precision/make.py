# SPDX-License-Identifier: Apache-2.0
"""From settings to the policy of one run. torch is loaded for those policies that need it."""

from __future__ import annotations

from dataclasses import replace

from bitwright.low_precision.config import LowPrecision
from bitwright.low_precision.policy import Plan, PrecisionPolicy
from bitwright.low_precision.schedules import Schedule, draw, replay
from bitwright.low_precision.settings import (
    BaselineSettings,
    CustomSettings,
    FixedSettings,
    GmSettings,
    MixedSettings,
    MuppetSettings,
    RandomSettings,
    ReplaySettings,
)


def make_policy(settings: LowPrecision, plan: Plan) -> PrecisionPolicy:
    """The policy that a run's settings name.

    Raises:
        RecipeError: it does not fit the run, or the user's own is no policy.
        ModelError: the user's own code cannot be imported, or fails.
    """
    plan = replace(
        plan,
        names=settings.ladder,
        lr_every=settings.lr_every,
        lr_divisor=settings.lr_divisor,
    )
    chosen = settings.policy
    if isinstance(chosen, GmSettings):
        from bitwright.low_precision.gm import Gm

        climbs = chosen.climbed(settings.ladder)
        return Gm(plan, chosen, tuple(settings.ladder.index(level) for level in climbs))
    if isinstance(chosen, MuppetSettings):
        from bitwright.low_precision.muppet import Muppet

        return Muppet(plan, chosen)
    if isinstance(chosen, CustomSettings):
        from bitwright.low_precision.custom import make_custom

        return make_custom(chosen.kind, plan, chosen.options)
    if isinstance(chosen, BaselineSettings):
        return Schedule(plan, {0: 0}, "the baseline", ends=False)
    if isinstance(chosen, MixedSettings):
        return Schedule(plan, {0: 0}, "mixed precision", ends=False)
    if isinstance(chosen, FixedSettings):
        starts = {0: 0} if chosen.switch_at is None else {0: 0} | {chosen.switch_at: 1}
        last = plan.last_start if plan.float_epochs else None
        return Schedule(plan, starts, "the fixed schedule", last_phase=last, ends=False)
    if isinstance(chosen, RandomSettings):
        seed = plan.seed if chosen.seed is None else chosen.seed
        starts = draw(plan, chosen.between or (1, plan.last_start), seed)
        return Schedule(plan, starts, f"the random schedule of seed {seed}")
    assert isinstance(chosen, ReplaySettings)
    return replay(plan, chosen.file, chosen.schedule)
