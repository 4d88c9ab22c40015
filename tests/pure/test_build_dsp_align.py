# SPDX-License-Identifier: Apache-2.0
"""Operands of MULT18X18D that are moved up: the products stay, and their signs need no wires."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bitwright.build.dsp_align import align_operands

Module = dict[str, Any]
_A, _B, _P = 100, 200, 300  # nets of the operands' bits and of the product's


def multiplier(width_a: int, width_b: int, signed_a: bool, signed_b: bool) -> Module:
    """As Yosys maps it: operands from the lowest bit on, the rest filled up."""
    nets: dict[str, list[int | str]] = {}
    for side, first, width, sign in (("A", _A, width_a, signed_a), ("B", _B, width_b, signed_b)):
        above: int | str = first + width - 1 if sign else "0"
        for bit in range(18):
            nets[f"{side}{bit}"] = [first + bit if bit < width else above]
        nets[f"SIGNED{side}"] = [str(int(sign))]
        nets[f"SOURCE{side}"] = ["0"]
    ways = dict.fromkeys(nets, "input")
    nets |= {f"P{bit}": [_P + bit] for bit in range(36)}
    ways |= {f"P{bit}": "output" for bit in range(36)}
    ports = {"o": {"direction": "output", "bits": [_P + bit for bit in range(36)]}}
    block = {
        "type": "MULT18X18D",
        "parameters": {},
        "port_directions": ways,
        "connections": nets,
    }
    return {"cells": {"mul": block}, "ports": ports}


def output(module: Module, values: dict[int, int]) -> int:
    """The number at the module's output, by what the block does."""
    nets = module["cells"]["mul"]["connections"]

    def operand(side: str) -> int:
        bits = [nets[f"{side}{bit}"][0] for bit in range(18)]
        number = sum(
            (int(bit) if isinstance(bit, str) else values[bit]) << place
            for place, bit in enumerate(bits)
        )
        return number - (1 << 18 if nets[f"SIGNED{side}"] == ["1"] and number >> 17 else 0)

    product = operand("A") * operand("B")
    made = {nets[f"P{bit}"][0]: product >> bit & 1 for bit in range(36) if f"P{bit}" in nets}
    bits = [made[net] for net in module["ports"]["o"]["bits"]]
    return sum(bit << place for place, bit in enumerate(bits))


@given(st.data(), st.integers(1, 18), st.integers(1, 18), st.booleans(), st.booleans())
def test_the_product_is_the_same(
    data: st.DataObject, width_a: int, width_b: int, signed_a: bool, signed_b: bool
) -> None:
    module = multiplier(width_a, width_b, signed_a, signed_b)
    drawn = {
        first + bit: data.draw(st.integers(0, 1))
        for first, width in ((_A, width_a), (_B, width_b))
        for bit in range(width)
    }
    before = output(module, drawn)
    spared = (18 - width_a) * signed_a + (18 - width_b) * signed_b
    assert align_operands(module) == spared
    assert output(module, drawn) == before
    assert align_operands(module) == 0


def test_each_bit_goes_to_one_input() -> None:
    module = multiplier(9, 8, True, True)
    align_operands(module)
    nets = module["cells"]["mul"]["connections"]
    wires = [nets[f"{side}{bit}"][0] for side in "AB" for bit in range(18)]
    assert sorted(net for net in wires if isinstance(net, int)) == [
        *range(_A, _A + 9), *range(_B, _B + 8),
    ]  # fmt: skip
    assert wires.count("0") == 19


def test_an_operand_of_the_shift_chain_stays() -> None:
    module = multiplier(9, 8, True, True)
    cell = module["cells"]["mul"]
    cell["connections"] |= {f"ROA{bit}": [500 + bit] for bit in range(18)}
    cell["connections"]["SOURCEB"] = ["1"]
    assert align_operands(module) == 0
