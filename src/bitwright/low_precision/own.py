# SPDX-License-Identifier: Apache-2.0
"""Policies and metrics of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from bitwright.base.errors import BitwrightError, ModelError, RecipeError
from bitwright.base.plugins import load_plugin, place_of
from bitwright.low_precision.diversity import Measured, Metric, gradient_diversity
from bitwright.low_precision.policy import Plan, PrecisionPolicy
from bitwright.low_precision.settings import DIVERSITY

_POLICY = "low_precision.policy"


def find_metric(name: str) -> Metric:
    """``diversity``, or ``package.module:function``.

    Raises:
        ModelError: the module cannot be imported or has no such function.
    """
    if name == DIVERSITY:
        return gradient_diversity
    function = load_plugin(name, f"{_POLICY}.metric")

    def metric(gradients: Mapping[str, Sequence[Tensor]]) -> Measured | float | None:
        try:
            found = function(gradients)
            return found if found is None or isinstance(found, Measured) else float(found)
        except Exception as error:  # the user's code may fail in any way
            raise ModelError(
                f"the metric failed: {type(error).__name__}: {error}",
                where=place_of(error, name, __file__),
                hint="it gets a mapping of layers to lists of gradients, oldest first, and gives a "
                "number above zero, or None",
            ) from error

    return metric


def make_own(name: str, plan: Plan, options: Mapping[str, Any]) -> PrecisionPolicy:
    """The policy that the user's function gives for a plan and its options.

    Raises:
        RecipeError: an option is unknown, or what it gives is no policy.
        ModelError: the code cannot be imported, or fails.
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
    try:
        policy = factory(plan, **options)
    except BitwrightError:
        raise
    except Exception as error:  # the user's code may fail in any way
        raise ModelError(
            f"making the policy failed: {type(error).__name__}: {error}",
            where=place_of(error, name, __file__),
            hint="it is called with a plan and the options of the recipe",
        ) from error
    if not isinstance(policy, PrecisionPolicy):
        raise RecipeError(
            f"gave a {type(policy).__name__}, not a PrecisionPolicy",
            where=name,
            hint="derive it from bitwright.low_precision.policy.PrecisionPolicy",
        )
    return policy
