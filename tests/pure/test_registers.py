# SPDX-License-Identifier: Apache-2.0
"""Registers behind block RAMs move into them, and only where that changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bitwright.build.registers import absorb_output_registers

CLOCK, ENABLE, READ = 2, 3, 4
Module = dict[str, Any]


def ram(width: int = 18, outputs: dict[str, int] | None = None) -> Module:
    nets = {name: [net] for name, net in (outputs or {}).items()}
    controls = {f"{name}{side}": ["0"] for name in ("RST", "WE") for side in "AB"}
    controls |= {f"CLK{side}": [CLOCK] for side in "AB"} | {f"OCE{side}": ["1"] for side in "AB"}
    return {
        "type": "DP16KD",
        "parameters": {"DATA_WIDTH_B": f"{width:032b}", "REGMODE_A": "NOREG", "REGMODE_B": "NOREG"},
        "connections": {**controls, "CEB": [READ], **nets},
    }


def register(data: int, out: int, enable: int | str = ENABLE, **parameters: str) -> Module:
    have = {"CEMUX": "CE", "CLKMUX": "CLK", "LSRMUX": "LSR", "REGSET": "RESET", **parameters}
    nets = {"CLK": [CLOCK], "CE": [enable], "LSR": ["0"], "DI": [data], "Q": [out]}
    return {"type": "TRELLIS_FF", "parameters": have, "connections": nets}


def absorbed(cells: dict[str, Module], folder: Path) -> tuple[int, dict[str, Module]]:
    """Flip-flops that went, and the cells that are left."""
    inputs = [CLOCK, ENABLE, READ]
    outputs = [c["connections"]["Q"][0] for c in cells.values() if c["type"] == "TRELLIS_FF"]
    ports = {"i": {"direction": "input", "bits": inputs}}
    ports["o"] = {"direction": "output", "bits": outputs}
    path = folder / "netlist.json"
    path.write_text(json.dumps({"modules": {"top": {"cells": cells, "ports": ports}}}))
    gone = absorb_output_registers(path)
    return gone, json.loads(path.read_text())["modules"]["top"]["cells"]


def test_registers_behind_a_read_port_go_into_it(tmp_path: Path) -> None:
    cells = {"ram": ram(outputs={"DOB0": 10, "DOB1": 11, "DOB2": 12})}
    cells |= {"r0": register(10, 20), "r1": register(11, 21)}  # nobody reads DOB2
    gone, left = absorbed(cells, tmp_path)
    assert gone == 2 and set(left) == {"ram"}
    have, nets = left["ram"]["parameters"], left["ram"]["connections"]
    assert (have["REGMODE_A"], have["REGMODE_B"]) == ("NOREG", "OUTREG")
    assert (nets["DOB0"], nets["DOB1"]) == ([20], [21])
    assert (nets["OCEB"], have["OCEBMUX"], nets["CEB"]) == ([ENABLE], "OCEB", [READ])


def test_an_inverted_enable_stays_inverted_and_no_enable_is_a_one(tmp_path: Path) -> None:
    cells = {"ram": ram(outputs={"DOA0": 10, "DOB0": 11})}
    cells |= {"a": register(10, 20, CEMUX="INV"), "b": register(11, 21, "x", CEMUX="1")}
    gone, left = absorbed(cells, tmp_path)
    have, nets = left["ram"]["parameters"], left["ram"]["connections"]
    assert gone == 2
    assert (nets["OCEA"], have["OCEAMUX"]) == ([ENABLE], "INV")
    assert (nets["OCEB"], have["OCEBMUX"]) == (["1"], "OCEB")


def test_both_halves_of_a_wide_port_are_registered_together(tmp_path: Path) -> None:
    cells = {"ram": ram(36, {"DOA0": 10, "DOB0": 11})}
    both = cells | {"a": register(10, 20), "b": register(11, 21)}
    gone, left = absorbed(both, tmp_path)
    assert gone == 2
    assert {left["ram"]["parameters"][f"REGMODE_{side}"] for side in "AB"} == {"OUTREG"}
    assert {left["ram"]["connections"][f"OCE{side}"][0] for side in "AB"} == {ENABLE}
    gone, _ = absorbed(cells | {"a": register(10, 20), "b": register(11, 21, 99)}, tmp_path)
    assert gone == 0


@pytest.mark.parametrize(
    "other",
    [
        {"connections": {"LSR": [5]}},
        {"connections": {"CLK": [9]}},
        {"connections": {"CE": [9]}},
        {"connections": {"DI": [10]}},  # two registers behind one bit, none behind the other
        {"parameters": {"CLKMUX": "INV"}},
        {"parameters": {"CEMUX": "INV"}},
        {"parameters": {"REGSET": "SET"}},
        {"parameters": {"LSRMUX": "INV"}},
        {"type": "LUT4"},
    ],
)
def test_a_port_with_another_reader_keeps_its_registers(
    other: dict[str, Any], tmp_path: Path
) -> None:
    odd = register(11, 21)
    for part, values in other.items():
        odd[part] = values if isinstance(values, str) else {**odd[part], **values}
    cells = {"ram": ram(outputs={"DOB0": 10, "DOB1": 11}), "r0": register(10, 20), "r1": odd}
    gone, left = absorbed(cells, tmp_path)
    assert gone == 0 and left == cells


def test_a_bit_that_is_read_twice_or_reset_keeps_its_registers(tmp_path: Path) -> None:
    cells = {"ram": ram(outputs={"DOB0": 10}), "r": register(10, 20)}
    look = {"type": "LUT4", "parameters": {}, "connections": {"A": [10]}}
    assert absorbed(cells | {"look": look}, tmp_path)[0] == 0
    cells["ram"]["connections"]["RSTB"] = [7]
    assert absorbed(cells, tmp_path)[0] == 0
