# SPDX-License-Identifier: Apache-2.0
"""Hardware blocks of the user's own: what is refused, and how a recipe names them."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bitwright.base.errors import GraphError, ModelError, RecipeError
from bitwright.hw import Folding, OwnBlock, map_graph, own, register_block
from bitwright.hw.blocks import BLOCKS, Threshold
from bitwright.hw.dialect import HARDWARE, PE
from bitwright.hw.own import own_sources, register_named
from bitwright.pipeline.steps import energy
from bitwright.rtl import module_files

ROOT = Path(__file__).resolve().parents[2]
OWN = OwnBlock(replace(HARDWARE.ops["threshold"], name="nothing"), Threshold, lambda *_: None)


def test_a_block_needs_a_name_of_its_own_and_pe(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="'lookup' is a block's of the package"):
        register_block(replace(OWN, spec=HARDWARE.ops["lookup"]))
    with pytest.raises(GraphError, match="no attribute pe"):
        register_block(replace(OWN, spec=replace(OWN.spec, attrs={})))
    with pytest.raises(GraphError, match="there is no file"):
        register_block(replace(OWN, sources=(tmp_path / "none.sv",)))
    assert "nothing" not in HARDWARE.ops and PE.kind == "int"


def test_energy_counts_what_every_block_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of the user's own is an addition an element; none of the package counts as such."""
    assert {*energy._FREE, *energy._COUNTERS} >= {*BLOCKS} - {*own._OWN}
    example = runpy.run_path(str(ROOT / "examples" / "13_own_hardware_block.py"))
    monkeypatch.setattr(own, "_OWN", {})
    monkeypatch.setattr(own, "BLOCKS", BLOCKS | {})
    monkeypatch.setitem(BLOCKS, "absolute", example["Absolute"])
    before = HARDWARE.ops
    try:
        register_block(example["absolute_block"]())
        graph = map_graph(example["network"](), Folding({}))
        work = energy.work_of(graph)
    finally:
        object.__setattr__(HARDWARE, "ops", before)
    assert energy.CompareWork(6 * 6 * 4, 4) in work.compares


def test_a_recipe_names_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_hw.py").write_text(
        "from tests.pure.test_hw_own import OWN\ndef right(): return OWN\ndef wrong(): return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(RecipeError, match=r"gives int, not a bitwright\.hw\.OwnBlock"):
        register_named(["mine_hw:wrong"])
    with pytest.raises(ModelError, match="has no function or class 'none'"):
        register_named(["mine_hw:none"])


def test_a_module_may_not_take_the_name_of_one_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "matvec.sv").write_text("module matvec (); endmodule\n")
    monkeypatch.setattr("bitwright.rtl.own_sources", lambda: {"matvec": tmp_path / "matvec.sv"})
    with pytest.raises(GraphError, match="the library has a module 'matvec'"):
        module_files()
    assert own_sources() == {}
