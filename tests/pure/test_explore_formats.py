# SPDX-License-Identifier: Apache-2.0
"""What a comparison is asked for, and formats in exact numbers."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from typer.testing import CliRunner

from bitwright.base.errors import FormatError, RecipeError
from bitwright.base.figures import Measured
from bitwright.cli.app import app
from bitwright.explore.measuring import Outcome
from bitwright.explore.show_format import describe_format, exact
from bitwright.explore.variants import DEFAULT, METHODS, Variant, parse_variants, split_names
from bitwright.formats import list_formats
from bitwright.quantize.policy import Policy


def test_the_default_list_has_every_family_and_every_policy_is_valid() -> None:
    variants = parse_variants(None)
    assert [v.name for v in variants] == list(DEFAULT)
    names = {family.family for family in list_formats()}
    assert names <= {v.family for v in variants} | {"fixed"}  # fixed is called "fixed point" here
    assert {"fixed point", "dynamic fixed point", "codebook, minifloat"} <= {
        v.family for v in variants
    }
    for variant in variants:
        for method in METHODS:
            Policy.from_dict(Variant(variant.weight, variant.activation, method).policy)


def test_names_are_split_outside_of_brackets() -> None:
    text = "e4m3<finite,flush>, cb4{-7,-2,1,6}/uint8,mx<fixed<8,2>,16>/int8"
    assert split_names(text) == [
        "e4m3<finite,flush>", "cb4{-7,-2,1,6}/uint8", "mx<fixed<8,2>,16>/int8",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"text": "int3"}, ["int3/uint4"]),
        ({"text": "e4m3,mxfp4,dfp8"}, ["e4m3/e4m3", "mxfp4/mxfp4", "dfp8/dfp8"]),
        ({"text": "cb16:e4m3,cb16,po2_4"}, ["cb16:e4m3/e4m3", "cb16/uint8", "po2_4/uint8"]),
        ({"text": "int4,int4/uint4"}, ["int4/uint4"]),
        ({"text": "int4,int2/uint3", "activations": "uint8"}, ["int4/uint8", "int2/uint3"]),
        (
            {"text": None, "weights": "int4,po2_4", "activations": "uint4,uint8"},
            ["int4/uint4", "int4/uint8", "po2_4/uint4", "po2_4/uint8"],
        ),
    ],
)
def test_pairs_of_formats(arguments: dict[str, str], expected: list[str]) -> None:
    assert [v.name for v in parse_variants(**arguments)] == expected


def test_unknown_formats_say_which_operand() -> None:
    with pytest.raises(FormatError, match="activations: unknown format 'uint4x'"):
        parse_variants("int4/uint4x")
    with pytest.raises(FormatError, match="weights:"):
        parse_variants("e0m0")
    with pytest.raises(RecipeError, match="either"):
        parse_variants("int4", weights="int8")


@pytest.mark.parametrize(
    "name", ["e4m3", "e5m2", "e3m2<flush>", "po2_5<zero>", "cb4{-7,-2,1,6}", "mxfp4", "ufixed<5,9>"]
)
def test_every_code_is_shown_with_its_exact_value(name: str) -> None:
    found = describe_format(name)
    assert found.codes is not None
    from bitwright.formats import parse_format

    form = parse_format(name)
    assert len(found.codes.rows) == 1 << form.bits
    numbers = 0
    for pattern, row in enumerate(found.codes.rows):
        if "level" not in row:
            assert row["value"] in ("NaN", "infinity", "-infinity")
            continue
        numbers += 1
        shown = str(row["value"]).partition(" = ")[0]
        value = float(form.decode(form.from_bits(pattern)))
        assert Fraction(Decimal(shown)) == Fraction(value)
    assert numbers >= len(form.grid())


def test_ends_of_the_ocp_formats() -> None:
    facts = describe_format("e4m3").facts
    assert facts["highest"] == "448" and facts["smallest above zero"] == "0.001953125"
    codes = describe_format("e5m2").codes
    assert codes is not None
    words = {str(row["bits"]): row["value"] for row in codes.rows}
    assert words["01111100"] == "infinity" and words["11111100"] == "-infinity"
    assert words["01111101"] == "NaN" and words["10000000"] == "-0"
    assert describe_format("e8m23").codes is None
    assert describe_format("cb16").codes is None


@pytest.mark.parametrize(("level", "power"), [(3, -40), (1, -500), (5, 300), (0, 0), (-6, 2)])
def test_values_are_written_exactly(level: int, power: int) -> None:
    text = exact(level, 2.0**power)
    first = text.partition(" = ")[0]
    expected = Fraction(level) * Fraction(2) ** power
    if "2^" in first:
        odd, _, exponent = first.rpartition("2^")
        factor = int((odd.replace("*", "").strip() or "1").replace("-", "-1") or 1)
        factor = -1 if odd.strip() == "-" else factor
        assert Fraction(factor) * Fraction(2) ** int(exponent) == expected
    else:
        assert Fraction(Decimal(first)) == expected


def test_the_error_of_a_loss_comes_from_the_images_that_differ() -> None:
    right = np.ones(100, dtype=bool)
    worse = right.copy()
    worse[:4] = False
    reference = Outcome(Measured(1.0), right, np.empty(0))
    other = Outcome(Measured(0.96), worse, np.empty(0))
    loss = other.loss_against(reference)
    assert loss.value == pytest.approx(-0.04)
    # Agresti and Min: 4.5 images against 0.5, of 102.
    assert loss.error == pytest.approx(np.sqrt(5 - 4.0**2 / 102) / 102)
    same = reference.loss_against(reference)
    assert same.value == 0.0 and 0.005 < same.error < 0.015
    folds = (np.array([0.9, 0.8]), np.array([0.8, 0.8]))
    a, b = (Outcome(Measured(float(f.mean())), right, f) for f in folds)
    assert b.loss_against(a).error == pytest.approx(0.05)


def test_the_verbs_print_one_json_value() -> None:
    runner = CliRunner()
    shown = json.loads(runner.invoke(app, ["formats", "show", "e2m1", "--json"]).stdout)
    assert shown["highest"] == "6" and len(shown["codes"]) == 16
    listed = json.loads(runner.invoke(app, ["formats", "list", "--json"]).stdout)
    families = {f.family for f in list_formats()}
    assert {row["family"] for row in listed} == families | {"dynamic fixed point"}
    shown = json.loads(runner.invoke(app, ["formats", "show", "DFP8", "--json"]).stdout)
    assert shown["format"] == "dfp8" and shown["stands for"].startswith(
        "int8 with one power-of-two"
    )
    table = runner.invoke(app, ["formats", "show", "po2_4<zero>"]).stdout
    assert "0000" in table
