# SPDX-License-Identifier: Apache-2.0
"""Policies and metrics that users write; errors in them name the user's file and line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from bitwright.base.errors import ModelError, RecipeError
from bitwright.base.plugins import load_plugin, users_code
from bitwright.low_precision.diversity import Measured, Metric, gradient_diversity
from bitwright.low_precision.policy import (
    Assignment,
    Entry,
    EpochSeen,
    Plan,
    PrecisionPolicy,
    StepSeen,
)
from bitwright.low_precision.settings import DIVERSITY

_POLICY = "low_precision.policy"
_METRIC = (
    "it gets a mapping of layers to lists of gradients, oldest first, and gives a number above "
    "zero, or None"
)


def find_metric(name: str) -> Metric:
    """``diversity``, or ``package.module:function``.

    Raises:
        ModelError: the module cannot be imported or has no such function.
    """
    if name == DIVERSITY:
        return gradient_diversity
    function = load_plugin(name, f"{_POLICY}.metric")

    def metric(gradients: Mapping[str, Sequence[Tensor]]) -> Measured:
        with users_code("the metric", name, _METRIC, __file__):
            given = function(gradients)
            found = given if isinstance(given, Measured) else Measured(given)
            return Measured(None if found.value is None else float(found.value), found.note)

    return metric


def make_custom(name: str, plan: Plan, options: Mapping[str, Any]) -> PrecisionPolicy:
    """The policy that the user's function gives for a plan and its options.

    Raises:
        RecipeError: an option is unknown, or what it gives is no policy.
        ModelError: the code cannot be imported, or fails; later calls of the policy raise this too.
    """
    factory = load_plugin(name, f"{_POLICY}.kind")
    try:
        inspect.signature(factory).bind(plan, **options)
    except TypeError as error:
        named = ", ".join(options) or "(none)"
        raise RecipeError(
            f"cannot be called with a plan and the options {named}: {error}",
            where=name,
            hint="it is called as NAME(plan, **options)",
        ) from error
    except ValueError:  # a class of another language may have no signature
        pass
    hint = "it is called with a plan and the options of the recipe"
    with users_code("making the policy", name, hint, __file__):
        policy = factory(plan, **options)
    if not isinstance(policy, PrecisionPolicy):
        raise RecipeError(
            f"gave a {type(policy).__name__}, not a PrecisionPolicy",
            where=name,
            hint="derive it from bitwright.low_precision.policy.PrecisionPolicy",
        )
    return CustomPolicy(policy, plan, name)


class CustomPolicy(PrecisionPolicy):
    """A policy that a user wrote: every call goes to it, and what it gives is checked."""

    def __init__(self, policy: PrecisionPolicy, plan: Plan, name: str) -> None:
        """
        Args:
            policy: the user's.
            plan: of the run.
            name: of the code, ``package.module:function``.
        """
        super().__init__(plan)
        self.policy = policy
        self.name = name

    @property
    def label(self) -> str:
        return self.name

    @property
    def wants_steps(self) -> bool:  # type: ignore[override]
        return bool(self._call("wants_steps", object))

    @property
    def wants_gradients(self) -> bool:
        return bool(self._call("wants_gradients", object))

    @property
    def last_phase(self) -> int | None:
        return self._call("last_phase", int | None)

    def level(self, epoch: int) -> Assignment:
        return self._call("level", int | Mapping, epoch)

    def after_epoch(self, seen: EpochSeen) -> Entry:
        return self._call("after_epoch", Entry, seen)

    def after_step(self, step: StepSeen) -> Assignment | None:
        return self._call("after_step", int | Mapping | None, step)

    def watched(self) -> Mapping[tuple[str, str], tuple[int, ...]]:
        found: Mapping[tuple[str, str], tuple[int, ...]] = self._call("watched", Mapping)
        return found

    def lr_factor(self, epoch: int) -> float:
        return float(self._call("lr_factor", int | float, epoch))

    def done(self, epoch: int) -> bool:
        return bool(self._call("done", object, epoch))

    def state_dict(self) -> dict[str, Any]:
        return self._call("state_dict", dict)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._call("load_state_dict", object, state)

    def name_of(self, given: Assignment) -> str:
        return self._call("name_of", str, given)

    def _call(self, method: str, kind: Any, *arguments: object) -> Any:
        """What a method of the policy gives, or the value of an attribute: of a kind."""
        hint = f"see PrecisionPolicy.{method}"
        with users_code(f"{method} of the policy", self.name, hint, __file__):
            found = getattr(self.policy, method)
            given = found(*arguments) if callable(found) else found
        if isinstance(given, kind):
            return given
        function = getattr(type(self.policy), method)
        code = getattr(function, "__code__", None)
        place = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else self.name
        wanted = kind.__name__ if isinstance(kind, type) else str(kind)
        raise ModelError(
            f"{method} of the policy gave a {type(given).__name__}, expected {wanted}",
            where=place,
            hint=f"see PrecisionPolicy.{method}",
        )
