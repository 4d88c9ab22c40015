# SPDX-License-Identifier: Apache-2.0
"""Hardware blocks of the user's own: what is refused, and how a recipe names them."""

from __future__ import annotations

import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from tests.hw_networks import Net

from bitwright.base.errors import GraphError, ModelError, RecipeError
from bitwright.hw import Folding, OwnBlock, blocks_of, map_graph, own, register_block
from bitwright.hw.blocks import BLOCKS, Threshold
from bitwright.hw.cost import block_resources
from bitwright.hw.dialect import HARDWARE, PE
from bitwright.hw.own import own_sources, register_named, taken
from bitwright.hw.tokens import simulate_tokens
from bitwright.pipeline.steps import energy
from bitwright.pipeline.steps.facts import _own_hardware
from bitwright.rtl import module_files

ROOT = Path(__file__).resolve().parents[2]
OWN = OwnBlock(replace(HARDWARE.ops["threshold"], name="nothing"), Threshold, lambda *_: None)


def test_a_block_needs_a_name_of_its_own_and_pe(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="'lookup' is a block's of the package"):
        register_block(replace(OWN, spec=HARDWARE.ops["lookup"]))
    with pytest.raises(GraphError, match="no attribute pe"):
        register_block(replace(OWN, spec=replace(OWN.spec, attrs={})))
    for spec in (replace(OWN.spec, arity=3), replace(OWN.spec, n_outputs=2)):
        with pytest.raises(GraphError, match="one input or two and one output"):
            register_block(replace(OWN, spec=spec))
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


def test_take_keeps_inputs_and_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Net((8,), "uint2", "int3").dense(4).finish()
    node = graph.nodes[0]
    wrong = replace(OWN, take=lambda node, _: replace(node, inputs=("other",)))
    monkeypatch.setattr("bitwright.hw.own._OWN", {"nothing": wrong})
    with pytest.raises(GraphError, match="`take` of block nothing changed inputs or outputs"):
        taken(node, (graph.types[node.inputs[0]],))


def test_what_is_in_no_fitted_line_costs_its_memory() -> None:
    hardware = map_graph(Net((8,), "uint2", "int3").dense(4).threshold().finish())
    block = next(b for b in blocks_of(hardware).values() if isinstance(b, Threshold))
    counted = block.memory_cost("ecp5")
    with (
        patch.object(Threshold, "features", lambda *_: {}),
        patch.object(Threshold, "cost_kind", "nothing"),
    ):
        assert counted.lut > 0
        assert block_resources(block, "ecp5").lut == counted.lut


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_pipeline_too_deep_for_the_simulation_of_beats() -> None:
    hardware = map_graph(Net((8,), "uint2", "int3").dense(4).threshold().finish())
    with patch.object(Threshold, "pipeline", 65):
        assert simulate_tokens(hardware).finished
    with patch.object(Threshold, "pipeline", 66), pytest.raises(GraphError, match="66 cycles"):
        simulate_tokens(hardware)


def test_a_change_of_a_blocks_source_is_a_change_of_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "elsewhere" / "nothing.sv"
    source.parent.mkdir()
    source.write_text("module nothing (); endmodule\n")
    (tmp_path / "mine_facts.py").write_text(
        "from dataclasses import replace\nfrom pathlib import Path\n"
        "from tests.pure.test_hw_own import OWN\n"
        f"def block(): return replace(OWN, sources=(Path({str(source)!r}),))\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    hardware = SimpleNamespace(blocks=("mine_facts:block",))
    work: Any = SimpleNamespace(
        module_folders=(tmp_path,), recipe=SimpleNamespace(hardware=hardware)
    )
    before = _own_hardware(work)
    assert _own_hardware(work) == before
    source.write_text("module nothing (input logic clk_i); endmodule\n")
    assert _own_hardware(work) != before


def test_a_module_may_not_take_the_name_of_one_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "matvec.sv").write_text("module matvec (); endmodule\n")
    monkeypatch.setattr("bitwright.rtl.own_sources", lambda: {"matvec": tmp_path / "matvec.sv"})
    with pytest.raises(GraphError, match="the library has a module 'matvec'"):
        module_files()
    assert own_sources() == {}
