# SPDX-License-Identifier: Apache-2.0
"""Affine quantizers and trained intervals: the formulas, the gradients, and the same integers from
training to the integer graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.ao.quantization.observer import MovingAverageMinMaxObserver

from bitwright.base.errors import FormatError, ModelError, RecipeError
from bitwright.formats import IntegerFormat, Overflow, Rounding, parse_format
from bitwright.interop.packed import load_packed, save_packed
from bitwright.lower.compare import compare_edges
from bitwright.quantize import Policy, apply, explain
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.policy_defaults import complete
from bitwright.quantize.ptq.calibration import calibrate
from bitwright.quantize.quantizer import Phase
from bitwright.quantize.spec import Change, Granularity, QuantSpec, Role, ScaleRule
from bitwright.quantize.straight_through import LevelRange, QuantizeRange, spread
from bitwright.quantize.weight_quantizer import WeightQuantizer
from bitwright.train import TrainConfig
from bitwright.train.optimizers import make_optimizer

BITS = (8, 4, 3, 2, 1)


def spec(format: str, role: Role = Role.ACTIVATION, **fields: Any) -> QuantSpec:
    return complete(Change(format=parse_format(format), **fields), role, "test")


# --- the format ---------------------------------------------------------------------------------


@given(st.integers(1, 16), st.booleans(), st.data())
def test_levels_are_codes_less_the_zero_point(bits: int, signed: bool, data: st.DataObject) -> None:
    plain = IntegerFormat(bits, signed)
    zero = data.draw(st.integers(plain.min_code, plain.max_code))
    affine = plain.with_zero(zero)
    assert parse_format(affine.name) == affine and affine.bits == bits
    codes = np.unique(
        np.clip([plain.min_code, zero, plain.max_code], plain.min_code, plain.max_code)
    )
    assert (affine.levels(codes) == codes - zero).all()
    assert (affine.codes(codes - zero) == codes).all()
    assert affine.contains(0), "real zero is a level: zero padding is exact"
    assert affine.signed == (affine.min_level < 0)
    x = np.array([-1e9, -0.5, 0.0, 0.5, 1.5, 1e9])
    assert (affine.encode(x, 1.0) == plain.encode(x, 1.0, zero)).all()
    assert affine.encode(0.0, 0.37) == zero


def test_zero_points_that_are_no_codes_are_refused() -> None:
    for name in ("uint4z16", "uint4z-1", "int4z8", "int4nz1"):
        with pytest.raises(FormatError, match="zero point"):
            parse_format(name)
    with pytest.raises(FormatError, match="saturates"):
        parse_format("int4z3").check(Overflow.WRAP)


# --- the formulas -------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", BITS)
def test_activations_are_those_of_the_moving_average_observer(bits: int) -> None:
    """PyTorch's observer, which has its averaging constant and begins with one batch, too."""
    observer = MovingAverageMinMaxObserver(quant_min=0, quant_max=2**bits - 1)
    quantizer = ActivationQuantizer(spec(f"uint{bits}", scale=ScaleRule.MINMAX)).train()
    generator = torch.Generator().manual_seed(bits)
    for _ in range(5):
        x = torch.randn(200, 3, generator=generator) * 2 + 0.7
        out = quantizer(x)
        observer(x)
    assert torch.equal(quantizer.range[0], torch.stack([observer.min_val, observer.max_val]))
    scale, zero = observer.calculate_qparams()
    # Away from ties of the zero point, where PyTorch rounds another sum.
    assert quantizer.unit == pytest.approx(float(scale), rel=1e-6)
    assert abs(quantizer.format.zero - int(zero)) == 0
    wanted = torch.fake_quantize_per_tensor_affine(x, float(scale), int(zero), 0, 2**bits - 1)
    assert (out - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("granularity", list(Granularity)[:2])
def test_weights_take_their_interval_and_hold_zero(bits: int, granularity: Granularity) -> None:
    chosen = spec(f"int{bits}", Role.WEIGHT, scale=ScaleRule.MINMAX, granularity=granularity)
    assert chosen.momentum == 0.01 and not chosen.format.narrow
    quantizer = WeightQuantizer(chosen, 3)
    weight = torch.randn(3, 40, generator=torch.Generator().manual_seed(bits)) + 0.3
    levels, unit = quantizer.levels(weight)
    table = weight.reshape(len(unit), -1).double()
    low, high = table.amin(1).clamp(max=0), table.amax(1).clamp(min=0)
    first, last = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    scale = ((high - low).float() / (last - first)).double()
    assert torch.allclose(unit, scale, rtol=1e-6)
    zero = torch.round(first - low / unit)
    wanted = torch.clip(torch.round(table / unit[:, None]) + zero[:, None], first, last)
    assert torch.equal(levels.reshape(table.shape), wanted - zero[:, None])
    assert quantizer.format.contains(levels.numpy().astype(np.int64)).all()
    assert (quantizer(weight).detach().double() - levels * spread(unit, weight)).abs().max() < 1e-6


def test_symmetric_is_the_special_case() -> None:
    quantizer = ActivationQuantizer(spec("int4", scale=ScaleRule.MINMAX, zero_point=False))
    quantizer(torch.tensor([-3.0, 1.0]))
    assert quantizer.format == parse_format("int4") and quantizer.unit == pytest.approx(3 / 7)
    weights = WeightQuantizer(
        spec("int4", Role.WEIGHT, scale=ScaleRule.MINMAX, zero_point=False), 1
    )
    assert float(weights.levels(torch.tensor([[-3.0, 1.0]]))[1]) == pytest.approx(3 / 7)


def test_weights_follow_with_the_averaging_constant() -> None:
    quantizer = WeightQuantizer(spec("int8", Role.WEIGHT, scale=ScaleRule.MINMAX, momentum=0.25), 1)
    quantizer.train()
    quantizer(torch.tensor([[-1.0, 1.0]]))
    quantizer(torch.tensor([[-1.0, 3.0]]))
    assert quantizer.range.tolist() == [[-1.0, 1.5]]
    quantizer.eval()
    quantizer(torch.tensor([[-9.0, 9.0]]))
    assert quantizer.range.tolist() == [[-1.0, 1.5]], "evaluation learns nothing"


def test_a_zero_point_of_zero_behind_a_relu() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    policy = Policy.from_dict({"activation": {"format": "int4", "scale": "minmax"}})
    converted = apply(model, policy, "train", torch.rand(4, 1, 2, 2))
    found = converted.get_submodule("1")
    assert found.spec.format == parse_format("uint4") and not found.spec.zero_point
    assert "zero point 0" in str(explain(model, policy))


# --- gradients ----------------------------------------------------------------------------------


def interval_by_autograd(x: Tensor, ends: Tensor, low: Any, high: Any, steps: int) -> Tensor:
    """The definition: clip to the real ends, round as the identity. Autograd does the rest."""
    if ends.shape[1] == 2:
        bottom, top = (spread(end, x) for end in (ends[:, 0], ends[:, 1]))
        unit = (top - bottom) / steps
    else:
        unit = spread(ends[:, 0], x) / steps
        bottom, top = unit * low, unit * high
    clipped = torch.maximum(torch.minimum(x, top), bottom)
    ratio = clipped / unit
    return (ratio + (torch.round(ratio) - ratio).detach()) * unit


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("both", [True, False])
def test_gradients_of_an_interval_are_those_of_its_definition(rows: int, both: bool) -> None:
    generator = torch.Generator().manual_seed(rows + 2 * both)
    # Ends on whole levels, so that the clipped values lie where the zero point puts them.
    unit = torch.tensor([0.5, 0.25, 2.0], dtype=torch.float64)[:rows]
    low, high, steps = (-5, 10, 15) if both else (-7, 7, 7)
    columns = [unit * low, unit * high] if both else [unit * steps]
    ends = torch.stack(columns, dim=1).requires_grad_()
    x = torch.randn(3, 50, generator=generator, dtype=torch.float64) * 9 * unit.max()
    x.requires_grad_()
    grad = torch.randn(3, 50, generator=generator, dtype=torch.float64)
    out = QuantizeRange.apply(x, ends, unit, LevelRange(low, high, Rounding.HALF_EVEN), steps)
    out.backward(grad)
    x2, ends2 = x.detach().clone().requires_grad_(), ends.detach().clone().requires_grad_()
    wanted = interval_by_autograd(x2, ends2, low, high, steps)
    wanted.backward(grad)
    assert torch.allclose(out, wanted)
    assert torch.allclose(x.grad, x2.grad)
    assert torch.allclose(ends.grad, ends2.grad)
    assert bool(ends.grad.any())


def test_what_is_clipped_moves_only_its_end() -> None:
    ends = torch.tensor([[-1.0, 3.0]], requires_grad=True)
    x = torch.tensor([-5.0, -2.0, 7.0])
    QuantizeRange.apply(
        x, ends, torch.tensor([1.0]), LevelRange(-1, 3, Rounding.HALF_EVEN), 4
    ).sum().backward()
    assert ends.grad.tolist() == [[2.0, 1.0]]


def test_intervals_are_trained_and_never_decay() -> None:
    policy = Policy.from_dict(
        {
            "input": "int8",
            "weight": {"format": "int4", "scale": "interval", "granularity": "per_channel"},
            "activation": {"format": "uint4", "scale": "learned"},
            "rules": [
                {"role": "activation", "layers": "1", "scale": "interval", "zero_point": True},
                {"role": "weight", "position": "first", "zero_point": True},
                {"role": "weight", "position": "last", "granularity": "per_tensor"},
            ],
        }
    )
    model = apply(net(), policy, "train", images())
    optimizer = make_optimizer(model, TrainConfig(optimizer="sgd", weight_decay=0.5, lr=0.1))
    decays = {
        id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
    }
    named = dict(model.named_parameters())
    ranges = [name for name in named if name.rsplit(".", 1)[-1] in ("range", "scale")]
    assert len(ranges) >= 4 and all(decays[id(named[name])] == 0 for name in ranges)
    assert all(decays[id(p)] == 0.5 for name, p in named.items() if name.endswith("conv.weight"))
    before = {name: named[name].detach().clone() for name in ranges}
    nn.functional.cross_entropy(model(images()), labels()).backward()
    optimizer.step()
    moved = [name for name in ranges if not torch.equal(before[name], named[name])]
    assert moved == ranges


# --- from training to the integer graph ---------------------------------------------------------


def net() -> nn.Sequential:
    """Padded, signed and unsigned activations, and one max pool behind a signed one."""
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.Hardtanh(-1.5, 1.0),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 9, 4),
    )


def images() -> Tensor:
    return torch.randn(48, 2, 6, 6, generator=torch.Generator().manual_seed(1)) + 0.2


def labels() -> Tensor:
    return (images().mean((2, 3)).sum(1) * 5).long().clamp(0, 3)


SCALES: dict[str, dict[str, Any]] = {
    "max": {"scale": "max"},
    "affine": {"scale": "minmax"},
    "interval": {"scale": "interval"},
    "affine interval": {"scale": "interval", "zero_point": True},
    "learned": {"scale": "learned"},
    "learned power of two": {"scale": "learned", "power_of_two": True},
}


def weight_fields(bits: int, rule: str) -> dict[str, Any]:
    """At one bit: the two signs, or with a zero point two neighbouring levels."""
    given = SCALES[rule]
    if bits > 1 or rule in ("affine interval", "affine"):
        return {"format": f"int{bits}", **given}
    if rule == "interval":
        return {"format": "int1", **given, "zero_point": True}
    return {"format": "bipolar", **given, "scale": "mean" if rule == "max" else given["scale"]}


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("weight", SCALES)
def test_every_pair_of_quantizers_trains_and_freezes(bits: int, weight: str) -> None:
    for index, rule in enumerate(SCALES):
        fields = {"format": f"uint{bits}", **SCALES[rule]}
        if bits == 1 and not fields.get("zero_point", rule == "affine"):
            # A sign below zero takes two bits; a zero point makes one enough.
            fields = {"format": "uint1", **fields}
            signed = [{"role": "activation", "layers": "1", "format": "int2"}]
        else:
            signed = []
        policy = Policy.from_dict(
            {
                "input": {"format": "int8", "scale": "minmax"},
                "weight": weight_fields(bits, weight),
                "activation": fields,
                "rules": signed,
            }
        )
        model = apply(net(), policy, "train", images()).train()
        losses = trained(model, steps=8)
        # Between running minimum and maximum one bit leaves next to nothing but zeros (of weights
        # as large below zero as above, nothing): no gradient comes back, but it must freeze.
        if bits > 1 or "affine" not in (weight, rule):
            assert min(losses[-3:]) < losses[0], f"{bits} bits, {weight}, {rule}: {losses}"
        if index % 2 == bits % 2:
            continue  # every combination trains; half of them freeze, each rule with each width
        assert_integers_agree(model.eval(), policy, exact=bits <= 6)


def trained(model: fx.GraphModule, steps: int) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images()), labels())
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def assert_integers_agree(model: fx.GraphModule, policy: Policy, exact: bool) -> None:
    """Fake-quantized, frozen and integer graph; padding, pooling and all."""
    x = images()
    frozen = apply(model, policy, "freeze", x)
    compare_edges(frozen.graph, frozen.edges(x), accumulators=True).require()
    with torch.no_grad():
        wanted, got = model(x), frozen(x)
    # Up to 6 bits activations are thresholds: only the order of float sums differs. Wider ones are
    # multiplied by 17-bit integers.
    limit = 1e-4 if exact else 2e-2
    assert (wanted - got).abs().max() <= limit * wanted.abs().max()


class Joined(nn.Module):
    """Signed and unsigned parts in front of a concatenation that a product reads, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.a, self.b = nn.Conv2d(2, 3, 1), nn.Conv2d(2, 3, 3, padding=1)
        self.c, self.d = nn.Conv2d(6, 4, 3, padding=1), nn.Conv2d(2, 4, 1)
        self.act, self.relu = nn.Hardtanh(), nn.ReLU()
        self.fc = nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([self.act(self.a(x)), self.relu(self.b(x))], 1)
        return self.fc((self.c(joined) + self.d(x)).flatten(1))


def test_a_shared_scale_leaves_each_part_its_zero_point() -> None:
    policy = Policy.from_dict(
        {"activation": {"format": "uint4", "scale": "minmax"}, "input": "int8"}
    )
    model = apply(Joined(), policy, "train", images()).train()
    for _ in range(3):
        model(images())
    first, second = model.get_submodule("act"), model.get_submodule("relu")
    assert first.unit == second.unit
    assert first.format.zero > 0 and second.format == parse_format("uint4")
    assert_integers_agree(model.eval(), policy, exact=True)
    for rule in ("interval", "learned"):
        fields = {"role": "activation", "layers": "relu", "scale": rule, "zero_point": False}
        mixed = Policy((*policy.rules, *Policy.from_dict({"rules": [fields]}).rules[-1:]))
        with pytest.raises(ModelError, match="zero point, and shares its scale"):
            apply(Joined(), mixed, "train", images())


def test_a_new_float_state_is_measured_anew() -> None:
    policy = Policy.from_dict(
        {
            "input": "int8",
            "weight": {"format": "int4", "scale": "minmax"},
            "activation": {"format": "uint4", "scale": "interval"},
        }
    )
    model = apply(net(), policy, "train", images())
    other = net()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(3)
    model.load_state_dict(other.state_dict(), strict=False)
    model(images())
    first = model.get_submodule("0")
    low, high = float(first.weight.detach().min()), float(first.weight.detach().max())
    assert first.weight_quantizer.range[0].tolist() == pytest.approx([min(low, 0), max(high, 0)])


@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
@pytest.mark.parametrize("rule", ["minmax", "interval"])
def test_packed_models_keep_their_zero_points(rule: str, granularity: str, tmp_path: Path) -> None:
    fields = {"format": "int3", "scale": rule, "zero_point": True, "granularity": granularity}
    last = {"position": "last", "role": "weight", "granularity": "per_tensor"}
    given = {"input": "int8", "weight": fields, "activation": "uint3", "rules": [last]}
    policy = Policy.from_dict(given)
    model = apply(net(), policy, "train", images()).train()
    trained(model, steps=3)
    save_packed(tmp_path / "model.bwq", model.eval())
    loaded = apply(net(), policy, "train").eval()
    load_packed(tmp_path / "model.bwq", loaded)
    first, second = (apply(m, policy, "freeze", images()) for m in (model, loaded))
    assert torch.equal(first.levels(images()), second.levels(images()))


@pytest.mark.parametrize("estimator", [None, "max", "average", "percentile:99", "mse"])
def test_calibration_finds_minimum_and_maximum(estimator: str | None) -> None:
    policy = Policy.from_dict(
        {
            "activation": {"format": "uint4", "scale": "minmax"},
            "input": {"format": "uint8", "scale": "minmax"},
        }
    )
    model = calibrate(net().eval(), policy, images(), estimator=estimator, batch_size=16)
    found = model.get_submodule("1")
    low, high = found.range[0].tolist()
    assert -1.5 <= low < -0.5 and 0.5 < high <= 1.0
    assert found.phase is Phase.TRAIN and 0 < found.format.zero < 15
    batches = images().split(16)
    entering = model.get_submodule("input_quantizer")
    average = [sum(float(f(b)) for b in batches) / 3 for f in (torch.min, torch.max)]
    assert entering.range[0].tolist() == pytest.approx(average, rel=1e-5)
    assert_integers_agree(model.eval(), policy, exact=True)
    with pytest.raises(RecipeError, match="asymmetric range"):
        calibrate(net().eval(), policy, images(), estimator="entropy")


# --- what cannot be ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "given", "message"),
    [
        ("weight", {"format": "cb16", "zero_point": True, "scale": "minmax"}, "has no zero point"),
        ("weight", {"format": "bipolar", "scale": "minmax"}, "which is no integer"),
        (
            "activation",
            {"format": "bipolar", "scale": "interval"},
            "which is no integer|sign alone",
        ),
        ("activation", {"format": "e4m3", "scale": "minmax"}, "which is no integer"),
        ("activation", {"format": "uint4", "zero_point": True}, "no range with a minimum"),
        (
            "weight",
            {"format": "int4", "scale": "max", "zero_point": True},
            "no range with a minimum",
        ),
        (
            "weight",
            {"format": "int4", "scale": "minmax", "narrow": True, "zero_point": True},
            "symmetric",
        ),
        ("weight", {"format": "int4", "scale": "minmax", "overflow": "sat_sym"}, "saturates"),
        ("weight", {"format": "int1", "scale": "interval"}, "no level above zero"),
        ("bias", {"format": "int8", "scale": "minmax"}, "cannot have scale"),
        ("bias", {"format": "int8", "scale": "minmax", "zero_point": True}, "has no zero point"),
        ("activation", {"format": "uint4z5"}, "found from the data"),
        ("activation", {"format": "uint4", "zero_point": "yes"}, "true or false"),
        ("weight", {"format": "int16", "scale": "minmax", "granularity": "per_channel"}, "16 bits"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(
    role: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        Policy.from_dict({role: given})
    assert caught.value.where and caught.value.where.startswith(f"quant.{role}")
