# SPDX-License-Identifier: Apache-2.0
"""What a recipe says about training in low precision. No torch here.

::

    low_precision: muppet               # all defaults, or
    low_precision:
      policy: {kind: muppet, beta: 1.2, patience: 3}
      ladder: [8, 12, 14, 16, float32]  # N is intN: dynamic fixed point of N bits
      float_epochs: 45
      rules:                            # as in `quant`; later ones win, field by field
        - {position: first, keep_float: true}
        - {layers: head, product: grad_weight, format: int16}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from bitwright.base.described import Strict
from bitwright.base.errors import FormatError, RecipeError
from bitwright.base.plugins import plugged
from bitwright.base.trust import is_plugin
from bitwright.formats import parse_rounding
from bitwright.low_precision.arithmetic.accumulators import parse_accumulator
from bitwright.low_precision.ladder import FLOAT32, check_rising, parse_level
from bitwright.low_precision.settings import (
    POLICIES,
    AnyPolicy,
    GmSettings,
    MuppetSettings,
    PolicySettings,
)
from bitwright.quantize.policy import Policy
from bitwright.quantize.spec import Role

#: In ``quant`` of a recipe: the formats that the network was trained in.
AS_TRAINED = "as_trained"
#: Engines of ours, or the choice between them; the others are plugged in.
OWN_ENGINES = ("auto", "emulated", "integer")
_Count = Annotated[int, Field(ge=1, le=100_000)]
_Epochs = Annotated[int, Field(ge=0, le=100_000)]


class LowPrecision(Strict):
    """Training in low precision: how numbers are stored, and who decides when.

    Attributes:
        policy: who chooses the level of precision; a name alone has the defaults of its settings.
        ladder: the levels, lowest precision first: ``intN`` or N (dynamic fixed point: one power of
            two a tensor), floats, block formats, ``float32`` last if at all. Policies that know
            their levels (`baseline`, `mixed`, `fixed`) have these instead.
        rounding: of operands; stochastic rounding is unbiased.
        results: whether what a product gives is rounded to the level as well, not only what it
            takes. Weight gradients always are.
        accumulator: ``exact``: as wide as it takes; ``intN``: refused where a sum might not fit;
            ``float32`` for formats that are no integers.
        engine: who multiplies: ``integer``, ``emulated``, or whichever is faster (``auto``); or a
            simulated accelerator by its name; or your own, ``package.module:function`` without
            arguments. The numbers are the same.
        norms: batch norm and ReLU of a training step on a CPU, in float32 throughout: ``fast``, in
            C, or those of ``torch``; the numbers differ in their last bits.
        float_epochs: length of the last phase, at the top of the ladder; ``epochs`` of the training
            settings is the most that the whole run may have.
        lr_every, lr_divisor: in the last phase the learning rate is divided by ``lr_divisor`` every
            ``lr_every`` epochs; before it is constant.
        bad_gradients: what happens to a step whose gradients are not finite, or all zero: ``stop``
            the run, or ``skip`` the step; both say so.
        device: a described device (see `bitwright forecast`), by name or file, whose time for every
            epoch is estimated in the log.
        rules: exceptions for some layers or products, as the ``rules`` of `quant`, with ``product``
            beside ``role``; without a role all of them. At float32 nothing is quantized anyway.
    """

    policy: AnyPolicy = MuppetSettings()
    ladder: Annotated[tuple[str, ...], Field(validate_default=True)] = (
        "int8",
        "int12",
        "int14",
        "int16",
        FLOAT32,
    )
    rounding: str = "stochastic"
    results: bool = False
    accumulator: str = "exact"
    engine: str = "auto"
    norms: Literal["fast", "torch"] = "fast"
    float_epochs: _Epochs = 45
    lr_every: _Count = 15
    lr_divisor: Annotated[float, Field(ge=1.0, le=1e6)] = 10.0
    bad_gradients: Literal["stop", "skip"] = "stop"
    device: str | None = None
    rules: tuple[dict[str, Any], ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _policy_alone(cls, value: Any) -> Any:
        return {"policy": value} if isinstance(value, str) else value

    @field_validator("policy", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        found = {"kind": value} if isinstance(value, str) else value
        if not isinstance(found, Mapping | PolicySettings):
            raise ValueError(
                f"expected the name of a policy or a section with kind, found {value!r}"
            )
        if isinstance(found, Mapping):
            found = {"kind": "muppet", **found}
            kind = found["kind"]
            if not isinstance(kind, str) or (kind not in POLICIES and ":" not in kind):
                raise ValueError(
                    f"no policy {kind!r}; known: {', '.join(POLICIES)}; your own is written "
                    "package.module:function"
                )
        return found

    @field_validator("ladder", mode="before")
    @classmethod
    def _levels(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise ValueError(
                f"expected a list of levels, such as [8, 16, float32], found {value!r}"
            )
        return tuple(parse_level(level).name for level in value)

    @field_validator("ladder")
    @classmethod
    def _rises(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        check_rising(value)
        policy = info.data.get("policy")  # not there if it is wrong itself
        return value if policy is None else tuple(policy.levels_used(value))

    @field_validator("engine")
    @classmethod
    def _is_an_engine(cls, value: str) -> str:
        known = (*OWN_ENGINES, *plugged("engines"))
        if value not in known and not is_plugin(value):
            raise ValueError(
                f"no engine {value!r}; known: {', '.join(known)}; your own is written "
                "package.module:function"
            )
        return value

    @field_validator("rounding")
    @classmethod
    def _is_a_rounding(cls, value: str) -> str:
        try:
            return parse_rounding(value).value
        except FormatError as error:
            raise ValueError(f"{error.message} ({error.hint})") from error

    @field_validator("accumulator", mode="before")
    @classmethod
    def _is_an_accumulator(cls, value: Any) -> str:
        try:
            return parse_accumulator(f"int{value}" if type(value) is int else value).name
        except RecipeError as error:
            raise ValueError(f"{error.message}; expected {error.hint}") from error

    @field_validator("rules")
    @classmethod
    def _rules_parse(
        cls, value: tuple[dict[str, Any], ...], info: ValidationInfo
    ) -> tuple[dict[str, Any], ...]:
        known = info.data
        for name in known.get("ladder", ()) if "rounding" in known and "results" in known else ():
            level_policy(name, known["rounding"], results=known["results"], rules=value)
        return value

    @model_validator(mode="after")
    def _has_times(self) -> LowPrecision:
        if isinstance(self.policy, GmSettings) and self.device is None:
            raise ValueError(
                "the policy gm weighs time against error: name the device whose time it is, such "
                "as device: fpgpt-u250"
            )
        return self

    @property
    def float_level(self) -> int | None:
        """The index of float32 in the ladder."""
        return self.ladder.index(FLOAT32) if FLOAT32 in self.ladder else None

    def check_epochs(self, epochs: int) -> None:
        """ValueError if a run of so many epochs cannot have this schedule."""
        self.policy.check_epochs(epochs, self.float_epochs)

    def arithmetic(self, level: int) -> Policy | None:
        """Formats of all operands at a level of the ladder; None at float32."""
        return level_policy(
            self.ladder[level], self.rounding, results=self.results, rules=self.rules
        )


def level_policy(
    name: str, rounding: str, *, results: bool, rules: tuple[dict[str, Any], ...] = ()
) -> Policy | None:
    """The formats of all operands of training at a level; None at float32.

    Args:
        name, rounding, results, rules: as in `LowPrecision`.

    Raises:
        ValueError: a rule is wrong.
    """
    found = parse_level(name).format
    if found is None:
        return None
    roles = [Role.INPUT, Role.WEIGHT, Role.GRAD_OUTPUT, Role.GRAD_WEIGHT]
    if results:
        roles += [Role.ACTIVATION, Role.GRAD_INPUT]
    operand = {"format": found.name, "rounding": rounding}
    given = {role.value: operand for role in roles}
    try:
        return Policy.for_training({**given, "rules": rules}, "low_precision")
    except RecipeError as error:
        where = str(error.where).removeprefix("low_precision.")
        hint = f" ({error.hint})" if error.hint else ""
        raise ValueError(f"{where}: {error.message}{hint}") from error


def formats_as_trained(settings: LowPrecision) -> dict[str, Any]:
    """What a recipe's ``quant`` says of the lowest level that a network was trained in.

    Weights have the very scales of training. Activations, which in training have a power of two
    for every batch, have one power of two from calibration.

    Raises:
        ValueError: that level is not dynamic fixed point, or some layers were excepted from it.
    """
    level = parse_level(settings.ladder[0])
    if level.format is None or not level.format.is_integer:
        raise ValueError(
            f"quant: {AS_TRAINED} needs dynamic fixed point, and the lowest level of "
            f"train.float.low_precision is {level.name}: say the formats in quant"
        )
    if settings.rules:
        raise ValueError(
            f"quant: {AS_TRAINED} is one format throughout, and train.float.low_precision.rules "
            "make exceptions: say the formats in quant"
        )
    name = level.format.name
    static = {"format": name, "scale": "max", "power_of_two": True}
    return {
        "input": static,
        "weight": {"format": name, "scale": "dynamic"},
        "activation": static,
    }
