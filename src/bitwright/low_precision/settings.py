# SPDX-License-Identifier: Apache-2.0
"""Settings of the policies that choose precisions. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from bitwright.base.described import Strict
from bitwright.base.trust import is_plugin
from bitwright.low_precision.ladder import FLOAT32, parse_level

DIVERSITY = "diversity"
#: Where MuPPET's ladder begins by default.
_USUAL_BITS = 8
_Count = Annotated[int, Field(ge=1, le=100_000)]
_Epoch = Annotated[int, Field(ge=0, le=100_000)]
_Weight = Annotated[float, Field(ge=0.0, le=1e6)]


class PolicySettings(Strict):
    """What all policies have in common.

    Attributes:
        kind: which policy.
    """

    model_config = ConfigDict(populate_by_name=True)

    summary: ClassVar[str] = ""
    #: Whether it says how the learning rate falls; else the training settings' schedule does.
    rules_rate: ClassVar[bool] = True

    kind: str

    def levels_used(self, ladder: tuple[str, ...]) -> tuple[str, ...]:
        """The levels that it really uses, given those of the settings."""
        return ladder

    def check_epochs(self, epochs: int, float_epochs: int) -> None:
        """ValueError if a run of so many epochs cannot have this schedule."""


class _Climbing(PolicySettings):
    """Policies that climb the ladder and end with a phase of ``float_epochs`` at its top."""

    def levels_used(self, ladder: tuple[str, ...]) -> tuple[str, ...]:
        if len(ladder) < 2:
            raise ValueError(
                f"the policy {self.kind} climbs, and the ladder has one level, {ladder[0]}: name "
                "two at least, or use the policy baseline, mixed or fixed"
            )
        return ladder

    def check_epochs(self, epochs: int, float_epochs: int) -> None:
        if not float_epochs:
            raise ValueError(
                f"float_epochs: 0 leaves the policy {self.kind} nothing to end with: the run would "
                "be over as soon as it reached the last level; give at least 1"
            )
        if epochs and float_epochs >= epochs:
            raise ValueError(
                f"float_epochs ({float_epochs}) leave no epoch for the levels below: epochs is "
                f"{epochs}; train longer, or shorten float_epochs"
            )


class MuppetSettings(_Climbing):
    """MuPPET (Rajagopal et al. 2020): climbs when the gradients of successive epochs agree more
    than they once did at the level. Equation numbers are those of Vink 2023.

    After epoch j, with S the metrics of the epochs since the level was entered::

        D = mean over layers of  sum_k |g_k|^2 / |sum_k g_k|^2,  k over the window     (3.9)
        p = max(S) / D                                                                 (3.11)
        violation if p > T = alpha + beta * exp(-lambda * j)                           (3.12)

    Attributes:
        alpha, beta, decay: of the threshold T; ``decay`` is written ``lambda``.
        resolution: r, in epochs.
        patience: gamma, in violations.
        window: how many gradients the sums have: ``literal``: r + 1, as (3.9) is printed;
            ``resolution``: r, as the text says.
        count: the level is left when the violations reach the patience (as its figure shows), or
            exceed it (as the rule is printed).
        epoch: j of the threshold: ``absolute`` from the beginning of training, or ``since_switch``
            from the first epoch of the level.
        violations: that count: all ``since_switch``, or ``consecutive`` ones.
        history: gradients of earlier levels: ``keep`` them in the window, or ``clear`` it.
        metric: ``diversity``, or ``package.module:function`` of the user's own, which gets by layer
            the gradients of the window, oldest first, and gives a number above zero or None.
    """

    summary: ClassVar[str] = "climbs when the diversity of gradients between epochs falls"

    kind: Literal["muppet"] = "muppet"
    alpha: _Weight = 1.0
    beta: _Weight = 1.5
    decay: Annotated[float, Field(ge=0.0, le=1e6, alias="lambda")] = 0.1
    resolution: Annotated[int, Field(ge=1, le=1000)] = 3
    patience: Annotated[int, Field(ge=1, le=1000)] = 2
    window: Literal["literal", "resolution"] = "literal"
    count: Literal["reaches", "exceeds"] = "reaches"
    epoch: Literal["absolute", "since_switch"] = "absolute"
    violations: Literal["since_switch", "consecutive"] = "since_switch"
    history: Literal["keep", "clear"] = "keep"
    metric: str = DIVERSITY

    @property
    def gradients(self) -> int:
        """Length of the window."""
        return self.resolution + (self.window == "literal")

    @model_validator(mode="after")
    def _has_two_gradients(self) -> MuppetSettings:
        if self.gradients < 2:
            raise ValueError(
                "resolution: 1 with window: resolution compares one gradient with itself: the "
                "diversity would always be 1; use resolution: 2, or window: literal"
            )
        return self

    @field_validator("metric")
    @classmethod
    def _is_a_metric(cls, value: str) -> str:
        if value != DIVERSITY and not is_plugin(value):
            raise ValueError(
                f"no metric {value!r}: {DIVERSITY}, or your own as package.module:function"
            )
        return value


class GmSettings(MuppetSettings):
    """GM (Vink 2023, chapter 6): MuPPET for the network, and below it each convolution's product
    lowered to a precision of its own where that saves time and costs little accuracy.

    Of convolution c, at its precision and the next lower one of the ladder::

        tau     = seconds(c, present) - seconds(c, lower), on the described device      (6.1)
        RAE     = |result - quantized|_2 / |result|_2                                   (6.3)
        epsilon = RAE(lower) - RAE(present), the mean over the steps of a tick          (6.4)
        pass    if epsilon <= eps_threshold and tau >= tau_threshold                    (6.2, 6.5)

    A tick adds a pass or a failure to the history of c; of ``psi`` passes in it c is lowered, and
    its history cleared. When MuPPET switches, every product has its level, all histories are empty.

    Attributes:
        eps_threshold: largest epsilon of a pass.
        tau_threshold: smallest tau of a pass, in ``tau_unit``.
        tau_unit: ``seconds`` of a step, or a ``share`` of the time of all convolutions of a step.
        tau_total: share of all time that could be saved; the fewest products that hold it take
            part, all others stay float32.
        omega: ticks an epoch.
        eta: length of a history, in ticks.
        psi: passes of it that lower a product.
        climbs: levels of the ladder that MuPPET has, lowest first; None: those from 8 bits on.
        after_float32: whether products are lowered when MuPPET has come to its last level, too; the
            network then ends mixed.
    """

    summary: ClassVar[str] = "MuPPET, and each product lowered below its level where that pays"

    kind: Literal["gm"] = "gm"  # type: ignore[assignment]
    eps_threshold: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    tau_threshold: Annotated[float, Field(ge=0.0, le=1e6)] = 0.0
    tau_unit: Literal["seconds", "share"] = "seconds"
    tau_total: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    omega: Annotated[int, Field(ge=1, le=10_000)] = 1
    eta: Annotated[int, Field(ge=1, le=10_000)] = 10
    psi: Annotated[int, Field(ge=1, le=10_000)] = 3
    climbs: tuple[str, ...] | None = None
    after_float32: bool = False

    @field_validator("climbs", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return tuple(parse_level(level).name for level in value)

    @model_validator(mode="after")
    def _can_pass(self) -> GmSettings:
        if self.psi > self.eta:
            raise ValueError(
                f"psi ({self.psi}) passes never fit a history of eta ({self.eta}) ticks: lower psi"
            )
        return self

    def levels_used(self, ladder: tuple[str, ...]) -> tuple[str, ...]:
        super().levels_used(ladder)
        missing = [level for level in self.climbs or () if level not in ladder]
        if missing or len(self.climbed(ladder)) < 2 or self.climbed(ladder)[-1] != ladder[-1]:
            raise ValueError(
                f"climbs must be two levels or more of the ladder and end as it does, found "
                f"{', '.join(self.climbed(ladder)) or 'none'} of {', '.join(ladder)}"
            )
        return ladder

    def climbed(self, ladder: tuple[str, ...]) -> tuple[str, ...]:
        """MuPPET's levels."""
        if self.climbs is not None:
            return self.climbs
        return tuple(level for level in ladder if parse_level(level).bits >= _USUAL_BITS)


class BaselineSettings(PolicySettings):
    """float32 throughout; the training settings' schedule rules the learning rate."""

    summary: ClassVar[str] = "float32 throughout"
    rules_rate: ClassVar[bool] = False

    kind: Literal["baseline"] = "baseline"

    def levels_used(self, ladder: tuple[str, ...]) -> tuple[str, ...]:
        return (FLOAT32,)


class MixedSettings(PolicySettings):
    """Mixed precision (Micikevicius et al. 2018): products in a short float, weights kept and
    updated in float32; the training settings' schedule rules the learning rate.

    Attributes:
        format: ``float16``, ``bfloat16``, or another float such as ``e4m3``.
    """

    summary: ClassVar[str] = "products in a 16-bit float throughout, weights kept in float32"
    rules_rate: ClassVar[bool] = False

    kind: Literal["mixed"] = "mixed"
    format: str = "float16"

    @field_validator("format", mode="before")
    @classmethod
    def _is_a_float(cls, value: Any) -> str:
        level = parse_level(value)
        if not level.is_minifloat:
            raise ValueError(
                f"mixed precision computes in a short float, found {level.name}: use float16, "
                "bfloat16 or one such as e4m3; the policy fixed takes any format"
            )
        return level.name

    def levels_used(self, ladder: tuple[str, ...]) -> tuple[str, ...]:
        return (self.format,)


class FixedSettings(PolicySettings):
    """One level, then float32 (Vink 2023, table 3.3): the run has all its epochs, and its last
    ``float_epochs`` have the falling learning rates, whatever the precision is by then.

    Attributes:
        level: the precision to begin with.
        switch_at: how many epochs it has before float32; None: it is never left (0 in that table).
    """

    summary: ClassVar[str] = "one level, then float32 from a given epoch on, or never"

    kind: Literal["fixed"] = "fixed"
    level: str = "int8"
    switch_at: _Epoch | None = None

    @field_validator("level", mode="before")
    @classmethod
    def _is_low(cls, value: Any) -> str:
        level = parse_level(value)
        if level.format is None:
            raise ValueError("the level is what float32 comes after: for float32 use baseline")
        return level.name

    def levels_used(self, ladder: tuple[str, ...]) -> tuple[str, ...]:
        return (self.level, FLOAT32)

    def check_epochs(self, epochs: int, float_epochs: int) -> None:
        if epochs and self.switch_at is not None and self.switch_at >= epochs:
            raise ValueError(
                f"switch_at: {self.switch_at} is past the end of the run ({epochs} epochs); leave "
                "it out for a run that never switches"
            )
        if epochs and float_epochs > epochs:
            raise ValueError(
                f"float_epochs ({float_epochs}), the epochs with falling learning rates, are more "
                f"than epochs ({epochs})"
            )


class RandomSettings(_Climbing):
    """Climbs at epochs drawn at random, all different, and ends as MuPPET does.

    Attributes:
        between: first and last epoch that may be drawn, as numbers of epochs done; None: from 1 to
            where the last phase begins at the latest.
        seed: of the draw; None: that of the run.
    """

    summary: ClassVar[str] = "climbs at random epochs"

    kind: Literal["random"] = "random"
    between: tuple[_Count, _Count] | None = None
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None

    @field_validator("between")
    @classmethod
    def _is_a_range(cls, value: tuple[int, int] | None) -> tuple[int, int] | None:
        if value is not None and value[0] > value[1]:
            raise ValueError(f"the first epoch must not be behind the last, found {list(value)}")
        return value

    def check_epochs(self, epochs: int, float_epochs: int) -> None:
        super().check_epochs(epochs, float_epochs)
        if epochs and self.between is not None and self.between[1] > epochs - float_epochs:
            raise ValueError(
                f"a switch after {self.between[1]} epochs and {float_epochs} float_epochs are more "
                f"than epochs ({epochs}): shorten between or float_epochs, or train longer"
            )


class ReplaySettings(_Climbing):
    """The schedule of another run, and then the phase at the last level.

    Attributes:
        file: its ``precision.jsonl``; or
        schedule: [epochs done, level] of every switch, such as [[0, 8], [12, 12], [30, float32]].
    """

    summary: ClassVar[str] = "the schedule of a recorded run, or one that is written down"

    kind: Literal["replay"] = "replay"
    file: Path | None = None
    schedule: tuple[tuple[_Epoch, str], ...] | None = None

    @field_validator("schedule", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
            raise ValueError(f"expected pairs of epochs done and level, found {value!r}")
        return tuple((epoch, parse_level(level).name) for epoch, level in value)

    @model_validator(mode="after")
    def _one_source(self) -> ReplaySettings:
        if (self.file is None) == (self.schedule is None):
            raise ValueError("replay needs either file or schedule")
        if self.schedule is None:
            return self
        epochs = [epoch for epoch, _ in self.schedule]
        if epochs[:1] != [0] or any(after <= before for before, after in pairwise(epochs)):
            raise ValueError(f"the epochs of a schedule begin with 0 and rise, found {epochs}")
        return self


class CustomSettings(PolicySettings):
    """A policy of the user's own. The learning rate is that of the training settings' schedule,
    times what the policy's ``lr_factor`` says.

    Attributes:
        kind: ``package.module:function`` (or class), called with the plan and the options; it gives
            a `PrecisionPolicy`.
        options: its keyword arguments.
    """

    summary: ClassVar[str] = "your own: package.module:function gives a PrecisionPolicy"
    rules_rate: ClassVar[bool] = False

    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("kind")
    @classmethod
    def _names_code(cls, value: str) -> str:
        if not is_plugin(value):
            raise ValueError(f"expected package.module:function, found {value!r}")
        return value


POLICIES: Mapping[str, type[PolicySettings]] = {
    "muppet": MuppetSettings,
    "baseline": BaselineSettings,
    "mixed": MixedSettings,
    "fixed": FixedSettings,
    "random": RandomSettings,
    "replay": ReplaySettings,
    "gm": GmSettings,
}
_CUSTOM = "own"


def _kind_of(value: Any) -> str:
    """Which settings a mapping means, or settings are."""
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return _CUSTOM if isinstance(kind, str) and ":" in kind else str(kind)


AnyPolicy = Annotated[
    Annotated[MuppetSettings, Tag("muppet")]
    | Annotated[GmSettings, Tag("gm")]
    | Annotated[BaselineSettings, Tag("baseline")]
    | Annotated[MixedSettings, Tag("mixed")]
    | Annotated[FixedSettings, Tag("fixed")]
    | Annotated[RandomSettings, Tag("random")]
    | Annotated[ReplaySettings, Tag("replay")]
    | Annotated[CustomSettings, Tag(_CUSTOM)],
    Discriminator(_kind_of),
]
