# SPDX-License-Identifier: Apache-2.0
"""Policies over the products of training: which operand of which product gets which format."""

from __future__ import annotations

from typing import Any

import pytest

from bitwright.base.errors import RecipeError
from bitwright.formats.rounding import Rounding
from bitwright.quantize.policy import Policy
from bitwright.quantize.spec import (
    Granularity,
    Layer,
    Product,
    QuantSpec,
    Role,
    ScaleRule,
    Selector,
)

FIRST = Layer("stem", "Conv2d", first=True)
INNER = Layer("blocks.0.conv1", "Conv2d")


def spec(data: dict[str, Any], role: Role = Role.INPUT, layer: Layer = INNER) -> QuantSpec | None:
    return Policy.for_training(data).resolve(layer, role, Product.FORWARD).spec


def test_muppets_formats() -> None:
    """One word length for all operands and for the weight gradient; other results as they come."""
    eight = {"format": "int8", "rounding": "stochastic"}
    roles = ("input", "weight", "grad_output", "grad_weight")
    policy = Policy.for_training(dict.fromkeys(roles, eight))
    for role in Role:
        for product in Product:
            found = policy.resolve(INNER, role, product).spec
            if role.value not in roles:
                assert found is None
                continue
            assert found is not None
            assert (found.format.name, found.scale) == ("int8", ScaleRule.DYNAMIC)
            assert found.granularity is Granularity.PER_TENSOR
            assert found.power_of_two
            assert found.rounding is Rounding.STOCHASTIC
            assert (found.format.min_level, found.format.max_level) == (-128, 127)


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("int12", "dynamic"),
        ("uint8", "dynamic"),
        ("dfp8", "dynamic"),
        ("fixed<8,3>", "const 1"),
        ("e5m10", "const 1"),
        ("e8m7", "const 1"),
        ("e4m3", "max, power of two"),
        ("e5m2", "max, power of two"),
        ("mxfp8", "max, power of two"),
        ("po2_4", "max, power of two"),
    ],
)
def test_scales_where_none_is_given(name: str, scale: str) -> None:
    found = spec({"input": name})
    assert found is not None
    assert found.scale_text == scale


def test_each_product_can_have_formats_of_its_own() -> None:
    policy = Policy.for_training(
        {
            "input": "int8",
            "weight": "int8",
            "grad_output": "int8",
            "rules": [
                {"product": "grad_weight", "format": "int16"},
                {
                    "layers": "blocks.*",
                    "product": "grad_weight",
                    "role": "input",
                    "format": "int12",
                },
            ],
        }
    )

    def name(role: Role, product: Product, layer: Layer = INNER) -> str:
        found = policy.resolve(layer, role, product).spec
        assert found is not None
        return found.format.name

    assert name(Role.INPUT, Product.FORWARD) == "int8"
    assert name(Role.INPUT, Product.GRAD_WEIGHT) == "int12"
    assert name(Role.INPUT, Product.GRAD_WEIGHT, FIRST) == "int16"
    assert name(Role.GRAD_OUTPUT, Product.GRAD_WEIGHT) == "int16"
    assert name(Role.GRAD_OUTPUT, Product.GRAD_INPUT) == "int8"
    reason = policy.resolve(INNER, Role.INPUT, "grad_weight").reason
    assert "rules[1] (blocks.*, product grad_weight)" in reason


def test_a_rule_without_a_role_is_for_what_has_a_format() -> None:
    data = {
        "input": "int8", "weight": "int8", "grad_output": "int8", "grad_weight": "int8",
        "rules": [{"position": "first", "keep_float": True}, {"layers": "fc", "format": "e8m7"}],
    }  # fmt: skip
    for role in (Role.INPUT, Role.WEIGHT, Role.GRAD_OUTPUT, Role.GRAD_WEIGHT):
        assert spec(data, role, FIRST) is None
        assert spec(data, role) is not None
        last = spec(data, role, Layer("fc", "Linear", last=True))
        assert last is not None
        assert last.format.name == "e8m7"
    assert spec(data, Role.ACTIVATION, Layer("fc", "Linear")) is None


def test_a_selector_for_a_product_is_for_no_other() -> None:
    selector = Selector(product=Product.FORWARD)
    assert selector.matches(INNER, Product.FORWARD)
    assert not selector.matches(INNER, Product.GRAD_INPUT)
    assert not selector.matches(INNER)
    assert str(selector) == "product forward"
    assert Selector().matches(INNER, Product.GRAD_INPUT)


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"bias": "int8"}, "arithmetic", "unknown key 'bias'"),
    ({"weight": "int99"}, "arithmetic.weight.format", "99 bits"),
    ({"weight": "uint8"}, "arithmetic.weight.format", "has both signs"),
    ({"grad_output": "uint8"}, "arithmetic.grad_output.format", "has both signs"),
    ({"grad_weight": "ternary"}, "arithmetic.grad_weight.format", "do not run in ternary"),
    ({"input": "cb16"}, "arithmetic.input.format", "do not run in cb16"),
    ({"input": "int1"}, "arithmetic.input.format", "no level above zero"),
    ({"input": "uint8z5"}, "arithmetic.input.format", "zero point"),
    ({"input": {"format": "int8", "zero_point": True}}, "arithmetic.input.zero_point", "no zero"),
    (
        {"weight": {"format": "int8", "granularity": "per_channel"}},
        "arithmetic.weight.granularity",
        "one scale a tensor",
    ),
    ({"input": {"format": "int8", "scale": "learned"}}, "arithmetic.input.scale", "'learned'"),
    ({"input": {"format": "int8", "scale": "minmax"}}, "arithmetic.input.scale", "'minmax'"),
    ({"input": {"format": "e4m3", "scale": "dynamic"}}, "arithmetic.input.scale", "'dynamic'"),
    ({"input": {"format": "mxfp8", "scale": "dynamic"}}, "arithmetic.input.scale", "'dynamic'"),
    ({"input": {"format": "e8m7", "scale": "max"}}, "arithmetic.input.scale", "'max'"),
    (
        {"input": {"format": "int8", "power_of_two": False}},
        "arithmetic.input.power_of_two",
        "is a power of two",
    ),
    ({"input": {"format": "int8", "overflow": "wrap"}}, "arithmetic.input.overflow", "'wrap'"),
    ({"input": {"rounding": "stochastic"}}, "arithmetic.input", "no format"),
    ({"rules": [{"role": "bias", "format": "int8"}]}, "arithmetic.rules[0].role", "a bias"),
    ({"rules": [{"product": "update", "format": "int8"}]}, "arithmetic.rules[0].product", "update"),
    ({"rules": [{"product": "forward"}]}, "arithmetic.rules[0]", "changes nothing"),
    ({"rules": {"role": "input"}}, "arithmetic.rules", "a list of rules"),
    ({"rules": ["int8"]}, "arithmetic.rules[0]", "a rule is a mapping"),
]


@pytest.mark.parametrize(("data", "where", "message"), BAD, ids=[str(case[0]) for case in BAD])
def test_what_training_cannot_run_in(data: dict[str, Any], where: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Policy.for_training(data)
    assert str(caught.value.where).startswith(where)
    assert message in caught.value.message


def test_contradictions_of_several_rules_are_found_when_they_meet() -> None:
    policy = Policy.for_training(
        {"input": "int8", "rules": [{"role": "input", "scale": "dynamic", "format": "e4m3"}]}
    )
    with pytest.raises(RecipeError, match="cannot have scale 'dynamic'"):
        policy.resolve(INNER, Role.INPUT, Product.FORWARD)


def test_a_network_that_is_frozen_has_dynamic_weights_only() -> None:
    dynamic = {"format": "int8", "scale": "dynamic"}
    weight = Policy.from_dict({"weight": dynamic}).resolve(INNER, Role.WEIGHT).spec
    assert weight is not None
    assert weight.granularity is Granularity.PER_TENSOR
    assert weight.format.min_level == -128
    assert weight.power_of_two
    channels = {**dynamic, "granularity": "per_channel"}
    each = Policy.from_dict({"weight": channels}).resolve(INNER, Role.WEIGHT).spec
    assert each is not None
    assert each.granularity is Granularity.PER_CHANNEL
    for role in ("activation", "input"):
        with pytest.raises(RecipeError, match="fixed when the network is frozen") as caught:
            Policy.from_dict({role: dynamic})
        assert "scale: max with power_of_two: true" in str(caught.value.hint)
    with pytest.raises(RecipeError, match="a bias cannot have scale 'dynamic'"):
        Policy.from_dict({"bias": dynamic})


@pytest.mark.parametrize("role", ["grad_output", "grad_input", "grad_weight", "accumulator"])
def test_gradients_have_no_format_in_a_network_that_is_frozen(role: str) -> None:
    with pytest.raises(RecipeError, match="no operand of a network that is frozen"):
        Policy.from_dict({"rules": [{"role": role, "format": "int8"}]})


def test_products_are_told_apart_in_training_only() -> None:
    with pytest.raises(RecipeError, match="told apart in training only"):
        Policy.from_dict({"rules": [{"role": "weight", "product": "forward", "format": "int8"}]})
