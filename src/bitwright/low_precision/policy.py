# SPDX-License-Identifier: Apache-2.0
"""What a precision policy is: from what it sees of training it chooses the next precision.

A policy knows the ladder by its indices alone, the lowest precision first. What it answers is an
`Assignment`: one index for the whole network, or one for each product of each layer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from bitwright.base.errors import RecipeError
from bitwright.low_precision.ladder import FLOAT32
from bitwright.quantize.spec import Product

if TYPE_CHECKING:
    from torch import Tensor

#: Names of the three products of training a layer.
PRODUCTS = tuple(product.value for product in Product)
#: An index into the ladder for all products, or by (path of the layer, product) one for each:
#: ``forward``, ``grad_input``, ``grad_weight``. A product that is not named runs in float32.
Assignment = int | Mapping[tuple[str, str], int]


@dataclass(frozen=True)
class Plan:
    """What a policy may know before training.

    Attributes:
        layers: paths of the layers whose products it chooses.
        levels: length of the ladder.
        float_level: the index of float32 in it, or None.
        max_epochs: no run is longer.
        float_epochs: length of the last phase, at the last level of the ladder.
        steps_per_epoch: optimizer steps.
        seed: of the run.
        names: of the levels; without them their numbers.
        lr_every, lr_divisor: in the last phase the learning rate is divided by ``lr_divisor`` every
            ``lr_every`` epochs.
        seconds: (layer, product) -> of a step at each level, on the device of the settings; empty
            without one.
        shapes: of the gradients of the layers' weights, where they are known.
    """

    layers: tuple[str, ...]
    levels: int
    float_level: int | None
    max_epochs: int
    float_epochs: int
    steps_per_epoch: int
    seed: int = 0
    names: tuple[str, ...] = ()
    lr_every: int = 15
    lr_divisor: float = 10.0
    seconds: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] | None = None

    @property
    def last_level(self) -> int:
        """The level that training ends with."""
        return self.levels - 1

    @property
    def last_start(self) -> int:
        """The epoch, from 0, at which the last phase begins at the latest."""
        return self.max_epochs - self.float_epochs

    def name(self, level: int) -> str:
        return self.names[level] if self.names else f"level {level}"


@dataclass(frozen=True)
class EpochSeen:
    """What a policy sees behind an epoch.

    Attributes:
        epoch: from 0.
        gradients: by layer, the weight gradient of the epoch's last minibatch as the optimizer got
            it (quantized, if that product's result is); empty if the policy wants none, or that
            step was skipped.
        train_loss, validation_loss: means over images.
        skipped: steps of the epoch that were left out, as their gradients were not usable.
    """

    epoch: int
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    train_loss: float = float("nan")
    validation_loss: float = float("nan")
    skipped: int = 0


@dataclass(frozen=True)
class StepSeen:
    """What a policy that changes something within an epoch sees behind a step.

    Attributes:
        epoch, batch: from 0; the batch within the epoch.
        gradients: by layer, of the weights.
        errors: of the products that `PrecisionPolicy.watched` names, at each of the levels named
            there: the relative error that rounding the result to it would make,
            ``|result - rounded| / |result|`` (Euclidean norms).
    """

    epoch: int
    batch: int
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    errors: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """The record of one epoch's decision: a line of ``precision.jsonl``.

    Attributes:
        epoch: from 1, as in ``metrics.jsonl``.
        level: name of the precision that the epoch ran in; ``FROM to TO`` where products differed.
        reason: the decision in words.
        switched_to: precision of the next epoch, if it is another one.
        diversity: the metric, of the policies that have one.
        p: the largest metric of this level so far, over ``diversity``.
        threshold: what ``p`` is compared with.
        violations: how often ``p`` was above it, this epoch included.
        products: where they differ, the precision of each as ``LAYER/PRODUCT``.
        device_seconds: what the epoch's training would take on the described device of the
            settings, if they name one.
    """

    epoch: int
    level: str
    reason: str
    switched_to: str | None = None
    diversity: float | None = None
    p: float | None = None
    threshold: float | None = None
    violations: int | None = None
    products: Mapping[str, str] | None = None
    device_seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings; None for a number that is not finite, which JSON has not."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Entry:
        """What `to_dict` gave.

        Raises:
            ValueError: a field is missing, unknown or of another type.
        """
        known = {each.name for each in fields(cls)}
        wrong = sorted(set(data) - known) or sorted({"epoch", "level", "reason"} - set(data))
        if wrong:
            raise ValueError(f"field {wrong[0]!r} is unknown or missing")
        words = all(isinstance(data[name], str) for name in ("level", "reason"))
        if type(data["epoch"]) is not int or not words:
            raise ValueError("epoch must be a whole number, level and reason words")
        for name, fits in _FIELDS.items():
            if (value := data.get(name)) is not None and not fits(value):
                raise ValueError(f"{name} cannot be {str(value)[:40]!r}")
        return cls(**data)


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 1 << 63)


def _names_products(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


#: What the fields of an `Entry` that may be missing are in a file.
_FIELDS: dict[str, Callable[[object], bool]] = {
    "reason": lambda value: isinstance(value, str),
    "switched_to": lambda value: isinstance(value, str),
    "diversity": _is_number,
    "p": _is_number,
    "threshold": _is_number,
    "violations": lambda value: type(value) is int and _is_number(value),
    "products": _names_products,
    "device_seconds": _is_number,
}


class PrecisionPolicy(ABC):
    """Base of all policies.

    A policy is deterministic: what it says follows from its settings, the plan and what it saw, and
    its state is in `state_dict`, so that a run that goes on decides as if it had not stopped. With
    several workers every one has its own copy, which sees the same numbers.
    """

    #: Whether `after_step` is called.
    wants_steps: bool = False

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @abstractmethod
    def level(self, epoch: int) -> Assignment:
        """Precision at the beginning of an epoch, from 0; never asked about a later one than
        `after_epoch` has led up to.
        """

    @abstractmethod
    def after_epoch(self, seen: EpochSeen) -> Entry:
        """Look at an epoch and decide; the decision holds from the next one on."""

    def after_step(self, step: StepSeen) -> Assignment | None:
        """Precision from the next step on; None changes nothing."""
        return None

    def watched(self) -> Mapping[tuple[str, str], tuple[int, ...]]:
        """(layer, product) -> levels whose errors `after_step` wants to see of the next step."""
        return {}

    @property
    def label(self) -> str:
        """What messages call it."""
        return type(self).__name__

    @property
    def wants_gradients(self) -> bool:
        """Whether `after_epoch` looks at gradients."""
        return False

    @property
    def last_phase(self) -> int | None:
        """The epoch, from 0, at which the phase of falling learning rates began; None: not yet."""
        return None

    def lr_factor(self, epoch: int) -> float:
        """Factor on the learning rate that the training settings' schedule gives: 1 until the last
        phase, then divided by ``lr_divisor`` every ``lr_every`` epochs.
        """
        start = self.last_phase
        if start is None or epoch < start:
            return 1.0
        return float(self.plan.lr_divisor) ** -((epoch - start) // self.plan.lr_every)

    def done(self, epoch: int) -> bool:
        """Whether nothing is left to train from this epoch on."""
        return epoch >= self.plan.max_epochs

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors, numbers, strings, lists and dicts of these."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            ValueError: that is no state of this policy.
        """
        if state:
            raise ValueError(f"{type(self).__name__} has no state to load {sorted(state)} into")

    def entry(self, seen: EpochSeen, reason: str, **known: Any) -> Entry:
        """The record of an epoch, with the precision that it ran in."""
        given = self.level(seen.epoch)
        if seen.skipped:
            reason = f"{reason}; {seen.skipped} steps skipped"
        name, products = self.name_of(given), self.named(given)
        return Entry(seen.epoch + 1, name, reason, products=products, **known)

    def named(self, given: Assignment) -> dict[str, str] | None:
        """The precision of each product as ``LAYER/PRODUCT``; None where all have one."""
        if isinstance(given, int):
            return None
        return {f"{path}/{which}": self.plan.name(at) for (path, which), at in given.items()}

    def name_of(self, given: Assignment) -> str:
        """A precision in words: a level, or ``LOWEST to HIGHEST`` of what the products have."""
        if isinstance(given, int):
            return self.plan.name(given)
        used = sorted(set(given.values()))
        ends = [self.plan.name(index) for index in dict.fromkeys(used[:1] + used[-1:])]
        if len(given) < len(self.plan.layers) * len(PRODUCTS) and FLOAT32 not in ends:
            ends = [*ends[:1], FLOAT32]  # what is not named
        return " to ".join(ends)


def check_assignment(given: object, policy: PrecisionPolicy) -> None:
    """Refuse what is no precision of this ladder.

    Raises:
        RecipeError: names the policy, what it said and what there is.
    """
    plan, where = policy.plan, policy.label
    indices: list[object] = [given]
    if isinstance(given, Mapping):
        indices = list(given.values())
        for key in given:
            path, product = key if isinstance(key, tuple) and len(key) == 2 else (key, "")
            if path not in plan.layers or str(product) not in PRODUCTS:
                raise RecipeError(
                    f"gives a precision to {key!r}, which is no product of this network",
                    where=where,
                    hint=f"keys are (layer, product), products {', '.join(PRODUCTS)}",
                )
    for index in indices:
        if type(index) is not int or not 0 <= index < plan.levels:
            hint = f"the ladder has indices 0 to {plan.levels - 1}"
            raise RecipeError(f"gives the level {index!r}", where=where, hint=hint)
