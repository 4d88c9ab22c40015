# SPDX-License-Identifier: Apache-2.0
"""Exact choice of one format a unit: least damage within a budget. No torch.

The problem is a multiple-choice knapsack: every unit (the weights of a layer, or features that
share a scale) takes one of its options, each with a damage and a cost; damages add up. Bit
operations are products of a weight's and a feature's width, so there a cost belongs to a pair of
options. CP-SAT solves both to the optimum in well under a second for a hundred layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bitwright.base.errors import RecipeError

#: Into so many parts the damage of the worst assignment is divided: the solver takes integers.
_RESOLUTION = 10**9
_SECONDS = 20.0


@dataclass(frozen=True)
class Choice:
    """One option of a unit.

    Attributes:
        name: of the format.
        bits: of a code, for products.
        cost: what it adds to the cost by itself.
        damage: what it adds to the damage.
    """

    name: str
    bits: int
    cost: int
    damage: float


@dataclass(frozen=True)
class Product:
    """A layer whose cost is ``macs * bits(weight) * max(bits(features))``.

    Attributes:
        macs: products of one image.
        weight: its unit.
        features: units that it reads.
        least: width of what it reads besides; the widest counts.
    """

    macs: int
    weight: int
    features: tuple[int, ...]
    least: int = 0


@dataclass(frozen=True)
class Problem:
    """Units with their options, a cost that is always there, and products of two units' widths."""

    units: tuple[tuple[Choice, ...], ...]
    fixed: int = 0
    products: tuple[Product, ...] = ()

    def cost(self, chosen: Sequence[int]) -> int:
        """The cost of an assignment: an index a unit."""
        picked = [options[i] for options, i in zip(self.units, chosen, strict=True)]
        total = self.fixed + sum(choice.cost for choice in picked)
        for product in self.products:
            width = max([product.least, *(picked[unit].bits for unit in product.features)])
            total += product.macs * picked[product.weight].bits * width
        return total

    def damage(self, chosen: Sequence[int]) -> float:
        """The predicted damage of an assignment."""
        return sum(options[i].damage for options, i in zip(self.units, chosen, strict=True))

    @cached_property
    def smallest(self) -> int:
        """The least cost of all assignments.

        Every unit at its cheapest is the cheapest network, unless an option that costs more by
        itself has fewer bits, and so makes products cheaper.
        """
        chosen = [_least(options, lambda c: (c.cost, c.bits)) for options in self.units]
        fewest = [min(c.bits for c in options) for options in self.units]
        plain = all(u[i].bits == b for u, i, b in zip(self.units, chosen, fewest, strict=True))
        return self.cost(chosen if plain or not self.products else _solve(self))

    @property
    def largest(self) -> int:
        """The cost of the least damage."""
        return self.cost([_least(options, lambda c: (c.damage, c.cost)) for options in self.units])


def _least(options: Sequence[Choice], key: object) -> int:
    return min(range(len(options)), key=lambda i: key(options[i]))  # type: ignore[operator]


def allocate(problem: Problem, limit: float) -> tuple[int, ...]:
    """The assignment of least damage whose cost is within the limit; of equals the cheaper one.

    Raises:
        RecipeError: even the smallest choice is beyond the limit.
    """
    if problem.smallest > limit:
        raise RecipeError(
            f"the smallest that these candidates allow is {problem.smallest}, the limit "
            f"{limit:.0f}",
            hint="raise the budget, or allow formats of fewer bits",
        )
    return _solve(problem, limit)


def _solve(problem: Problem, limit: float | None = None) -> tuple[int, ...]:
    """The assignment of least damage within a limit; without one, that of least cost."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    picked = [[model.new_bool_var("") for _ in options] for options in problem.units]
    for variables in picked:
        model.add_exactly_one(variables)
    every: list[tuple[Choice, Any]] = [
        (choice, variable)
        for options, variables in zip(problem.units, picked, strict=True)
        for choice, variable in zip(options, variables, strict=True)
    ]
    terms: list[object] = [choice.cost * variable for choice, variable in every]
    terms += [_product_cost(model, problem, picked, product) for product in problem.products]
    cost = sum(terms) + problem.fixed  # type: ignore[arg-type]
    if limit is None:
        model.minimize(cost)
    else:
        model.add(cost <= int(limit))
        worst = sum(max(c.damage for c in options) for options in problem.units) or 1.0
        model.minimize(sum(round(c.damage / worst * _RESOLUTION) * v for c, v in every))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.catch_sigint_signal = False  # with its own handler, none is left behind it
    solver.parameters.max_time_in_seconds = _SECONDS
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        within = "" if limit is None else f" within {limit:.0f}"
        raise RecipeError(
            f"no choice found{within} ({solver.status_name(status)})",
            hint="raise the budget, or allow fewer candidates",
        )
    chosen = [
        next(i for i, variable in enumerate(variables) if solver.value(variable))
        for variables in picked
    ]
    return _cheapened(problem, chosen)


def _product_cost(
    model: object, problem: Problem, picked: Sequence[Sequence[object]], product: Product
) -> object:
    """``macs * weight * width`` as a linear expression over booleans of (weight, width) pairs."""
    read = {c.bits for unit in product.features for c in problem.units[unit]}
    widths = sorted({max(bits, product.least) for bits in read} or {product.least})
    at_most = {}
    for width in widths:  # exactly one of these: the width of the widest feature
        at_most[width] = model.new_bool_var("")  # type: ignore[attr-defined]
    model.add_exactly_one(at_most.values())  # type: ignore[attr-defined]
    for unit in product.features:
        for choice, variable in zip(problem.units[unit], picked[unit], strict=True):
            for width in widths:
                if width < choice.bits:
                    model.add_implication(variable, at_most[width].negated())  # type: ignore[attr-defined]
    terms = []
    for choice, variable in zip(problem.units[product.weight], picked[product.weight], strict=True):
        for width, flag in at_most.items():
            both = model.new_bool_var("")  # type: ignore[attr-defined]
            model.add_bool_or([variable.negated(), flag.negated(), both])  # type: ignore[attr-defined]
            terms.append(product.macs * choice.bits * width * both)
    return sum(terms)


def _cheapened(problem: Problem, chosen: list[int]) -> tuple[int, ...]:
    """Where an option is no worse than the one chosen, not wider, and cheaper, take it."""
    for unit, options in enumerate(problem.units):
        now = options[chosen[unit]]
        for index, other in enumerate(options):
            no_worse = other.damage <= now.damage and other.bits <= now.bits
            if no_worse and (other.cost, other.bits) < (now.cost, now.bits):
                chosen[unit], now = index, other
    return tuple(chosen)


def undominated(options: Sequence[Choice]) -> list[int]:
    """Indices of options that no other one beats in damage, cost and bits at once, by cost."""
    order = sorted(range(len(options)), key=lambda i: (options[i].cost, options[i].damage))
    kept: list[int] = []
    for index in order:
        own = options[index]
        if all(options[k].damage > own.damage or options[k].bits > own.bits for k in kept):
            kept.append(index)
    return kept


def sweep(problem: Problem, points: int) -> list[tuple[int, ...]]:
    """Assignments along the predicted front, from the smallest to the best, doubles left out."""
    low, high = problem.smallest, problem.largest
    found: Mapping[tuple[int, ...], None] = {}
    for step in range(points):
        share = step / max(points - 1, 1)
        limit = low + (high - low) * share**1.5  # closer where the front is steep
        found = {**found, allocate(problem, limit): None}
    return list(found)
