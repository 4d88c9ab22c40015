# SPDX-License-Identifier: Apache-2.0
"""What a search decides about: units, each with the formats that it may take, and their policies.

A unit is the weight of one layer, or all features that share a scale: those must have one format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from bitwright.base.errors import BitwrightError, RecipeError
from bitwright.explore.model_sizes import Facts, facts_of, stored
from bitwright.explore.search.candidates import Candidates
from bitwright.formats import (
    Format,
)
from bitwright.quantize.policy import Policy
from bitwright.quantize.policy_defaults import default_scale
from bitwright.quantize.spec import Granularity, Role, ScaleRule

#: A table of this share of a layer's weights and more is no compression.
_TABLE_SHARE = 4


@dataclass(frozen=True)
class Option:
    """One format of a unit.

    Attributes:
        format: as it was named among the candidates.
        rules: of the recipe, that give the members this format.
        members: what the members then are.
        damage: what it costs when everything else stays float; 0 until it is measured.
    """

    format: Format
    rules: tuple[Mapping[str, Any], ...]
    members: tuple[Facts, ...]
    damage: float = 0.0

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return max(member.bits for member in self.members)

    @property
    def width(self) -> int:
        """Bits of an operand of a product."""
        return max(member.width for member in self.members)

    @property
    def stored_bits(self) -> int:
        """All bits of the members: codes, tables, scales, exponents."""
        return sum(stored(member).total for member in self.members)


@dataclass(frozen=True)
class Unit:
    """What takes one format.

    Attributes:
        role: weight, activation or input.
        paths: of its members.
        options: at least one.
    """

    role: Role
    paths: tuple[str, ...]
    options: tuple[Option, ...]

    @property
    def name(self) -> str:
        """The path, or the first one and how many more."""
        more = f" +{len(self.paths) - 1}" if len(self.paths) > 1 else ""
        return f"{self.paths[0]}{more}"

    @property
    def is_weight(self) -> bool:
        return self.role is Role.WEIGHT

    @property
    def count(self) -> int:
        """Values of all members."""
        return sum(member.count for member in self.options[0].members)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(f"{path}.{self.role.value}" for path in self.paths)


@dataclass(frozen=True)
class Space:
    """All units of a model, and what is common to every choice.

    Attributes:
        base: the recipe's ``quant`` section that rules are added to: everything at its widest.
        facts: the operands under it, the undecided ones (the input) too.
        notes: what was left out, and why.
    """

    base: Mapping[str, Any]
    facts: tuple[Facts, ...]
    units: tuple[Unit, ...]
    notes: tuple[str, ...] = ()

    def recipe(self, chosen: Sequence[int]) -> dict[str, Any]:
        """The ``quant`` section of an assignment: one option a unit."""
        rules = [
            dict(rule)
            for unit, index in zip(self.units, chosen, strict=True)
            for rule in unit.options[index].rules
        ]
        given = list(self.base.get("rules") or [])
        return {**self.base, "rules": given + rules}

    def policy(self, chosen: Sequence[int]) -> Policy:
        """The same as a policy that `apply` takes."""
        return Policy.from_dict(self.recipe(chosen))

    def chosen_facts(self, chosen: Sequence[int]) -> list[Facts]:
        """All operands under an assignment."""
        found = {
            member.key: member
            for unit, index in zip(self.units, chosen, strict=True)
            for member in unit.options[index].members
        }
        return [found.get(fact.key, fact) for fact in self.facts]


def make_space(
    model: nn.Module,
    candidates: Candidates,
    sample_shape: tuple[int, ...],
    groups: Sequence[Sequence[str]],
    base: Mapping[str, Any],
) -> Space:
    """The units of a model and the candidates that each can take.

    Args:
        groups: keys (``path.role``) of features that share a scale.
        base: fields of a ``quant`` section that hold whatever is chosen.

    Raises:
        RecipeError: no candidate fits some unit; says why.
        ModelError: the model cannot be converted at all.
    """
    weight, feature = candidates.widest
    common = {
        "input": "uint8",
        **base,
        "weight": _fields(weight, Role.WEIGHT),
        "activation": _fields(feature, Role.ACTIVATION),
    }
    facts = facts_of(model, Policy.from_dict(common), sample_shape)
    open_facts = [fact for fact in facts if fact.role is not Role.INPUT]
    options: dict[str, list[tuple[Format, Mapping[str, Any], Facts]]] = {}
    notes: list[str] = []
    rounds = max(len(candidates.weights), len(candidates.features))
    for index in range(rounds):
        pair = {
            Role.WEIGHT: candidates.weights[index : index + 1],
            Role.ACTIVATION: candidates.features[index : index + 1],
        }
        trial = [
            (fact, found[0])
            for fact in open_facts
            if (found := pair[fact.role]) and _fits(fact, found[0])
        ]
        _try(model, common, trial, sample_shape, options, notes)
    units = _units(open_facts, groups, options)
    for unit in units:
        if not unit.options:
            raise RecipeError(
                f"no candidate fits the {unit.role.value} of {unit.name}",
                where="--candidates" if unit.is_weight else "--activations",
                hint="; ".join(notes) or "name more formats",
            )
    return Space(common, tuple(facts), tuple(units), tuple(notes))


def _try(
    model: nn.Module,
    common: Mapping[str, Any],
    trial: list[tuple[Facts, Format]],
    sample_shape: tuple[int, ...],
    options: dict[str, list[tuple[Format, Mapping[str, Any], Facts]]],
    notes: list[str],
) -> None:
    """Give each operand of a trial its format, if a policy may; else each format by itself."""
    rules = {fact.key: _rule(fact, candidate) for fact, candidate in trial}
    if not rules:
        return
    try:
        policy = Policy.from_dict({**common, "rules": list(rules.values())})
        facts = {fact.key: fact for fact in facts_of(model, policy, sample_shape)}
    except BitwrightError as error:
        roles = {fact.role for fact, _ in trial}
        if len(roles) > 1:
            for role in roles:
                part = [(fact, c) for fact, c in trial if fact.role is role]
                _try(model, common, part, sample_shape, options, notes)
            return
        notes.append(f"{trial[0][1]} left out: {error.message.splitlines()[-1].strip()}")
        return
    for fact, candidate in trial:
        options.setdefault(fact.key, []).append((candidate, rules[fact.key], facts[fact.key]))


def _fits(fact: Facts, candidate: Format) -> bool:
    """Whether a codebook has a sensible size for a weight."""
    return max(candidate.entries, 1) * _TABLE_SHARE <= fact.count


def _fields(number_format: Format, role: Role) -> dict[str, Any]:
    """Format, and the scale rule that loses least without training."""
    rule = default_scale(number_format, role)
    kind = number_format
    if (kind.is_integer or kind.is_float or kind.is_exponent) and kind.exact_levels:
        if role is Role.ACTIVATION or number_format.max_level > 1:
            rule = ScaleRule.MSE
    if rule is ScaleRule.LEARNED:
        rule = ScaleRule.MSE  # nothing is trained here
    return {"format": number_format.name, "scale": rule.value}


def _rule(fact: Facts, number_format: Format) -> dict[str, Any]:
    rule = {"layers": fact.path, "role": fact.role.value, **_fields(number_format, fact.role)}
    if (number_format.is_codebook or number_format.is_exponent) and fact.spec is not None:
        if fact.role is Role.WEIGHT and fact.spec.granularity is Granularity.PER_CHANNEL:
            rule["granularity"] = Granularity.PER_CHANNEL.value
    return rule


def _units(
    facts: list[Facts],
    groups: Sequence[Sequence[str]],
    options: Mapping[str, list[tuple[Format, Mapping[str, Any], Facts]]],
) -> list[Unit]:
    group_of = {key: tuple(group) for group in groups for key in group}
    units: list[Unit] = []
    done: set[str] = set()
    for fact in facts:
        if fact.key in done:
            continue
        keys = group_of.get(fact.key, (fact.key,))
        done.update(keys)
        shared: dict[Format, list[tuple[Mapping[str, Any], Facts]]] = {}
        for key in keys:
            for candidate, rule, found in options.get(key, []):
                shared.setdefault(candidate, []).append((rule, found))
        made = [
            Option(candidate, tuple(r for r, _ in parts), tuple(f for _, f in parts))
            for candidate, parts in shared.items()
            if len(parts) == len(keys)
        ]
        role = fact.role.value
        paths = tuple(key.removesuffix(f".{role}") for key in keys)
        units.append(Unit(fact.role, paths, tuple(made)))
    return units


def with_damage(unit: Unit, damages: Sequence[float]) -> Unit:
    """The unit with what was measured for each option."""
    options = tuple(
        replace(option, damage=damage) for option, damage in zip(unit.options, damages, strict=True)
    )
    return replace(unit, options=options)
