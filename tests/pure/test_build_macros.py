"""Places of block RAMs and multipliers behind a first placement."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from bitwright.base.errors import ToolError
from bitwright.build.macros import better_places, fix_places, read_placement


def cell(kind: str, place: str, nets: dict[str, int], mode: str = "LOGIC") -> dict[str, Any]:
    return {
        "type": kind,
        "parameters": {"MODE": mode},
        "attributes": {"NEXTPNR_BEL": place},
        "connections": {port: [net] for port, net in nets.items()},
    }


def written(path: Path, cells: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"modules": {"top": {"cells": cells}}}))
    return path


def scattered(path: Path, count: int, seed: int) -> Path:
    """Block RAMs in a row, each read by a carry cell that stands right beside another one of the
    places; a clock that reaches all of them; a register on the way to every second one.
    """
    places = [f"X{4 + 9 * n}/Y22/EBR0" for n in range(count)]
    where = random.Random(seed).sample(places, count)
    cells: dict[str, Any] = {}
    for n in range(count):
        cells[f"ram{n}"] = cell("DP16KD", where[n], {"DOA0": n, "CLKA": 999})
        read = n
        if n % 2:
            cells[f"register{n}"] = cell("TRELLIS_FF", "X0/Y0/Q", {"DI": n, "Q": n + 100})
            read += 100
        at = 4 + 9 * n
        cells[f"sum{n}"] = cell("TRELLIS_COMB", f"X{at}/Y23/C", {"A": read}, mode="CCU2")
        cells[f"clocked{n}"] = cell("TRELLIS_FF", f"X{at}/Y90/Q", {"CLK": 999}, mode="CCU2")
    return written(path, cells)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_memory_comes_to_what_reads_it(tmp_path: Path, seed: int) -> None:
    placed = scattered(tmp_path / "placed.json", 12, seed)
    places = better_places(placed, seed=seed)
    assert places == {f"ram{n}": f"X{4 + 9 * n}/Y22/EBR0" for n in range(12)}


def test_what_has_a_place_of_its_own_stays(tmp_path: Path) -> None:
    placed = scattered(tmp_path / "placed.json", 12, 1)
    design = json.loads(placed.read_text())
    design["modules"]["top"]["cells"]["ram3"]["attributes"]["BEL"] = "X22/Y22/EBR0"
    placed.write_text(json.dumps(design))
    assert set(better_places(placed)) == {f"ram{n}" for n in range(12) if n != 3}


def test_same_seed_same_places(tmp_path: Path) -> None:
    placed = scattered(tmp_path / "placed.json", 9, 5)
    assert better_places(placed, seed=3) == better_places(placed, seed=3)


def test_only_like_is_exchanged_with_like(tmp_path: Path) -> None:
    """A multiplier stays where the memory's reader is, since it has nowhere else to go."""
    cells = {
        "ram": cell("DP16KD", "X4/Y22/EBR0", {"DOA0": 1}),
        "other": cell("DP16KD", "X90/Y22/EBR0", {"DOA0": 2}),
        "product": cell("MULT18X18D", "X50/Y34/MULT18_0", {"A0": 1, "P0": 2}),
    }
    places = better_places(written(tmp_path / "placed.json", cells))
    assert places.pop("product") == "X50/Y34/MULT18_0"
    assert sorted(places.values()) == ["X4/Y22/EBR0", "X90/Y22/EBR0"]


def test_wire_is_half_the_boxes(tmp_path: Path) -> None:
    cells = {
        "a": cell("DP16KD", "X4/Y22/EBR0", {"DOA0": 1, "DOA1": 2, "CLKA": 3}),
        "b": cell("TRELLIS_FF", "X10/Y30/Q", {"DI": 1, "CLK": 3}),
        "c": cell("TRELLIS_FF", "X1/Y20/Q", {"DI": 1, "CE": 2}),
        "none": {"type": "X", "parameters": {}, "attributes": {}, "connections": {"A": [1]}},
    }
    placement = read_placement(written(tmp_path / "placed.json", cells))
    assert placement.wire(range(len(placement.nets))) == (10 - 1 + 30 - 20) + (4 - 1 + 22 - 20)


def test_places_are_kept_by_the_netlist(tmp_path: Path) -> None:
    netlist = written(tmp_path / "netlist.json", {"ram": {"type": "DP16KD"}, "x": {"type": "LUT4"}})
    assert fix_places(netlist, {"ram": "X4/Y22/EBR0", "gone": "X9/Y22/EBR0"}) == 1
    cells = json.loads(netlist.read_text())["modules"]["top"]["cells"]
    assert cells["ram"]["attributes"] == {"BEL": "X4/Y22/EBR0"}
    assert "attributes" not in cells["x"]


def test_a_damaged_file_is_a_tool_error(tmp_path: Path) -> None:
    (tmp_path / "placed.json").write_text('{"modules": {"top": {"cells": {"a": {}}}}}')
    with pytest.raises(ToolError, match="cannot be read"):
        better_places(tmp_path / "placed.json")
