# SPDX-License-Identifier: Apache-2.0
"""What an optimizer has gathered comes from a checkpoint; how it works does not."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch

from bitwright.train.checkpoint import load_optimizer

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
}


def _trained(kind: str) -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = OPTIMIZERS[kind](model.parameters())
    _step(model, optimizer)
    return model, optimizer


def _step(model: torch.nn.Linear, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(4, 3)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_it_goes_on_as_it_would_have(kind: str) -> None:
    (one, first), (two, _) = _trained(kind), _trained(kind)
    first.param_groups[0]["lr"] = 0.025  # by a schedule
    fresh = OPTIMIZERS[kind](two.parameters())
    load_optimizer(fresh, deepcopy(first.state_dict()))
    _step(one, first)
    _step(two, fresh)
    assert torch.equal(one.weight, two.weight) and torch.equal(one.bias, two.bias)


@pytest.mark.parametrize(
    "settings",
    [
        {"betas": (0.9,)}, {"betas": "x"}, {"maximize": True}, {"differentiable": True},
        {"fused": None, "foreach": True, "capturable": True}, {"eps": float("nan")}, {"lr": "fast"},
    ],
)  # fmt: skip
def test_settings_of_the_file_do_not_count(settings: dict[str, Any]) -> None:
    (one, first), (two, _) = _trained("adam"), _trained("adam")
    state = deepcopy(first.state_dict())
    state["param_groups"][0] |= settings
    fresh = OPTIMIZERS["adam"](two.parameters())
    load_optimizer(fresh, state)
    _step(one, first)
    _step(two, fresh)
    assert torch.equal(one.weight, two.weight)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("value", [torch.zeros(5), torch.zeros(2, 4), "x", [1], None])
def test_what_is_of_another_shape_is_refused(kind: str, value: Any) -> None:
    model, optimizer = _trained(kind)
    state = optimizer.state_dict()
    name = "exp_avg" if kind == "adam" else "momentum_buffer"
    state["state"] = {0: {**state["state"][0], name: value}}
    if value is None:
        state["state"] = {9: state["state"][0]}
    with pytest.raises(ValueError, match=r"is not of its shape|gathered something of parameter 9"):
        load_optimizer(OPTIMIZERS[kind](model.parameters()), state)
