# SPDX-License-Identifier: Apache-2.0
"""What a policy's rules say about every product of every layer. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bitwright.base.errors import RecipeError
from bitwright.quantize.policy import Policy
from bitwright.quantize.spec import PRODUCT_ROLES, Layer, Product, QuantSpec, Rule

#: The left operand, the right one, and the result of a product; None is float32.
Specs = tuple[QuantSpec | None, QuantSpec | None, QuantSpec | None]


def named_layers(linear: Mapping[str, bool], paths: Sequence[str]) -> list[Layer]:
    """Layers as rules see them.

    Args:
        linear: path of a layer -> whether it is an ``nn.Linear``, not an ``nn.Conv2d``.
        paths: of all layers in the order of registration: which is the first, which the last.
    """
    return [
        Layer(path, "Linear" if is_linear else "Conv2d", path == paths[0], path == paths[-1])
        for path, is_linear in linear.items()
    ]


def product_specs(policy: Policy, layers: Sequence[Layer]) -> dict[str, dict[Product, Specs]]:
    """Path of a layer -> product -> specifications of its operands and its result.

    Raises:
        RecipeError: the merged fields of some rules contradict each other.
    """
    found: dict[str, dict[Product, Specs]] = {}
    for layer in layers:
        found[layer.path] = {}
        for product, roles in PRODUCT_ROLES.items():
            left, right, result = (policy.resolve(layer, role, product).spec for role in roles)
            found[layer.path][product] = left, right, result
    return found


def check_rules(policy: Policy, layers: Sequence[Layer]) -> None:
    """Refuse a rule that fits no product of any layer: it is a mistake in the recipe.

    Raises:
        RecipeError: names the rule, and the layers that there are.
    """
    parts: dict[str, list[Rule]] = {}  # a rule without a role is one of each role
    for rule in policy.rules:
        parts.setdefault(rule.where, []).append(rule)
    for where, rules in parts.items():
        if not any(_fits(rule, layer) for rule in rules for layer in layers):
            roles = " or ".join(dict.fromkeys(rule.role.value for rule in rules))
            raise RecipeError(
                f"the rule for {roles} of {rules[0].selector} matches no layer",
                where=where,
                hint="layers: " + ", ".join(f"{each.path} ({each.type})" for each in layers) + "; "
                "operands and results of products: "
                + "; ".join(
                    f"{product.value}: {', '.join(role.value for role in found)}"
                    for product, found in PRODUCT_ROLES.items()
                ),
            )


def _fits(rule: Rule, layer: Layer) -> bool:
    return any(
        rule.role in roles and rule.selector.matches(layer, product)
        for product, roles in PRODUCT_ROLES.items()
    )
