# SPDX-License-Identifier: Apache-2.0
"""Copies of registers that steer many block RAMs."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bitwright.build.spread import MOST, copy_registers

CLOCK, ENABLE = 1, 2


def register(data: int, out: int) -> dict[str, Any]:
    return {
        "type": "TRELLIS_FF",
        "parameters": {"GSR": "DISABLED"},
        "port_directions": {"CLK": "input", "CE": "input", "DI": "input", "Q": "output"},
        "connections": {"CLK": [CLOCK], "CE": [ENABLE], "DI": [data], "Q": [out]},
    }


def ram(address: list[int], out: int, data: int) -> dict[str, Any]:
    ports = {f"ADA{bit}": [net] for bit, net in enumerate(address)}
    directions = dict.fromkeys((*ports, "CLKA", "DIA0"), "input") | {"DOA0": "output"}
    return {
        "type": "DP16KD",
        "parameters": {},
        "port_directions": directions,
        "connections": {**ports, "CLKA": [CLOCK], "DIA0": [data], "DOA0": [out]},
    }


def design(rams: int, bits: int, seed: int) -> dict[str, Any]:
    """Memories with one address of some bits; its first bit goes into a LUT, too."""
    cells: dict[str, Any] = {f"a{b}": register(10 + b, 50 + b) for b in range(bits)}
    order = list(range(rams))
    random.Random(seed).shuffle(order)
    for n in order:
        cells[f"m.{n}.0"] = ram([50 + b for b in range(bits)], 1000 + n, 100)
    cells["lut"] = {
        "type": "LUT4",
        "parameters": {},
        "port_directions": {"A": "input", "Z": "output"},
        "connections": {"A": [50], "Z": [3]},
    }
    return {"cells": cells, "netnames": {"far": {"bits": [5000, "0"]}}}


def sources(module: dict[str, Any]) -> dict[int, Any]:
    """Net -> what drives it, its own name apart."""
    return {
        cell["connections"]["Q"][0]: {k: v for k, v in cell["connections"].items() if k != "Q"}
        for cell in module["cells"].values()
        if cell["type"] == "TRELLIS_FF"
    }


@given(rams=st.integers(1, 90), bits=st.integers(1, 3), seed=st.integers(0, 9))
def test_every_pin_has_the_same_register_and_none_has_many(rams: int, bits: int, seed: int) -> None:
    module, before = design(rams, bits, seed), design(rams, bits, seed)
    made = copy_registers(module)
    assert made == bits * (-(-rams // MOST) - 1)
    found, was = sources(module), sources(before)
    load = defaultdict(set)
    for name, cell in before["cells"].items():
        for port, (net,) in cell["connections"].items():
            (now,) = module["cells"][name]["connections"][port]
            if cell["type"] == "DP16KD" and port.startswith("ADA"):
                assert found[now] == was[net]
                load[now].add(name)
            else:
                assert now == net
    assert max(map(len, load.values())) <= MOST
    assert not {5000, 3, 100} & (set(found) - set(was))  # nets of their own
    # The bits of one address are spread alike, and neighbours stay together.
    groups = {frozenset(names) for names in load.values()}
    assert len(groups) == -(-rams // MOST)
    for group in groups:
        numbers = sorted(int(name.split(".")[1]) for name in group)
        assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_what_comes_from_no_register_stays() -> None:
    module = design(40, 1, 0)
    del module["cells"]["a0"]
    assert copy_registers(module) == 0


def test_a_name_that_is_taken_stays() -> None:
    module = design(40, 1, 0)
    theirs = module["cells"]["a0_copy0"] = register(7, 8)
    assert copy_registers(module) == 2
    assert module["cells"]["a0_copy0"] is theirs and len(sources(module)) == 4


def test_what_stands_between_two_clocks_has_no_copy() -> None:
    """Two of its copies could differ for a clock."""
    module = design(40, 1, 0)
    module["netnames"]["sync"] = {"bits": [50], "attributes": {"dont_replicate": "1"}}
    assert copy_registers(module) == 0
