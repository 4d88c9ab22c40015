# SPDX-License-Identifier: Apache-2.0
"""The parts of the searches that need no torch: Ristretto's order, budgets, exact allocation."""

from __future__ import annotations

import signal
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.base.errors import DataError, RecipeError
from bitwright.explore.search.allocate import Choice, Problem, Product, allocate, sweep, undominated
from bitwright.explore.search.candidates import parse_candidates
from bitwright.explore.search.goals import Cost, Kind, parse_budget
from bitwright.interop.caffe.quantization_param import (
    Precision,
    QuantizationParam,
    RoundingScheme,
)
from bitwright.papers.ristretto.behaviour import Behaviour
from bitwright.papers.ristretto.search import Group, Parity, Setting, TrimmingMode, search

DFP, MINI, PO2 = (
    TrimmingMode.DYNAMIC_FIXED_POINT,
    TrimmingMode.MINIFLOAT,
    TrimmingMode.INTEGER_POWER_OF_2_WEIGHTS,
)


class Fake:
    """A network whose accuracy follows from its widths by a table of losses."""

    def __init__(self, losses: dict[str, dict[int, float]], base: float = 0.9) -> None:
        self.losses, self.base = losses, base
        self.asked: list[Setting] = []

    def __call__(self, setting: Setting) -> float:
        self.asked.append(setting)
        lost = 0.0
        for group, bits in self.losses.items():
            width = getattr(setting, group)
            lost += bits.get(width, 0.0) if width is not None else 0.0
        return self.base - lost


def test_each_group_is_halved_alone_until_it_fails() -> None:
    network = Fake(
        {
            "conv_params": {4: 0.01, 2: 0.5},
            "fc_params": {1: 0.0},
            "activations": {16: 0.001, 8: 0.02, 4: 0.03},
        }
    )
    found = search(DFP, network, margin=2.0)
    assert found.chosen == Setting(4, 1, 8)
    tried = [(trial.group, trial.bits, trial.passed) for trial in found.trials]
    assert tried == [
        (Group.CONV_PARAMS, 16, True), (Group.CONV_PARAMS, 8, True),
        (Group.CONV_PARAMS, 4, True), (Group.CONV_PARAMS, 2, False),
        (Group.FC_PARAMS, 16, True), (Group.FC_PARAMS, 8, True), (Group.FC_PARAMS, 4, True),
        (Group.FC_PARAMS, 2, True), (Group.FC_PARAMS, 1, True),
        (Group.ACTIVATIONS, 16, True), (Group.ACTIVATIONS, 8, True), (Group.ACTIVATIONS, 4, False),
    ]  # fmt: skip
    assert network.asked[0] == Setting()
    assert network.asked[1] == Setting(conv_params=16)
    assert network.asked[-1] == found.chosen
    assert found.accuracy == pytest.approx(0.9 - 0.01 - 0.02)
    assert not found.within_margin
    assert "beyond the margin" in found.log()


def test_a_pass_below_a_failure_is_never_seen() -> None:
    network = Fake({"conv_params": {8: 0.5, 4: 0.0}})
    assert search(DFP, network, margin=1.0).chosen.conv_params == 16


def test_a_group_that_fails_at_once_has_32_bits() -> None:
    found = search(DFP, Fake({"conv_params": {16: 0.5, 32: 0.2}}), margin=3.0)
    assert found.chosen.conv_params == 32
    assert found.accuracy == pytest.approx(0.7)


def test_margins_at_their_ends() -> None:
    losses = {"conv_params": {8: 1e-6}, "fc_params": {16: 0.9}, "activations": {2: 0.9}}
    exact = search(DFP, Fake(losses), margin=0.0)
    assert exact.chosen == Setting(16, 32, 4)
    anything = search(DFP, Fake(losses), margin=100.0)
    assert anything.chosen == Setting(1, 1, 1)
    for margin in (-0.1, 100.1, float("nan"), float("inf")):
        with pytest.raises(RecipeError, match="error margin"):
            search(DFP, Fake(losses), margin=margin)


def test_minifloats_have_one_width_and_a_mantissa_bit() -> None:
    found = search(MINI, Fake({"conv_params": {8: 0.01}}), margin=2.0, exponent=4)
    assert found.chosen == Setting(8, 8, 8, exponent=4)
    assert [trial.bits for trial in found.trials] == [16, 8]  # 4 bits hold no mantissa
    wide = search(MINI, Fake({}), margin=2.0, exponent=7)
    assert [trial.bits for trial in wide.trials] == [16]  # 8 bits neither, of 7 exponent bits
    failed = search(MINI, Fake({"conv_params": {16: 0.5}}), margin=2.0, exponent=5)
    assert failed.chosen.conv_params == 32


def test_powers_of_two_are_measured_once() -> None:
    network = Fake({"conv_params": {4: 0.3}})
    found = search(PO2, network, margin=2.0, weight_bits=4)
    assert found.chosen == Setting(4, 4, 8) and not found.trials
    assert len(network.asked) == 2 and found.accuracy == pytest.approx(0.6)


@given(
    st.dictionaries(st.sampled_from([1, 2, 4, 8, 16]), st.floats(0, 1)),
    st.floats(0, 100),
)
def test_what_is_chosen_passed_alone(losses: dict[int, float], margin: float) -> None:
    found = search(DFP, Fake({"activations": losses}), margin=margin)
    bits = found.chosen.activations
    assert bits == 32 or losses.get(bits or 0, 0.0) <= margin / 100 + 1e-8
    assert bits == 1 or losses.get((bits or 0) // 2, 0.0) > margin / 100 - 1e-8


def test_parameters_have_twelve_fields_with_defaults() -> None:
    plain = QuantizationParam()
    assert plain.to_dict(everything=True) == {
        "precision": "DYNAMIC_FIXED_POINT", "rounding_scheme": "NEAREST",
        "bw_layer_in": 32, "bw_layer_out": 32, "bw_params": 32,
        "fl_layer_in": 16, "fl_layer_out": 16, "fl_params": 16,
        "mant_bits": 23, "exp_bits": 8, "exp_min": -8, "exp_max": -1,
    }  # fmt: skip
    assert QuantizationParam.from_dict({}) == plain


@given(
    st.sampled_from(Precision), st.sampled_from(RoundingScheme),
    st.integers(1, 32), st.integers(-40, 40), st.integers(1, 23), st.integers(-30, 0),
)  # fmt: skip
def test_parameters_survive_as_plain_data(
    precision: Precision, scheme: RoundingScheme, bits: int, fl: int, mantissa: int, low: int
) -> None:
    param = QuantizationParam(
        precision,
        scheme,
        bw_params=bits,
        fl_layer_in=fl,
        mant_bits=mantissa,
        exp_min=low,
        exp_max=0,
    )
    assert QuantizationParam.from_dict(param.to_dict(everything=True)) == param
    numbers = {k: str(v) for k, v in param.to_dict(everything=True).items()}
    assert QuantizationParam.from_dict(numbers) == param


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bw_layer": 8}, "unknown field"),
        ({"bw_params": 0}, "bw_params is 0"),
        ({"bw_params": "eight"}, "bw_params is 'eight'"),
        ({"precision": "FLOAT"}, "precision is 'FLOAT'"),
        ({"precision": 3}, "precision is 3"),
        ({"exp_min": 2, "exp_max": 1}, "lies above"),
        ({"mant_bits": [3, 4]}, "mant_bits is"),
    ],
)
def test_impossible_parameters_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        QuantizationParam.from_dict(fields, "net.prototxt, layer conv1")


def test_behaviours() -> None:
    cpu, gpu = Behaviour.of(Parity.CPU), Behaviour.of(Parity.GPU)
    assert cpu.stop_at_zero and cpu.float_features and not gpu.stop_at_zero
    assert gpu.bias_as_weight and gpu.clip_half and gpu.no_zero
    mended = Behaviour.of(Parity.MENDED)
    traps = {k: v for k, v in vars(mended).items() if k != "tie"}
    assert not any(traps.values())


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("size=60kB", Kind.SIZE, 480_000),
        ("size=1KiB", Kind.SIZE, 8192),
        ("SIZE = 2.5 MB", Kind.SIZE, 20_000_000),
        ("bops=1.5G", Kind.BOPS, 1.5e9),
        ("accuracy=97.5%", Kind.ACCURACY, 0.975),
        ("accuracy=0.975", Kind.ACCURACY, 0.975),
        ("drop=1", Kind.DROP, 0.01),
        ("drop=0.5%", Kind.DROP, 0.005),
    ],
)
def test_budgets(text: str, kind: Kind, value: float) -> None:
    goal = parse_budget(text)
    assert (goal.kind, goal.relative) == (kind, False)
    assert goal.value == pytest.approx(value)


def test_budgets_as_a_share_of_float() -> None:
    goal = parse_budget("memory=12%")
    assert goal.cost is Cost.MEMORY and goal.limit(1000) == pytest.approx(120)
    assert parse_budget("drop=2").least(0.9) == pytest.approx(0.88)


@pytest.mark.parametrize(
    "text",
    ["", "60kB", "size", "size=", "size=-3kB", "size=0", "size=12parsec", "weight=3", "size=0%",
     "size=101%", "accuracy=97.5", "accuracy=101%", "drop=-1", "drop=101", "bops=5kB", "size=1e"],
)  # fmt: skip
def test_budgets_that_make_no_sense(text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_budget(text)
    assert caught.value.hint or caught.value.where


def test_candidates() -> None:
    found = parse_candidates("int2..int4, e4m3,cb4{-7,-2,1,6},fixed<8,3>,int3", ["uint4"])
    names = [f.name for f in found.weights]
    assert names == ["int2", "int3", "int4", "e4m3", "cb4{-7,-2,1,6}", "fixed<8,3>"]
    usual = parse_candidates()
    names = [f.name for f in usual.weights]
    assert {"int5", "int6", "int7", "e3m4", "e2m5"} <= set(names)
    assert usual.widest[0].name == "int8" and usual.widest[1].name == "uint8"


@pytest.mark.parametrize("text", ["", "int8..int2", "int2,foo", "e0m0", "int0..int3", ","])
def test_candidates_that_make_no_sense(text: str) -> None:
    with pytest.raises(RecipeError):
        parse_candidates(text)


choices = st.builds(
    Choice, st.just("f"), st.integers(1, 8), st.integers(0, 50), st.floats(0, 1).map(lambda d: d)
)
units = st.lists(st.lists(choices, min_size=1, max_size=4), min_size=1, max_size=4)


def best_by_trying(problem: Problem, limit: float) -> float | None:
    every = product(*(range(len(options)) for options in problem.units))
    found = [problem.damage(c) for c in every if problem.cost(c) <= limit]
    return min(found, default=None)


@settings(max_examples=40, deadline=None)
@given(units, st.integers(0, 250), st.data())
def test_allocation_is_exact(rows: list[list[Choice]], limit: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 2))
    products = tuple(
        Product(
            data.draw(st.integers(0, 5)),
            data.draw(st.integers(0, len(rows) - 1)),
            tuple(data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=2))),
            data.draw(st.integers(0, 8)),
        )
        for _ in range(count)
    )
    problem = Problem(tuple(map(tuple, rows)), 3, products)
    best = best_by_trying(problem, limit)
    if best is None:
        assert problem.smallest > limit
        with pytest.raises(RecipeError, match=f"is {problem.smallest}, the limit {limit}"):
            allocate(problem, limit)
        return
    assert problem.smallest <= limit
    found = allocate(problem, limit)
    assert problem.cost(found) <= limit
    assert problem.damage(found) == pytest.approx(best, abs=1e-7)


def test_the_smallest_may_be_of_options_that_cost_more_by_themselves() -> None:
    """A codebook costs memory, and fewer bits make the products of its layer cheaper."""
    rows = ((Choice("int8", 8, 0, 0.0), Choice("codebook", 2, 10, 0.5)),)
    problem = Problem(rows, products=(Product(5, 0, (), least=1),))
    assert problem.smallest == 20
    assert allocate(problem, 20) == (1,) and allocate(problem, 40) == (0,)
    with pytest.raises(RecipeError, match="allow is 20, the limit 19"):
        allocate(problem, 19)


def test_a_cheaper_option_that_is_wider_does_not_break_the_limit() -> None:
    rows = ((Choice("narrow", 2, 10, 0.5), Choice("wide", 8, 0, 0.5)),)
    problem = Problem(rows, products=(Product(5, 0, (), least=1),))
    assert allocate(problem, 30) == (0,)
    with pytest.raises(KeyboardInterrupt):  # the solver leaves Ctrl-C alone
        signal.raise_signal(signal.SIGINT)


def test_dominated_options_are_left_out() -> None:
    options = [
        Choice("a", 4, 40, 0.1), Choice("b", 4, 40, 0.2), Choice("c", 8, 60, 0.3),
        Choice("d", 2, 60, 0.3), Choice("e", 8, 80, 0.0),
    ]  # fmt: skip
    assert [options[i].name for i in undominated(options)] == ["a", "d", "e"]


def test_a_sweep_goes_from_the_smallest_to_the_best() -> None:
    rows = tuple(
        tuple(Choice(str(b), b, 10 * b, 2.0 ** -(2 * b)) for b in (2, 4, 8)) for _ in range(3)
    )
    problem = Problem(rows)
    found = sweep(problem, 6)
    costs = [problem.cost(assignment) for assignment in found]
    assert costs == sorted(costs) and costs[0] == problem.smallest == 60
    assert found[-1] == (2, 2, 2) and problem.largest == 240
