# SPDX-License-Identifier: Apache-2.0
"""Choosing a format by the outputs on calibration samples."""

from __future__ import annotations

import pytest
import torch
from tests.ptq_networks import calibration, trained_digits

from bitwright.base.errors import ModelError, RecipeError
from bitwright.quantize import Policy
from bitwright.quantize.ptq import choose_policy


def uniform(name: str) -> Policy:
    return Policy.from_dict({"input": None, "weight": {"format": name, "scale": "mse"},
                             "activation": {"format": name, "scale": "max"}})  # fmt: skip


def test_more_bits_have_smaller_errors_and_the_smallest_wins() -> None:
    model = trained_digits()
    names = ("int2", "int4", "int8")
    found = choose_policy(model, {name: uniform(name) for name in names}, calibration())
    errors = [found.errors[name] for name in names]
    assert errors == sorted(errors, reverse=True) and errors[-1] > 0
    assert found.best == "int8"


def test_wide_values_want_exponents_and_even_ones_want_mantissas() -> None:
    generator = torch.Generator().manual_seed(0)
    data = torch.rand(32, 1, 4, 4, generator=generator)
    policies = {name: uniform(name) for name in ("e5m2", "e4m3", "e3m4", "e2m5")}

    def one(spread: float) -> torch.nn.Module:
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 64, bias=False))
        with torch.no_grad():
            weight = torch.rand(64, 16, generator=generator) + 0.5
            model[1].weight.copy_(weight * 2.0 ** (-spread * torch.arange(64.0)[:, None]))
        return model.eval()

    even = choose_policy(one(0.0), policies, data, ("calibrate",))
    assert even.best == "e2m5"
    assert even.errors["e2m5"] < even.errors["e3m4"] < even.errors["e4m3"] < even.errors["e5m2"]


def test_nothing_to_choose_from() -> None:
    model, data = trained_digits(), calibration()
    with pytest.raises(RecipeError, match="no policies"):
        choose_policy(model, {}, data)
    dead = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
    torch.nn.init.zeros_(dead[1].weight)
    torch.nn.init.zeros_(dead[1].bias)
    with pytest.raises(ModelError, match="all zero"):
        choose_policy(dead, {"int8": uniform("int8")}, torch.rand(4, 1, 8, 8))
