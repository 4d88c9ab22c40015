# SPDX-License-Identifier: Apache-2.0
"""Registers behind products of UltraScale+: which of them become the DSP block's."""

from __future__ import annotations

from typing import Any

import pytest

from bitwright.build.dsp_registers import take_registers


def _flop(d: int, q: int, **other: str) -> dict[str, Any]:
    links = {"D": [d], "Q": [q], "C": [2], "CE": [3], "R": ["0"]}
    links |= {port: [value] for port, value in other.items()}
    ways = {**dict.fromkeys(("D", "C", "CE", "R"), "input"), "Q": "output"}
    return {"type": "FDRE", "parameters": {}, "port_directions": ways, "connections": links}


def _module(*flops: dict[str, Any], outputs: list[int]) -> dict[str, Any]:
    dsp = {
        "type": "DSP48E2",
        "parameters": {"PREG": f"{0:032b}"},
        "port_directions": {"A": "input", "P": "output"},
        "connections": {"A": [4], "P": [10, 11, 12]},
    }
    cells = {"dsp": dsp} | {f"q{n}": flop for n, flop in enumerate(flops)}
    return {"cells": cells, "ports": {"o": {"direction": "output", "bits": outputs}}}


def test_a_register_behind_a_product_is_the_blocks() -> None:
    module = _module(_flop(10, 20), _flop(11, 21), outputs=[20, 21])
    assert take_registers(module) == 2
    assert list(module["cells"]) == ["dsp"]
    dsp = module["cells"]["dsp"]
    assert dsp["connections"]["P"] == [20, 21, 12]  # nobody reads the last one
    assert (dsp["connections"]["CLK"], dsp["connections"]["CEP"]) == ([2], [3])
    assert int(dsp["parameters"]["PREG"], 2) == 1
    assert take_registers(module) == 0  # it has one now


@pytest.mark.parametrize(
    ("flops", "outputs"),
    [
        ([_flop(10, 20), _flop(11, 21, CE="1")], [20, 21]),  # two enables
        ([_flop(10, 20), _flop(11, 21, R="5")], [20, 21]),  # a reset
        ([_flop(10, 20), _flop(11, 21)], [20, 21, 10]),  # read without the register, too
        ([_flop(10, 20)], [20, 11]),  # a bit without one
    ],
)
def test_what_is_no_register_of_the_block_stays(flops: list[Any], outputs: list[int]) -> None:
    module = _module(*flops, outputs=outputs)
    assert take_registers(module) == 0
    assert len(module["cells"]) == 1 + len(flops)
    assert module["cells"]["dsp"]["connections"]["P"] == [10, 11, 12]
