# SPDX-License-Identifier: Apache-2.0
"""Quantizers: no waiting for a device in training, rules of one's own, checkpoints of before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bitwright.base.errors import BitwrightError, ModelError
from bitwright.formats import parse_format
from bitwright.quantize import activation_quantizer
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.policy_defaults import complete
from bitwright.quantize.scale_rules import Rule, register_rule
from bitwright.quantize.spec import Change, Granularity, QuantSpec, Role, ScaleRule
from bitwright.quantize.weight_quantizer import WeightQuantizer

FORMATS = ("int8", "int3", "uint4", "bipolar", "ternary", "fixed<8,3>", "e4m3", "e8m7", "e8m23",
           "po2_4", "cb4", "cb4{-7,-2,1,6}", "mxfp8")  # fmt: skip


class NoWaiting(TorchDispatchMode):
    """Refuses to turn a tensor into a Python number, which waits for a device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "waits for the device"
        assert func is not torch.ops.aten.nonzero.default, "waits for the device"
        return func(*args, **(kwargs or {}))


def specs(role: Role) -> list[QuantSpec]:
    found = []
    for name in FORMATS:
        for rule in ScaleRule.all():
            for zero_point in (None, True):
                change = Change(format=parse_format(name), scale=rule, zero_point=zero_point)
                try:
                    found.append(complete(change, role, "test"))
                except BitwrightError:
                    continue
    return found


def named(spec: QuantSpec) -> str:
    return f"{spec.format}-{spec.scale_text}".replace(" ", "_")


def trained(quantizer: torch.nn.Module, batches: list[Tensor], guard: bool) -> list[Tensor]:
    """Outputs and gradients of some steps; the first one may wait."""
    found = []
    for number, batch in enumerate(batches):
        x = batch.clone().requires_grad_()
        if guard and number:
            with NoWaiting():
                out = quantizer(x)
                out.square().sum().backward()
        else:
            out = quantizer(x)
            out.square().sum().backward()
        found += [out.detach(), x.grad, *(p.grad.clone() for p in quantizer.parameters())]
    return found


@pytest.mark.parametrize("spec", specs(Role.ACTIVATION), ids=named)
def test_activations_are_the_same_on_a_device_and_wait_for_nothing(
    spec: QuantSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [torch.randn(3, 8, 4, 4, generator=torch.manual_seed(n)) * (n + 1) for n in range(3)]
    wanted = trained(ActivationQuantizer(spec, Role.ACTIVATION, (0.0, 6.0)), batches, False)
    monkeypatch.setattr(activation_quantizer, "HOST", ())  # the way of tensors elsewhere
    found = trained(ActivationQuantizer(spec, Role.ACTIVATION, (0.0, 6.0)), batches, True)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("spec", specs(Role.WEIGHT), ids=named)
def test_weights_wait_for_nothing(spec: QuantSpec) -> None:
    weight = torch.randn(4, 8, 3, 3, generator=torch.manual_seed(1))
    trained(WeightQuantizer(spec, 4), [weight, weight * 1.1], True)


def test_a_scale_rule_of_ones_own() -> None:
    class Rms(Rule):
        """Three times the root of the mean square is the largest level."""

        estimator = "mse"

        def fit(self, table: Tensor, spec: QuantSpec) -> Tensor:
            return 3 * table.square().mean(dim=1).sqrt() / spec.format.reach

    name = ScaleRule.named("rms", follows=True)
    register_rule(name, Rms())
    with pytest.raises(ModelError, match="already"):
        register_rule(name, Rms())
    with pytest.raises(ValueError, match="already"):
        ScaleRule.named("rms")
    assert ScaleRule("rms") is name
    weight = torch.randn(4, 50)
    spec = complete(Change(format=parse_format("int4"), scale=name), Role.WEIGHT, "test")
    _, unit = WeightQuantizer(spec, 4).levels(weight)
    assert spec.granularity is Granularity.PER_CHANNEL
    assert torch.allclose(unit, (3 * weight.square().mean(1).sqrt() / 7).double())
    activation = complete(Change(format=parse_format("uint4"), scale=name), Role.ACTIVATION, "test")
    quantizer = ActivationQuantizer(activation).train()
    quantizer(weight.abs())
    assert quantizer.unit == pytest.approx(3 * float(weight.square().mean().sqrt()) / 15, rel=1e-5)


def test_checkpoints_of_before_load() -> None:
    spec = complete(Change(format=parse_format("int4"), scale=ScaleRule.INTERVAL), Role.WEIGHT, "t")
    quantizer = WeightQuantizer(spec, 4)
    quantizer(torch.randn(4, 9))
    old = {key.replace("range", "ends"): value for key, value in quantizer.state_dict().items()}
    assert "ends" in old
    other = WeightQuantizer(spec, 4)
    other.load_state_dict(old)
    assert torch.equal(other.range, quantizer.range)
