# SPDX-License-Identifier: Apache-2.0
"""Registers in front of multipliers: which of them become the DSP block's."""

from __future__ import annotations

from typing import Any

import pytest

from bitwright.build.dsp_operands import take_operands

Module = dict[str, Any]
CLOCK, ENABLE = 2, 3


def flop(data: int, out: int, *, enable: int = ENABLE, **parameters: str) -> Module:
    have = {"CEMUX": "CE", "CLKMUX": "CLK", "LSRMUX": "LSR", "REGSET": "RESET", **parameters}
    nets: dict[str, list[int | str]] = {
        "CLK": [CLOCK], "CE": [enable], "LSR": ["0"], "DI": [data], "Q": [out],
    }  # fmt: skip
    ways = {**dict.fromkeys(("CLK", "CE", "LSR", "DI"), "input"), "Q": "output"}
    return {
        "type": "TRELLIS_FF",
        "parameters": have,
        "port_directions": ways,
        "connections": nets,
    }


def multiplier(a: list[int | str], b: list[int | str]) -> Module:
    nets: dict[str, list[int | str]] = {}
    for side, bits in (("A", a), ("B", b)):
        for bit in range(18):
            nets[f"{side}{bit}"] = [bits[bit] if bit < len(bits) else "0"]
    ways = dict.fromkeys(nets, "input")
    return {
        "type": "MULT18X18D",
        "parameters": {},
        "port_directions": ways,
        "connections": nets,
    }


def module(*flops: Module, a: list[int | str], b: list[int | str], outputs: list[int]) -> Module:
    cells = {"mul": multiplier(a, b)} | {f"q{n}": cell for n, cell in enumerate(flops)}
    ports = {"o": {"direction": "output", "bits": outputs}}
    return {"cells": cells, "ports": ports}


def test_registers_of_both_operands_are_the_blocks() -> None:
    """Bits that repeat (a sign) and constants among them."""
    made = module(flop(10, 20), flop(11, 21), flop(12, 22), a=[20, 21, 21], b=["1", 22], outputs=[])
    assert take_operands(made) == 3
    assert list(made["cells"]) == ["mul"]
    block = made["cells"]["mul"]
    nets, have = block["connections"], block["parameters"]
    assert [nets[f"A{bit}"] for bit in range(4)] == [[10], [11], [11], ["0"]]
    assert [nets[f"B{bit}"] for bit in range(3)] == [["1"], [12], ["0"]]
    assert (nets["CLK0"], nets["CE0"], nets["RST0"]) == ([CLOCK], [ENABLE], ["0"])
    assert {have[f"REG_INPUT{side}_{what}"] for side in "AB" for what in ("CLK", "CE")} == {
        "CLK0",
        "CE0",
    }
    assert take_operands(made) == 0  # they are there now


def test_a_register_that_others_read_stays_beside_the_blocks() -> None:
    made = module(flop(10, 20), flop(11, 21), a=[20], b=[21], outputs=[20])
    assert take_operands(made) == 1
    assert set(made["cells"]) == {"mul", "q0"}
    assert made["cells"]["mul"]["connections"]["A0"] == [10]


def test_an_inverted_enable_gets_one_lut() -> None:
    """nextpnr turns over no enable of this block."""
    flops = [flop(10, 20, CEMUX="INV"), flop(11, 21, CEMUX="INV")]
    made = module(*flops, a=[20], b=[21], outputs=[])
    made["cells"]["other"] = multiplier([20], [21])
    assert take_operands(made) == 2
    (lut,) = (cell for cell in made["cells"].values() if cell["type"] == "LUT4")
    assert lut["connections"]["A"] == [ENABLE]
    assert [int(lut["parameters"]["INIT"][::-1][bit]) for bit in (0, 1)] == [1, 0]
    for name in ("mul", "other"):
        assert made["cells"][name]["connections"]["CE0"] == lut["connections"]["Z"]


@pytest.mark.parametrize(
    ("flops", "a", "b"),
    [
        ([flop(10, 20)], [20], [21]),  # one operand comes from elsewhere
        ([flop(10, 20), flop(11, 21, enable=9)], [20], [21]),  # two enables
        ([flop(10, 20), flop(11, 21, REGSET="SET")], [20], [21]),  # begins at 1
        ([flop(10, 20), flop(11, 21, CLKMUX="INV")], [20], [21]),  # the other edge
        ([flop(10, 20), flop(11, 21)], [20, 5], [21]),  # a bit without one
        ([flop(10, 20)], [20], ["1"]),  # nothing to register
    ],
)
def test_what_is_no_register_of_the_block_stays(
    flops: list[Module], a: list[int | str], b: list[int | str]
) -> None:
    made = module(*flops, a=a, b=b, outputs=[])
    before = {name: dict(cell["connections"]) for name, cell in made["cells"].items()}
    assert take_operands(made) == 0
    assert {name: cell["connections"] for name, cell in made["cells"].items()} == before
    assert made["cells"]["mul"]["parameters"] == {}


def test_operands_of_ultrascale_are_taken_one_by_one() -> None:
    def fdre(data: int, out: int, reset: str = "0") -> Module:
        nets = {"C": [CLOCK], "CE": [ENABLE], "D": [data], "Q": [out], "R": [reset]}
        ways = {**dict.fromkeys(("C", "CE", "D", "R"), "input"), "Q": "output"}
        return {"type": "FDRE", "parameters": {}, "port_directions": ways, "connections": nets}

    block = {
        "type": "DSP48E2",
        "parameters": {"AREG": f"{0:032b}", "BREG": f"{0:032b}"},
        "port_directions": {"A": "input", "B": "input"},
        "connections": {"A": [20, 21, 21], "B": [22, "0"]},
    }
    cells = {"dsp": block, "a0": fdre(10, 20), "a1": fdre(11, 21), "b": fdre(12, 22, "4")}
    made: Module = {"cells": cells, "ports": {}}
    assert take_operands(made) == 2 and set(made["cells"]) == {"dsp", "b"}  # that one has a reset
    nets = made["cells"]["dsp"]["connections"]
    assert nets["A"] == [10, 11, 11] and nets["B"] == [22, "0"]
    assert (nets["CLK"], nets["CEA2"], nets["RSTA"]) == ([CLOCK], [ENABLE], ["0"])
    assert int(made["cells"]["dsp"]["parameters"]["AREG"], 2) == 1
    assert int(made["cells"]["dsp"]["parameters"]["BREG"], 2) == 0
