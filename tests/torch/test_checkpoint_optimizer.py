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
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "asgd": lambda p: torch.optim.ASGD(p, 0.1),
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
    first.param_groups[0]["lr"] = 2  # by a schedule
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
        {"lr": -3.0}, {"lr": 1e300}, {"lr": True}, {"eps": -1.0, "weight_decay": 5.0},
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


_WRONG: dict[str, Any] = {
    "one number": torch.tensor(1.0), "longer": torch.zeros(5), "wider": torch.zeros(2, 4),
    "whole numbers": torch.zeros(2, 3, dtype=torch.int64), "sparse": torch.zeros(2, 3).to_sparse(),
    "a word": "x", "a list": [1], "a number": 1.0, "nothing": None,
}  # fmt: skip


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("value", _WRONG.values(), ids=_WRONG)
def test_what_is_of_another_shape_is_refused(kind: str, value: Any) -> None:
    """Fused kernels write as many numbers as the parameter has, wherever they lie."""
    model, optimizer = _trained(kind)
    state = deepcopy(optimizer.state_dict())
    names = {"adam": ("exp_avg", "exp_avg_sq"), "asgd": ("ax",)}.get(kind, ("momentum_buffer",))
    for name in names:
        changed = {**state, "state": {0: {**state["state"][0], name: value}}}
        with pytest.raises(ValueError, match="is not of its shape"):
            load_optimizer(OPTIMIZERS[kind](model.parameters()), changed)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_all_that_it_gathers_is_there_and_nothing_else(kind: str) -> None:
    model, optimizer = _trained(kind)
    state = deepcopy(optimizer.state_dict())
    whole = state["state"][0]
    for name, value in whole.items():
        less = {key: each for key, each in whole.items() if key != name}
        if less:  # else it has gathered nothing yet, as of a parameter without a gradient
            with pytest.raises(ValueError, match="of parameter 0, not"):
                load_optimizer(OPTIMIZERS[kind](model.parameters()), {**state, "state": {0: less}})
        if value.shape == ():
            for number in (-1.0, float("nan"), float("inf")):
                odd = {**whole, name: torch.tensor(number)}
                with pytest.raises(ValueError, match=f"{name} of parameter 0 is"):
                    load_optimizer(
                        OPTIMIZERS[kind](model.parameters()), {**state, "state": {0: odd}}
                    )
            wide = {**whole, name: torch.zeros(2, 3)}
            with pytest.raises(ValueError, match="is not of its shape"):
                load_optimizer(OPTIMIZERS[kind](model.parameters()), {**state, "state": {0: wide}})
    for found in ({**whole, "more": torch.zeros(2, 3)}, {"x": 1}):
        with pytest.raises(ValueError, match="of parameter 0, not"):
            load_optimizer(OPTIMIZERS[kind](model.parameters()), {**state, "state": {0: found}})
    fewer = [{**state["param_groups"][0], "params": [0]}]
    with pytest.raises(ValueError, match="1 parameters, not 2"):
        load_optimizer(OPTIMIZERS[kind](model.parameters()), {"state": {}, "param_groups": fewer})
    with pytest.raises(ValueError, match="something of parameter 9"):
        load_optimizer(OPTIMIZERS[kind](model.parameters()), {**state, "state": {9: whole}})


def test_what_was_gathered_lies_as_the_optimizer_would_lay_it() -> None:
    """A view of other strides, or into a larger tensor, becomes a tensor of its own."""
    model, optimizer = _trained("adam")
    state = deepcopy(optimizer.state_dict())
    turned = torch.arange(6.0).reshape(3, 2).T
    state["state"][0]["exp_avg"] = turned
    fresh = OPTIMIZERS["adam"](model.parameters())
    load_optimizer(fresh, state)
    found = fresh.state[model.weight]["exp_avg"]
    assert torch.equal(found, turned) and found.stride() == model.weight.stride()
    assert found.untyped_storage().nbytes() == 4 * 6
