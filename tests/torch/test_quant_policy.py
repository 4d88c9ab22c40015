# SPDX-License-Identifier: Apache-2.0
"""Policies: resolution, the recipe's form, and one test for every message."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from bitwright.base.errors import RecipeError
from bitwright.formats import Overflow, Rounding
from bitwright.quantize import Granularity, Policy, Role, ScaleRule
from bitwright.quantize.spec import Layer, Selector

BODY = Layer("features.3", "Conv2d")
FIRST = Layer("features.0", "Conv2d", first=True)
LAST = Layer("head", "Linear", last=True)


def test_policy_needs_no_torch() -> None:
    code = (
        "import sys; from bitwright.quantize.policy import Policy; "
        "Policy.from_dict({'weight': 'int4'}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_defaults() -> None:
    policy = Policy.uniform("int4", "uint4", "uint8")
    weight = policy.resolve(BODY, Role.WEIGHT).spec
    assert weight.format.name == "int4n"  # narrow by default
    assert weight.granularity is Granularity.PER_CHANNEL and weight.scale is ScaleRule.MAX
    assert policy.resolve(LAST, Role.WEIGHT).spec.granularity is Granularity.PER_TENSOR
    activation = policy.resolve(BODY, Role.ACTIVATION).spec
    assert activation.format.name == "uint4" and activation.scale is ScaleRule.LEARNED
    assert policy.resolve(Layer("x", "input"), Role.INPUT).spec.scale is ScaleRule.MAX
    binary = Policy.uniform("bipolar", "bipolar", "uint8")
    assert binary.resolve(BODY, Role.WEIGHT).spec.scale is ScaleRule.MEAN
    assert binary.resolve(BODY, Role.ACTIVATION).spec.scale is ScaleRule.CONST
    assert Policy.uniform(None).resolve(BODY, Role.WEIGHT).spec is None
    assert Policy.uniform("int2").resolve(BODY, Role.WEIGHT).spec.scale is ScaleRule.LEARNED
    assert Policy.uniform("fixed<6,2>").resolve(BODY, Role.WEIGHT).spec.scale is ScaleRule.CONST


def test_later_rules_win_field_by_field() -> None:
    policy = Policy.from_dict(
        {
            "weight": {"format": "int4", "scale": "mse"},
            "activation": {"scale": "percentile", "percentile": 99.5},
            "rules": [
                {"layers": "features.*", "role": "weight", "format": "int2"},
                {"position": "first", "role": "weight", "format": "int8", "narrow": False},
                {"type": "linear", "role": "weight", "scale": "max"},
                {"layers": "head", "role": "activation", "keep_float": True},
                {"layers": "features.3", "role": "activation", "rounding": "floor"},
            ],
        }
    )
    body = policy.resolve(BODY, Role.WEIGHT)
    assert (body.spec.format.name, body.spec.scale) == ("int2n", ScaleRule.MSE)
    assert "quant.rules[0]" in body.reason
    assert policy.resolve(FIRST, Role.WEIGHT).spec.format.name == "int8"
    assert policy.resolve(LAST, Role.WEIGHT).spec.scale is ScaleRule.MAX
    assert policy.resolve(LAST, Role.ACTIVATION).spec is None
    activation = policy.resolve(BODY, Role.ACTIVATION).spec
    assert activation.rounding is Rounding.FLOOR and activation.percentile == 99.5
    assert activation.overflow is Overflow.SAT


@pytest.mark.parametrize(
    ("data", "where", "says"),
    [
        ("int4", "quant", "mapping"),
        ({"wieght": "int4"}, "quant", "unknown key 'wieght'"),
        ({"weight": "int99"}, "quant.weight.format", "99 bits"),
        ({"weight": "floaty"}, "quant.weight.format", "unknown format"),
        ({"weight": {"fromat": "int4"}}, "quant.weight", "unknown key"),
        ({"weight": {"scale": "median"}}, "quant.weight.scale", "unknown value 'median'"),
        ({"weight": {"percentile": 5}}, "quant.weight.percentile", "above 50"),
        ({"weight": {"power_of_two": "yes"}}, "quant.weight.power_of_two", "true or false"),
        ({"weight": {"rounding": "sideways"}}, "quant.weight.rounding", "unknown rounding"),
        ({"weight": {"overflow": "explode"}}, "quant.weight.overflow", "unknown overflow"),
        ({"weight": {"overflow": "wrap"}}, "quant.weight.overflow", "narrow"),
        ({"weight": {"scale": "mean"}}, "quant.weight.scale", "bipolar and ternary"),
        ({"weight": {"format": "ternary", "narrow": True}}, "quant.weight.narrow", "no narrow"),
        (
            {"activation": {"granularity": "per_channel"}},
            "quant.activation.granularity",
            "scale per channel",
        ),
        ({"activation": {"overflow": "wrap"}}, "quant.activation.overflow", "only saturate"),
        ({"activation": {"rounding": "stochastic"}}, "quant.activation.rounding", "stochastic"),
        (
            {"activation": {"format": "bipolar", "scale": "max"}},
            "quant.activation.scale",
            "constant scale",
        ),
        ({"threshold_bits": 0}, "quant.threshold_bits", "1 .. 12"),
        ({"threshold_bits": True}, "quant.threshold_bits", "1 .. 12"),
        ({"rules": {"role": "weight"}}, "quant.rules", "list"),
        ({"rules": ["x"]}, "quant.rules[0]", "mapping"),
        ({"rules": [{"format": "int4"}]}, "quant.rules[0].role", "needs a role"),
        ({"rules": [{"role": "wight"}]}, "quant.rules[0].role", "unknown value"),
        ({"rules": [{"role": "grad_weight"}]}, "quant.rules[0].role", "low-precision training"),
        ({"rules": [{"role": "weight", "position": "middle"}]}, "quant.rules[0].position", "first"),
        ({"rules": [{"role": "weight", "layers": 3}]}, "quant.rules[0].layers", "text"),
        ({"rules": [{"role": "weight", "layers": "a"}]}, "quant.rules[0]", "changes nothing"),
    ],
)
def test_messages_name_the_field(data, where, says) -> None:
    with pytest.raises(RecipeError) as caught:
        Policy.from_dict(data)
    assert caught.value.where == where
    assert says in str(caught.value)


def test_rules_that_name_other_layers_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule for each layer, as searches and Caffe's files have them, is no square of the layers;
    order counts as before."""
    asked = 0
    real = Selector.matches

    def counted(self: Selector, *args: Any) -> bool:
        nonlocal asked
        asked += 1
        return real(self, *args)

    monkeypatch.setattr(Selector, "matches", counted)
    rules = [
        {"layers": f"l{number}", "role": role, "format": f"int{2 + number % 7}"}
        for number in range(1000)
        for role in ("weight", "activation")
    ]
    rules.insert(500, {"layers": "l?", "role": "weight", "format": "int16"})
    rules.append({"layers": "l[3-4]", "role": "weight", "format": "int9"})
    policy = Policy.from_dict({"rules": rules})
    found = {
        number: policy.resolve(Layer(f"l{number}", "Conv2d"), Role.WEIGHT).spec.format.bits
        for number in range(1000)
    }
    assert [found[number] for number in (2, 3, 4, 249, 999)] == [16, 9, 9, 2 + 249 % 7, 2 + 999 % 7]
    assert asked < 10_000
