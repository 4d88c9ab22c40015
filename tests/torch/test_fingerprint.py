# SPDX-License-Identifier: Apache-2.0
"""What a model computes by and does not show is in its digest, whatever kind of thing it is."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import weakref
from array import array
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitwright.explore.fingerprint import settings_digest
from bitwright.models import build_model


@dataclass
class Setting:
    low: float


class Slotted:
    __slots__ = ("low",)

    def __init__(self, low: float) -> None:
        self.low = low


class Kind(Enum):
    A = 1
    B = 2


class Net(nn.Module):
    def __init__(self, kept: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.kept = kept


def closed(value: Any) -> Any:
    return lambda x: x * value


def with_buffer(value: float) -> Net:
    net = Net(None)
    net.register_buffer("hidden", torch.tensor([value]), persistent=False)
    return net


def of_class(value: float) -> nn.Module:
    class Local(nn.Module):
        factor = value

        def forward(self, x: Any) -> Any:
            return x * self.factor

    return Local()


def closing(function: Any) -> nn.Module:
    class Local(nn.Module):
        def forward(self, x: Any) -> Any:
            return function(x)

    return Local()


def hooked(value: float) -> nn.Module:
    net = Net(None)
    net.register_forward_hook(lambda _, __, out: out * value)
    return net


HELD = [Setting(1), Setting(2)]


def marked(value: float) -> torch.Tensor:
    tensor = torch.ones(1)
    tensor.scale = value
    return tensor


def with_attribute(value: float) -> Any:
    def function(x: Any) -> Any:
        return x * function.factor

    function.factor = value
    return function


def made_object(value: float) -> Any:
    class Local:
        def of(self, x: Any) -> Any:
            return x * value

    return Local()


def made_class(value: float) -> Any:
    class Local:
        factor = value

    return Local


def deep_in_slots(value: float) -> Any:
    class Local(list[Any]):
        __slots__ = ("factor",)

    local = Local()
    local.factor = value
    return local


class Marked(float):
    mark = 0.0


def marked_number(value: float) -> Any:
    number = Marked(1)
    number.mark = value
    return number


def layers(value: float) -> nn.Module:
    inner = nn.Hardtanh(0.0, value)
    return Net([inner])  # in a list: no part of `modules`


PAIRS: dict[str, tuple[Any, Any]] = {
    "number": (lambda: Net(1), lambda: Net(1.0)),
    "function": (lambda: Net(torch.relu), lambda: Net(F.hardtanh)),
    "python function": (lambda: Net(F.relu6), lambda: Net(F.hardtanh)),
    "closure": (lambda: Net(closed(2)), lambda: Net(closed(3))),
    "lambda": (lambda: Net(lambda x: x + 1), lambda: Net(lambda x: x + 2)),
    "partial": (
        lambda: Net(partial(torch.clamp, max=1)),
        lambda: Net(partial(torch.clamp, max=2)),
    ),
    "method": (lambda: Net(Setting(1).__eq__), lambda: Net(Setting(2).__eq__)),
    "array": (lambda: Net(np.arange(3)), lambda: Net(np.arange(3)[::-1])),
    "objects": (
        lambda: Net(np.array([Setting(1)], object)),
        lambda: Net(np.array([Setting(2)], object)),
    ),
    "tensor": (lambda: Net([torch.ones(2)]), lambda: Net([torch.zeros(2)])),
    "bfloat16": (
        lambda: Net([torch.ones(2, dtype=torch.bfloat16)]),
        lambda: Net([torch.zeros(2, dtype=torch.bfloat16)]),
    ),
    "sparse": (
        lambda: Net([torch.eye(2).to_sparse()]),
        lambda: Net([(2 * torch.eye(2)).to_sparse()]),
    ),
    "shape": (lambda: Net([torch.ones(2, 1)]), lambda: Net([torch.ones(1, 2)])),
    "buffer": (lambda: with_buffer(1), lambda: with_buffer(2)),
    "dataclass": (lambda: Net(Setting(1)), lambda: Net(Setting(2))),
    "slots": (lambda: Net(Slotted(1)), lambda: Net(Slotted(2))),
    "set": (lambda: Net({"a", "b", "c"}), lambda: Net({"a", "b"})),
    "dict": (lambda: Net({1: 2, 3: 4}), lambda: Net({1: 4, 3: 2})),
    "enum": (lambda: Net(Kind.A), lambda: Net(Kind.B)),
    "type": (lambda: Net(nn.ReLU), lambda: Net(nn.ReLU6)),
    "module": (lambda: Net(torch), lambda: Net(np)),
    "class attribute": (lambda: of_class(1), lambda: of_class(2)),
    "forward's closure": (lambda: closing(torch.relu), lambda: closing(torch.tanh)),
    "hook": (lambda: hooked(1), lambda: hooked(2)),
    "layers in a list": (lambda: layers(1), lambda: layers(2)),
    "weak reference": (
        lambda: Net(weakref.ref(HELD[0])),
        lambda: Net(weakref.ref(HELD[1])),
    ),
    "attribute of a tensor": (lambda: Net([marked(1)]), lambda: Net([marked(2)])),
    "object of a class made here": (lambda: Net(made_object(1)), lambda: Net(made_object(2))),
    "class made here": (lambda: Net(made_class(1)), lambda: Net(made_class(2))),
    "slots of a list": (lambda: Net(deep_in_slots(1)), lambda: Net(deep_in_slots(2))),
    "attribute of a number": (lambda: Net(marked_number(1)), lambda: Net(marked_number(2))),
    "length of a deque": (lambda: Net(deque([1], 2)), lambda: Net(deque([1], 3))),
    "attribute of a function": (lambda: Net(with_attribute(1)), lambda: Net(with_attribute(2))),
    **{
        f"{type(one).__name__} {one!r:.30}": (
            lambda one=one: Net(one),
            lambda other=other: Net(other),
        )
        for one, other in (
            (np.float32(1), np.float32(9)),
            (np.int64(1), np.int64(9)),
            (np.bool_(0), np.bool_(1)),
            (range(3), range(9)),
            (slice(3), slice(9)),
            (array("i", [1]), array("i", [2])),
            (bytearray(b"a"), bytearray(b"b")),
            (Decimal(1), Decimal(2)),
            (Fraction(1, 2), Fraction(2)),
            (itemgetter(1), itemgetter(9)),
            ((1.0).__mul__, (9.0).__mul__),
            (torch.tensor(1.0).mul, torch.tensor(9.0).mul),
            (torch.Tensor.mul, torch.Tensor.add),
            (torch.channels_last, torch.contiguous_format),
            (np.dtype("i4"), np.dtype("i8")),
            (Counter("aab"), Counter("abb")),
            (defaultdict(int), defaultdict(float)),
        )
    },
    "dtype": (lambda: Net(torch.float16), lambda: Net(torch.float32)),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_what_a_layer_keeps_is_told(kind: str) -> None:
    """A comparison told rows of `relu` as those of `hardtanh`, which an option had chosen."""
    one, other = PAIRS[kind]
    assert settings_digest(one()) == settings_digest(one()) != settings_digest(other())


def test_what_cannot_be_looked_through_is_never_the_same() -> None:
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    for hidden in (deep, memoryview(b"a"), threading.Lock(), (n for n in range(3))):
        assert settings_digest(Net(hidden)) != settings_digest(Net(hidden))


def test_things_that_know_each_other() -> None:
    net = Net({"log": logging.getLogger("a"), "own": []})
    net.kept["own"].append(net.kept)
    net.me = [net]
    assert settings_digest(net) == settings_digest(net)
    net.eval()
    before = settings_digest(net)
    net.train()
    assert settings_digest(net) == before  # whether it trains is no part of what it is


def test_the_digest_is_that_of_another_process(tmp_path: Path) -> None:
    """Results are found again by it."""
    code = (
        "from bitwright.explore.fingerprint import settings_digest\n"
        "from bitwright.models import build_model\n"
        "print(settings_digest(build_model('resnet20', 10, (32, 32, 3))))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    assert ran.stdout.split()[-1] == settings_digest(build_model("resnet20", 10, (32, 32, 3)))
