# SPDX-License-Identifier: Apache-2.0
"""Carry chains packed: the same function in fewer look-up tables."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bitwright.build.carries import pack_carries
from bitwright.build.packing import added_luts
from bitwright.build.resources import count_resources

ADD = "1001011010101010"  # what Yosys makes of an adder's bit; C = 1 inverts B
_IN = {**dict.fromkeys("ABCD", "input"), "Z": "output"}
_CARRY = {p + n: "input" for p in "ABCD" for n in "01"}
_CARRY |= {"CIN": "input", "COUT": "output", "S0": "output", "S1": "output"}


class Netlist:
    """A flat module under construction: inputs, LUTs, adders, outputs."""

    def __init__(self, inputs: int) -> None:
        self.inputs = list(range(2, 2 + inputs))
        self.next, self.cells = 2 + inputs, {}

    def net(self) -> int:
        self.next += 1
        return self.next - 1

    def lut(self, inputs: list[int | str], init: int) -> int:
        out = self.net()
        padded = [*inputs, *["0"] * (4 - len(inputs))]
        links = {p: [b] for p, b in zip("ABCD", padded, strict=True)} | {"Z": [out]}
        self._add("LUT4", {"INIT": f"{init:016b}"}, _IN, links)
        return out

    def adder(
        self, first: list[Any], second: list[Any], come: Any, *, minus: bool, carry: bool
    ) -> list[int]:
        """The nets of the sum of two numbers, and with `carry` that of the carry out."""
        sums: list[int] = []
        width = len(first)
        for place in range(0, width, 2):
            out, links = self.net(), {}
            for number in range(2):
                here = place + number
                given = (first[here], second[here]) if here < width else ("0", "0")
                bits = (*given, "1" if minus else "0", "1")
                links |= {f"{p}{number}": [b] for p, b in zip("ABCD", bits, strict=True)}
                links[f"S{number}"] = [self.net()]
                if here < width:
                    sums.append(links[f"S{number}"][0])
            parameters = {"INIT0": ADD, "INIT1": ADD, "INJECT1_0": "NO", "INJECT1_1": "NO"}
            self._add("CCU2C", parameters, _CARRY, links | {"CIN": [come], "COUT": [out]})
            come = out
        return [*sums, come] if carry and width % 2 == 0 else sums

    def _add(self, kind: str, parameters: Any, ways: Any, links: Any) -> None:
        # Yosys numbers its own: a name with a number behind it is a neighbour's, c, c_1, c_1_1, ..
        self.cells["c" + "_1" * len(self.cells)] = {
            "type": kind, "parameters": parameters, "attributes": {}, "port_directions": ways,
            "connections": links, "hide_name": 0,
        }  # fmt: skip

    def module(self, outputs: list[Any]) -> dict[str, Any]:
        ports = {"i": {"direction": "input", "bits": self.inputs}}
        ports["o"] = {"direction": "output", "bits": outputs}
        return {"attributes": {"top": "1"}, "ports": ports, "cells": self.cells}


def run(module: dict[str, Any]) -> Iterator[tuple[int, ...]]:
    """The outputs for all inputs, by the cells' models (lattice/ccu2c_sim.vh of Yosys)."""
    inputs = module["ports"]["i"]["bits"]
    for values in product((0, 1), repeat=len(inputs)):
        known: dict[Any, int] = {"0": 0, "1": 1, "x": 0, **dict(zip(inputs, values, strict=True))}
        waiting = list(module["cells"].values())
        while waiting:
            left = [cell for cell in waiting if not _settle(cell, known)]
            assert len(left) < len(waiting)
            waiting = left
        yield tuple(known[bit] for bit in module["ports"]["o"]["bits"])


def _settle(cell: dict[str, Any], known: dict[Any, int]) -> bool:
    links, ways = cell["connections"], cell["port_directions"]
    given = {p: known.get(b[0]) for p, b in links.items() if ways[p] == "input"}
    if None in given.values():
        return False
    bit = {p: v or 0 for p, v in given.items()}
    if cell["type"] == "LUT4":
        place = sum(bit[p] << k for k, p in enumerate("ABCD"))
        known[links["Z"][0]] = int(cell["parameters"]["INIT"], 2) >> place & 1
        return True
    carry = bit["CIN"]
    for n in "01":
        init = int(cell["parameters"]["INIT" + n], 2)
        whole = init >> sum(bit[p + n] << k for k, p in enumerate("ABCD")) & 1
        low = init >> (bit["A" + n] | bit["B" + n] << 1) & 1
        if links["S" + n][0] != "x":
            known[links["S" + n][0]] = whole ^ carry
        carry = carry if whole else low
    if links["COUT"][0] != "x":
        known[links["COUT"][0]] = carry
    return True


def luts(module: dict[str, Any]) -> float:
    counted = count_resources("ecp5", _types(module)).lut
    return counted + sum(n for name, n in added_luts(module, "ecp5").items() if name)


def _types(module: dict[str, Any]) -> dict[str, int]:
    kinds = [cell["type"] for cell in module["cells"].values()]
    return {kind: kinds.count(kind) for kind in kinds}


def test_a_digit_of_a_product_is_a_half_a_bit() -> None:
    """a*w0 + 2*a*w1 of a 4-bit a: six bits of a sum, no LUT in front of them."""
    net = Netlist(6)
    act, weight = net.inputs[:4], net.inputs[4:]
    low: list[Any] = [net.lut([bit, weight[0]], 0x8888) for bit in act]
    high: list[Any] = [net.lut([bit, weight[1]], 0x8888) for bit in act]
    total = net.adder([*low, "0", "0"], ["0", *high, "0"], "0", minus=False, carry=False)
    module = net.module(total)
    before, wanted = luts(module), list(run(module))
    assert before == 8 + 6 + 2 + 2  # nextpnr leads in the 0, and out what nobody reads
    pack_carries(module)
    assert luts(module) <= 8
    assert list(run(module)) == wanted


def test_a_comparison_has_its_carry_as_a_sum() -> None:
    net = Netlist(8)
    first, second = net.inputs[:4], net.inputs[4:]
    carry = net.adder([*first], [*second], "1", minus=True, carry=True)[-1]
    module = net.module([carry])
    assert luts(module) == 4 + 2 + 2
    wanted = list(run(module))
    pack_carries(module)
    assert luts(module) == 6  # bit 0 makes a carry, three bits, the carry as a sum
    assert list(run(module)) == wanted
    assert [w[0] for w in wanted] == [
        int(sum(v << k for k, v in enumerate(a)) >= sum(v << k for k, v in enumerate(b)))
        for a, b in ((v[:4], v[4:]) for v in product((0, 1), repeat=8))
    ]


@st.composite
def netlists(draw: st.DrawFn) -> dict[str, Any]:
    """Layers of LUTs and adders over a few inputs; sums and carries partly read."""
    net = Netlist(draw(st.integers(2, 6)))
    nets: list[Any] = [*net.inputs, "0", "1"]
    pick = st.deferred(lambda: st.sampled_from(nets))
    for _ in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(0, 6))):
            size = draw(st.integers(1, 4))
            init = draw(st.integers(0, (1 << (1 << size)) - 1))
            copies = sum(init << (k << size) for k in range(16 >> size))
            nets.append(net.lut([draw(pick) for _ in range(size)], copies & 0xFFFF))
        width = draw(st.integers(1, 5))
        first, second = ([draw(pick) for _ in range(width)] for _ in range(2))
        nets += net.adder(
            first, second, draw(pick), minus=draw(st.booleans()), carry=draw(st.booleans())
        )
    wires = [bit for bit in nets if isinstance(bit, int)]
    return net.module(draw(st.lists(st.sampled_from(wires), min_size=1, max_size=6)))


@given(netlists())
def test_the_function_stays_and_nothing_grows(module: dict[str, Any]) -> None:
    wanted, before = list(run(module)), luts(module)
    original = copy.deepcopy(module)
    pack_carries(module)
    assert list(run(module)) == wanted
    assert luts(module) <= before
    again = copy.deepcopy(module)
    pack_carries(again)
    assert luts(again) == luts(module)
    assert original["ports"] == module["ports"]


def test_a_chain_that_grows_takes_no_other_cells_name() -> None:
    """Two bits with a carry in and out become two cells; the next one has a number for a name."""
    net = Netlist(6)
    first, second, (low, high) = net.inputs[:2], net.inputs[2:4], net.inputs[4:]
    total = net.adder([*first], [*second], low, minus=False, carry=True)
    other = net.adder([*second], [*first], high, minus=True, carry=True)
    module = net.module([*total, *other])
    wanted = list(run(module))
    pack_carries(module)
    assert list(run(module)) == wanted
