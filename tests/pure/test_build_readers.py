# SPDX-License-Identifier: Apache-2.0
"""Copies of registers that steer a block, for the other blocks that read them."""

from __future__ import annotations

from typing import Any

from bitwright.build.readers import MANY, copy_for_readers

CLOCK, ENABLE = 1, 2


def register(data: int, out: int, enable: int = ENABLE) -> dict[str, Any]:
    return {
        "type": "TRELLIS_FF",
        "parameters": {"GSR": "DISABLED"},
        "port_directions": {"CLK": "input", "CE": "input", "DI": "input", "Q": "output"},
        "connections": {"CLK": [CLOCK], "CE": [enable], "DI": [data], "Q": [out]},
    }


def lut(out: int, *inputs: int) -> dict[str, Any]:
    ports = dict(zip("ABCD", ([net] for net in inputs), strict=False))
    return {
        "type": "LUT4",
        "parameters": {},
        "port_directions": dict.fromkeys(ports, "input") | {"Z": "output"},
        "connections": {**ports, "Z": [out]},
    }


def design(own: int) -> dict[str, Any]:
    """A register that steers some of its own block, and that two blocks and the top read."""
    cells = {"i_unit.moves": register(10, 50)}
    for n in range(own):
        cells[f"i_unit.data_{n}"] = register(100 + n, 2000 + n, enable=50)
    cells["i_front.a"] = lut(70, 50, 71)
    cells["i_front.b"] = lut(72, 73, 50)
    cells["i_behind.i_skid.c"] = lut(74, 50, 50)
    cells["between"] = lut(75, 50)
    return {"cells": cells, "netnames": {"far": {"bits": [5000, "0"]}}}


def test_every_other_block_reads_a_copy() -> None:
    module = design(MANY)
    before = design(MANY)["cells"]
    assert copy_for_readers(module) == 2
    cells = module["cells"]
    came = {name: cell for name, cell in cells.items() if name not in before}
    home = before["i_unit.moves"]
    nets = {}
    for name, cell in came.items():
        assert cell["type"] == "TRELLIS_FF" and cell["parameters"] == home["parameters"]
        (nets[name.rsplit("_for_")[-1]],) = cell["connections"]["Q"]
        assert {**cell["connections"], "Q": [50]} == home["connections"]
    assert set(nets) == {"i_front", "i_behind"} and len(set(nets.values())) == 2
    assert min(nets.values()) > 5000  # nets of their own
    for name, cell in before.items():
        block = name.split(".")[0]
        for port, bits in cell["connections"].items():
            moved = block in nets and bits == [50]
            assert cells[name]["connections"][port] == ([nets[block]] if moved else bits)


def test_what_few_read_stays() -> None:
    module = design(MANY - 10)
    assert copy_for_readers(module) == 0
    assert module == design(MANY - 10)


def test_registers_between_two_clocks_have_no_copies() -> None:
    module = design(MANY)
    module["netnames"]["sync"] = {"bits": [50], "attributes": {"dont_replicate": "1"}}
    assert copy_for_readers(module) == 0


def test_resets_have_no_copies() -> None:
    module = {"cells": {"i_reset.ok": register(10, 50)}, "netnames": {}}
    for n in range(2 * MANY):
        cell = register(100 + n, 2000 + n)
        cell["connections"]["LSR"], cell["port_directions"]["LSR"] = [50], "input"
        module["cells"][f"i_block{n % 4}.data_{n}"] = cell
    assert copy_for_readers(module) == 0


def test_a_register_outside_of_the_blocks_and_a_name_that_is_taken() -> None:
    module = design(MANY)
    cells = module["cells"]
    cells["moves"] = cells.pop("i_unit.moves")
    cells["moves_for_i_front"] = lut(83, 84)
    assert copy_for_readers(module) == 3
    assert {"moves_for_i_front_", "moves_for_i_behind", "moves_for_i_unit"} <= set(cells)
    assert cells["moves_for_i_front"] == lut(83, 84)
    assert cells["between"]["connections"]["A"] == [50]  # no block, so the register itself
