# SPDX-License-Identifier: Apache-2.0
"""Sensitivities, sizes of models, and mixed precision by layer."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.data import Dataset, load_dataset
from bitwright.explore.model_sizes import bit_operations, facts_of, model_size, size_of
from bitwright.explore.search import sensitivity
from bitwright.explore.search.candidates import parse_candidates
from bitwright.explore.search.goals import Cost
from bitwright.explore.search.metrics import EmbeddingAgreement, Top1
from bitwright.explore.search.mixed import Options, make_problem, search_mixed
from bitwright.explore.search.mixed_result import MixedResult
from bitwright.explore.search.sensitivity import Damage, SensitivityTable, sensitivity_table
from bitwright.interop.packed import save_packed
from bitwright.models import build_model
from bitwright.quantize import Policy, apply
from bitwright.quantize.ptq.calibration import calibrate
from bitwright.quantize.ptq.folding import fold_batch_norms
from bitwright.quantize.spec import Role
from bitwright.train.evaluation import run_batches

FEW = parse_candidates("int2,int4,int8,e2m1,cb4", "uint2,uint4,uint8")
QUICK = Options(images=64, calibration=64, points=3, refinements=4)
SHAPE = (1, 8, 8)


@cache
def trained() -> tuple[nn.Module, Dataset, Dataset]:
    """A small classifier of digits, trained for a second or two."""
    data = load_dataset("digits")
    torch.manual_seed(0)
    model = build_model("digits_cnn", 10, (8, 8, 1))
    x, y = torch.from_numpy(data.train.reals()), torch.from_numpy(data.train.labels)
    steps = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(8):
        for rows in torch.randperm(len(x)).split(64):
            steps.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            steps.step()
    return model.eval(), data.train, data.test


@cache
def table() -> SensitivityTable:
    model, train, _ = trained()
    return sensitivity_table(model, train, FEW, images=64)


def found(budget: str, minimise: Cost = Cost.MEMORY) -> MixedResult:
    model, train, test = trained()
    options = Options(**{**vars(QUICK), "minimise": minimise})
    return search_mixed(model, Top1(test), train, budget, FEW, options=options, table=table())


class Joined(nn.Module):
    """Two branches joined in front of a product: their features share a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.left, self.right = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.act = nn.ModuleList([nn.ReLU() for _ in range(3)])
        self.last = nn.Conv2d(8, 2, 1)
        self.pool, self.flat = nn.AdaptiveAvgPool2d(1), nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act[0](self.stem(x))
        joined = torch.cat([self.act[1](self.left(x)), self.act[2](self.right(x))], 1)
        out: Tensor = self.flat(self.pool(self.last(joined)))
        return out


def test_so_many_images_are_kept_at_a_time_as_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """400 pools of a stranger's, each of 1 MB an image, were kept of 32 images, and of their
    changes: 22 GB.
    """
    model, train, _ = trained()
    seen: list[int] = []
    choose = sensitivity._images_at_a_time

    def chosen(*given: Any) -> int:
        seen.append(choose(*given))
        return seen[-1]

    monkeypatch.setattr(sensitivity, "_images_at_a_time", chosen)
    monkeypatch.setattr(sensitivity, "MOST_OF_A_FILE", 1 << 16)
    few = sensitivity_table(model, train, FEW, images=64)
    assert len(seen) == 1 and 1 <= seen[0] < 32
    for one, other in zip(few.rows(), table().rows(), strict=True):
        assert one["damage"] == pytest.approx(other["damage"], rel=1e-4, abs=1e-7)
    monkeypatch.setattr(sensitivity, "MOST_OF_A_FILE", 1000)
    monkeypatch.setattr(sensitivity, "machine_memory", lambda: 16_000)
    with pytest.raises(ModelError, match="all tensors of one image"):
        sensitivity_table(model, train, FEW, images=64)


def test_an_input_that_stays_float_is_none_of_the_units() -> None:
    model, train, _ = trained()
    made = sensitivity_table(model, train, FEW, images=8, base={"input": "float"})
    assert [unit.keys for unit in made.space.units] == [unit.keys for unit in table().space.units]
    assert all(math.isfinite(row["damage"]) for row in made.rows())


def test_outputs_that_overflow_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finite weight of a file made damages no numbers, and the solver fail, where the sample that
    is passed first does not show it.
    """
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
    x = torch.zeros((8, 1, 2, 2))
    x[1:] = torch.rand((7, 1, 2, 2), generator=torch.Generator().manual_seed(0)) + 1
    options = {"images": 8, "base": {"input": "float"}}
    assert sensitivity_table(model, x, FEW, **options).images == 8
    with torch.no_grad():
        model[1].weight[0, 1] = 3.4e38
    with pytest.raises(ModelError, match=r"search: gives NaN or infinity for a sample"):
        sensitivity_table(model, x, FEW, **options)
    with torch.no_grad():
        model[1].weight[0, 1] = 1
    monkeypatch.setattr(sensitivity, "_damage", lambda *_: math.inf)
    with pytest.raises(ModelError, match=r"in int\d\w* the output's error is inf"):
        sensitivity_table(model, x, FEW, **options)


def test_a_damage_is_what_the_whole_network_shows() -> None:
    """The partial run of one option gives what converting the model for it gives."""
    model, train, _ = trained()
    x = torch.from_numpy(train.take(range(64)).reals())
    wanted = torch.log_softmax(run_batches(model, x, 100).double(), 1)
    for layer, name in (("conv2", "int2"), ("fc1", "cb4"), ("conv1", "e2m1")):
        unit = next(u for u in table().space.units if u.paths == (layer,))
        option = next(o for o in unit.options if o.format.name == name)
        rules = [{**option.rules[0]}]
        others = [
            {"layers": path, "role": "weight", "keep_float": True}
            for path in ("conv1", "conv2", "fc1") if path != layer
        ]  # fmt: skip
        floats = {"role": "activation", "keep_float": True}
        policy = Policy.from_dict({"input": None, "rules": [floats, *rules, *others]})
        converted = apply(model, policy, "train", sample_shape=SHAPE).eval()
        given = torch.log_softmax(run_batches(converted, x, 100).double(), 1)
        damage = float((wanted.exp() * (wanted - given)).sum(1).mean())
        # The table's network has an 8-bit input in floating point: the same numbers.
        assert option.damage == pytest.approx(damage, rel=1e-3, abs=1e-7)


def test_more_bits_damage_less() -> None:
    rows = {(r["layer"], r["format"]): r["damage"] for r in table().rows()}
    for layer in ("conv1", "conv2", "fc1"):
        assert rows[layer, "int2"] > rows[layer, "int4"] > rows[layer, "int8"] >= 0
    for layer in ("act1", "act2"):
        assert rows[layer, "uint2"] > rows[layer, "uint4"] > rows[layer, "uint8"] >= 0
    text = table().to_markdown()
    assert "| conv1 | weight | 72 |" in text and table().to_csv().startswith("layer,role,format")


def test_measuring_leaves_the_model_alone() -> None:
    model, train, _ = trained()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    sensitivity_table(model, train, parse_candidates("int2,int8", "uint8"), images=8)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_features_that_share_a_scale_are_one_unit() -> None:
    model = Joined().eval()
    x = torch.rand(8, 1, 8, 8)
    made = sensitivity_table(model, x, FEW, measure=Damage.ERROR, images=8)
    features = [unit.paths for unit in made.space.units if unit.role is Role.ACTIVATION]
    assert ("act.1", "act.2") in features
    goal = f"memory={size_of(list(made.space.facts), model).total_bits // 16}B"
    metric = EmbeddingAgreement.of(model, x)
    result = search_mixed(model, metric, x, goal, FEW, options=QUICK, table=made)
    facts = {f.path: f for f in facts_of(model, result.policy, SHAPE)}
    assert facts["act.1"].format == facts["act.2"].format


@pytest.mark.parametrize("cost", list(Cost))
def test_costs_of_the_solver_are_those_of_the_network(cost: Cost) -> None:
    model, _, _ = trained()
    space = table().space
    problem, kept = make_problem(space, model, cost)
    for pick in (0, -1):
        assignment = tuple(range(len(options))[pick] for options in problem.units)
        chosen = [rows[i] for rows, i in zip(kept, assignment, strict=True)]
        facts = facts_of(model, space.policy(chosen), SHAPE)
        report = size_of(facts, model)
        real = {
            Cost.SIZE: report.parameter_bits,
            Cost.MEMORY: report.total_bits,
            Cost.BOPS: bit_operations(facts),
        }[cost]
        assert problem.cost(assignment) == real


@pytest.mark.parametrize(("budget", "cost"), [("size=1.2kB", Cost.SIZE), ("bops=2%", Cost.BOPS)])
def test_budgets_are_kept(budget: str, cost: Cost) -> None:
    result = found(budget)
    limit = result.goal.limit(result.floating[cost])
    assert result.best.cost(cost) <= limit
    within = [p.accuracy for p in result.points if p.cost(cost) <= limit]
    assert result.best.accuracy == max(within)
    assert result.best.accuracy > 0.7


def test_the_policy_is_the_network_that_was_measured() -> None:
    model, train, test = trained()
    result = found("drop=3")
    assert result.best.accuracy >= result.baseline - 0.03
    policy = Policy.from_dict(yaml.safe_load(result.to_yaml())["quant"])
    assert policy.rules == result.policy.rules
    converted = calibrate(model, policy, train.take(range(64)))
    assert Top1(test)(converted) == result.best.accuracy
    report = model_size(converted, sample_shape=SHAPE)
    assert (report.parameter_bits, report.total_bits) == (result.best.size, result.best.memory)
    frozen = apply(converted, policy, "freeze")
    assert Top1(test)(frozen) == pytest.approx(result.best.accuracy, abs=0.02)


def test_fewer_bits_for_less_accuracy() -> None:
    costs = [found(budget).best.memory for budget in ("drop=3", "drop=20")]
    assert costs[1] < costs[0]


def test_the_front_has_nothing_that_is_beaten() -> None:
    result = found("drop=5")
    front = result.front()
    for one in front:
        assert not any(p.memory <= one.memory and p.accuracy > one.accuracy for p in result.points)
    assert [p.memory for p in front] == sorted(p.memory for p in front)
    data = result.to_json()
    assert data["best"]["accuracy"] == result.best.accuracy
    assert sum(row["chosen"] for row in data["points"]) == 1
    assert "| conv1 | weight |" in result.to_markdown()


def test_impossible_budgets_say_what_is_possible() -> None:
    with pytest.raises(RecipeError, match=r"from 0\.\d+ kB to 2\.\d+ kB"):
        found("size=100B")
    with pytest.raises(RecipeError, match="M bit operations"):
        found("bops=10")
    with pytest.raises(RecipeError, match=r"with the best of these candidates it is \d"):
        found("accuracy=100%")


def test_a_budget_above_everything_takes_the_best() -> None:
    result = found("memory=1MB")
    assert result.best.accuracy == max(p.accuracy for p in result.points)


def test_candidates_that_no_layer_can_have() -> None:
    model, train, _ = trained()
    with pytest.raises(RecipeError, match="no candidate fits the weight of conv1"):
        sensitivity_table(model, train, parse_candidates("int8,cb16", "uint8").__class__(
            parse_candidates("cb64").weights, FEW.features), images=8)  # fmt: skip


def test_samples_that_do_not_fit() -> None:
    model, _, test = trained()
    with pytest.raises(DataError):
        search_mixed(model, Top1(test), torch.rand(4, 3, 8, 8), "drop=1", FEW, options=QUICK)


def test_one_size_whatever_form_a_model_has() -> None:
    """Planned, converted and frozen: the same codes, tables and features."""
    model, train, _ = trained()
    rules = [
        {"layers": "conv2", "role": "weight", "format": "cb8", "scale": "max"},
        {"layers": "fc1", "role": "weight", "format": "mxfp4"},
    ]
    policy = Policy.from_dict(
        {"input": "uint4", "weight": "int3", "activation": "uint4", "rules": rules}
    )
    planned = model_size(model, policy, sample_shape=SHAPE)
    converted = model_size(calibrate(model, policy, train.take(range(16))), sample_shape=SHAPE)
    assert planned.parameter_bits == converted.parameter_bits
    assert planned.total_bits == converted.total_bits
    assert planned.network_rate == converted.network_rate
    assert planned.part("weight") == 3 * 72 + 3 * 1152 + 4 * 640
    assert planned.part("table") == 8 * 16
    assert planned.part("exponents") == 8 * 10 * 2  # rows of 64 inputs, blocks of 32
    plain = Policy.uniform("int3", "uint4", "uint4")
    x = torch.from_numpy(train.take(range(16)).reals())
    converted = model_size(apply(model, plain, "train", x), sample_shape=SHAPE)
    assert converted.part("weight") == model_size(model, plain, sample_shape=SHAPE).part("weight")
    assert converted.feature_count == planned.feature_count


@pytest.mark.parametrize(
    ("activation", "entering"), [(None, None), (None, "uint8"), ("uint4", None), ("e4m3", "e4m3")]
)
def test_features_that_stay_float_are_counted(activation: str | None, entering: str | None) -> None:
    """A network of quantized weights alone still holds its features, 32 bits each."""
    model, _, _ = trained()
    policy = Policy.uniform("int3", activation, entering)
    planned = model_size(model, policy, sample_shape=SHAPE)
    converted = model_size(apply(model, policy, "train", sample_shape=SHAPE), sample_shape=SHAPE)
    assert planned.feature_count == converted.feature_count == 64 + 512 + 256
    assert converted.feature_bits == planned.feature_bits
    assert converted.memory_ratio == planned.memory_ratio
    assert converted.network_rate == planned.network_rate


@pytest.mark.parametrize("scope", ["layer", "network"])
def test_the_packed_file_has_this_size(tmp_path: Path, scope: str) -> None:
    model, train, _ = trained()
    book = {"format": "cb16", "scope": scope}
    rules = [
        {"layers": "fc1", "role": "weight", "format": "mxfp8"},
        {"layers": "conv1", "role": "weight", "format": "e2m3"},
    ]
    policy = Policy.from_dict(
        {
            "input": "uint4",
            "weight": book,
            "activation": "uint4",
            "rules": rules if scope == "layer" else [],
        }
    )
    converted = calibrate(model, policy, train.take(range(16)))
    packed = save_packed(tmp_path / "model.bwq", converted)
    report = model_size(converted, sample_shape=SHAPE)
    assert (tmp_path / "model.bwq").stat().st_size == packed.total
    kinds = ("table", "scales", "exponents")
    assert [report.part(kind) // 8 for kind in kinds] == [
        packed.tables, packed.scales, packed.exponents
    ]  # fmt: skip
    # A layer's codes end with a whole byte.
    assert 0 <= packed.codes - report.part("weight") / 8 < 3
    scales = sum(e.scales for e in report.entries if e.is_feature)
    numbers = report.part("bias") + report.part("batch_norm") + scales
    assert packed.numbers == numbers // 8
    assert 0 <= packed.payload - (report.parameter_bits + scales) / 8 < 3


def test_sizes_of_float_models() -> None:
    model, _, _ = trained()
    report = model_size(model, sample_shape=SHAPE)
    assert report.parameter_rate == report.network_rate == report.memory_ratio == 1
    folded = model_size(fold_batch_norms(model), sample_shape=SHAPE)
    assert report.float_parameters - folded.float_parameters == 4 * 8 + 4 * 16 - 8 - 16


def test_face_networks_have_the_published_counts() -> None:
    for name, parameters in (("face_densenet10", 376_832), ("face_densenet20", 1_460_096)):
        folded = fold_batch_norms(build_model(name, None, (80, 80, 3)).eval())
        report = model_size(folded, sample_shape=(3, 80, 80))
        assert report.float_parameters == parameters
        sums = {376_832: (1_017_856, 832_128), 1_460_096: (2_157_056, 1_568_128)}[parameters]
        assert (report.layer_inputs[0], report.layer_outputs[0]) == sums
