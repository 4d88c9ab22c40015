# SPDX-License-Identifier: Apache-2.0
"""`Policy`: which operand of which layer gets which format.

A policy is an ordered list of rules; a rule selects layers and one operand role and changes some
fields of its specification. The rules that match are merged in order, so a later rule overrides an
earlier one field by field. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from typing import Any

from bitwright.formats import Format
from bitwright.quantize.policy_defaults import complete
from bitwright.quantize.policy_parse import parse_quant, parse_training
from bitwright.quantize.spec import Change, Layer, Product, Resolved, Role, Rule


@dataclass(frozen=True)
class Policy:
    """Ordered rules, later over earlier, and what freezing needs to know.

    Attributes:
        rules: exceptions, later over earlier, field by field, and over the formats of all layers,
            which are the first rules.
        threshold_bits: activations of at most this many bits become integer thresholds, wider ones
            multiply-shift-round.
        training: the rules are for operands and results of the products of training, which are
            quantized anew every time, not for a network that is to be frozen.
        methods: of post-training quantization, what brings a trained float network into these
            formats; words as `method_words` has them.
        concat_scales: of the parts of a concatenation: ``shared``, one for all, as engines want it
            that move bytes; ``own``, each its own wherever no product needs one.
    """

    rules: tuple[Rule, ...]
    threshold_bits: int = 6
    training: bool = False
    methods: tuple[str, ...] = ("calibrate",)
    concat_scales: str = "own"

    @classmethod
    def uniform(
        cls,
        weight: str | Format | None = "int4",
        activation: str | Format | None = "uint4",
        input: str | Format | None = "uint8",
        bias: str | Format | None = None,
    ) -> Policy:
        """One format for all weights, one for all activations, one for the input (None: float).

        Args:
            bias: None leaves the biases what they are without one: real numbers until freezing
                makes them integers of the accumulator's scale.
        """
        given = {"weight": weight, "activation": activation, "input": input}
        return cls.from_dict(given if bias is None else {**given, "bias": bias})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "quant") -> Policy:
        """A policy from plain data (a recipe's ``quant`` section); see `policy_parse`.

        Raises:
            RecipeError: names the field, what is wrong with it and what is allowed.
        """
        found = parse_quant(data, where)
        return cls(
            found.rules,
            found.threshold_bits,
            methods=found.methods,
            concat_scales=found.concat_scales,
        )

    @classmethod
    def for_training(cls, data: Mapping[str, Any], where: str = "arithmetic") -> Policy:
        """A policy for the products of training; see `policy_parse.parse_training`.

        Raises:
            RecipeError: names the field, what is wrong with it and what is allowed.
        """
        return cls(parse_training(data, where), training=True)

    def rules_of(self, role: Role, path: str) -> list[Rule]:
        """Those of an operand that may choose the layer of a path, in order. A policy has as many
        rules as a network has layers, if not more: those that name another path are not asked.
        """
        entries = self._patterns.get(role, ()), self._named.get((role, path), ())
        return [rule for _, rule in merge(*entries, key=lambda entry: entry[0])]

    @property
    def patterns(self) -> int:
        """Rules that every layer is compared with."""
        return sum(map(len, self._patterns.values()))

    @property
    def letters(self) -> int:
        """Letters of the patterns that every layer is compared with."""
        return sum(len(r.selector.layers) for rules in self._patterns.values() for _, r in rules)

    @cached_property
    def _patterns(self) -> Mapping[Role, Sequence[tuple[int, Rule]]]:
        found: dict[Role, list[tuple[int, Rule]]] = {}
        for place, rule in enumerate(self.rules):
            if not rule.selector.is_plain:
                found.setdefault(rule.role, []).append((place, rule))
        return found

    @cached_property
    def _named(self) -> Mapping[tuple[Role, str], Sequence[tuple[int, Rule]]]:
        found: dict[tuple[Role, str], list[tuple[int, Rule]]] = {}
        for place, rule in enumerate(self.rules):
            if rule.selector.is_plain:
                key = rule.role, rule.selector.layers
                found.setdefault(key, []).append((place, rule))
        return found

    def resolve(self, layer: Layer, role: Role, product: Product | str | None = None) -> Resolved:
        """The specification of one operand of one layer, with the reason for it.

        Args:
            product: in training, the product that takes or gives it.

        Raises:
            RecipeError: the merged fields contradict each other.
        """
        change, reasons, where = Change(), [], "policy"
        chosen = None if product is None else Product(product)
        for rule in self.rules_of(role, layer.path):
            if rule.selector.matches(layer, chosen):
                change, where = rule.change.over(change), rule.where
                reasons.append(f"{rule.where} ({rule.selector})")
        if change.format is None:
            return Resolved(None, f"no rule gives {role.value} a format")
        if change.keep_float:
            return Resolved(None, f"kept float by {reasons[-1]}")
        spec = complete(change, role, where, training=self.training)
        return Resolved(spec, "; ".join(reasons))
