# SPDX-License-Identifier: Apache-2.0
"""The cost model keeps its stated error on the committed measurements, and adds up."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from benchmarks.estimates import ENDS_OF, GROUPS, MEASURED, predicted, samples
from hypothesis import given
from tests.hw_networks import digits_like, mapped_networks

from bitwright.base.errors import TargetError
from bitwright.base.figures import Resources
from bitwright.hw import Folding, NodeFolding, block_of, blocks_of, graph_resources, map_graph
from bitwright.hw.cost import (
    block_resources,
    coefficients,
    end_resources,
    end_terms,
    lone_resources,
)
from bitwright.hw.memory import FAMILIES
from bitwright.ir import Graph


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(MEASURED.read_text())
    return table


def _pairs(family: str, group: str) -> list[tuple[Resources, dict[str, float]]]:
    """(predicted, measured) of every sample."""
    graph = samples([group])
    rows = _table().get(family, {}).get(group, {}).get("samples", {})
    measured = [n for n in graph if n.name in rows]
    return [(lone_resources(block_of(graph, n), family), rows[n.name]) for n in measured]


def _measured(family: str) -> list[str]:
    return [group for group in GROUPS if group in _table().get(family, {})]


def test_every_sample_is_measured_on_ecp5() -> None:
    for group in GROUPS:
        assert len(_pairs("ecp5", group)) == len(samples([group]).nodes)


@pytest.mark.parametrize(
    ("family", "group"), [(family, group) for family in FAMILIES for group in _measured(family)]
)
def test_committed_coefficients_have_the_stated_error(family: str, group: str) -> None:
    stated = coefficients()["families"][family]["blocks"][group]
    for kind in ("lut", "ff"):
        errors = [
            abs(getattr(model, kind) - real[kind]) / max(real[kind], 20.0)
            for model, real in _pairs(family, group)
        ]
        assert np.mean(errors) == pytest.approx(stated[f"{kind}_error"]["mean"], abs=2e-3)
        assert max(errors) == pytest.approx(stated[f"{kind}_error"]["max"], abs=2e-3)


def test_axi_ends_cost_what_was_measured() -> None:
    """Samples of the ends stand around the width converters; theirs is the stated error, too."""
    graph = samples([ENDS_OF])
    table = coefficients()["families"]["ecp5"]
    saved = table["link"]["lut"]
    for kind, side in (("axis_in", "s"), ("axis_out", "m")):
        rows = _table()["ecp5"][kind]["samples"]
        assert len(rows) == len(graph.nodes)
        errors, line = [], table["blocks"][kind]["lut"]
        for number, node in enumerate(graph):
            block, real = block_of(graph, node), rows[f"{side}_axis_{number}"]
            port = block.inputs[0] if kind == "axis_in" else block.outputs[0]
            said, alone = end_resources(port, "ecp5", kind), predicted(line, end_terms(port))
            assert said.ff == pytest.approx(real["ff"], abs=0.5)
            joined = alone - saved if kind == "axis_out" else alone
            assert said.lut == pytest.approx(max(0.0, joined))
            errors.append(abs(alone - real["lut"]) / max(real["lut"], 20.0))
        stated = table["blocks"][kind]["lut_error"]
        assert np.mean(errors) == pytest.approx(stated["mean"], abs=2e-3)


def test_a_stream_between_blocks_saves_what_is_said() -> None:
    """Each input of a block in a design is one; a block alone has none."""
    hardware = map_graph(digits_like())
    saved = coefficients()["families"]["ecp5"]["link"]["lut"]
    assert saved > 0
    for block in blocks_of(hardware).values():
        if block.node.op != "flatten":
            alone, joined = (f(block, "ecp5").lut for f in (lone_resources, block_resources))
            assert joined == pytest.approx(max(0.0, alone - saved * len(block.inputs)))


@pytest.mark.parametrize("family", [family for family in FAMILIES if _measured(family)])
def test_error_bounds(family: str) -> None:
    """All LUTs together within 10 %; matrix units within 15 % on average, each within 40 %."""
    sums = np.zeros(2)
    for group in GROUPS:
        for model, real in _pairs(family, group):
            sums += model.lut, real["lut"]
    assert sums[0] == pytest.approx(sums[1], rel=0.10)
    bounds = coefficients()["families"][family]["blocks"]["matvec"]["lut_error"]
    assert bounds["mean"] <= 0.15 and bounds["max"] <= 0.40


def test_block_ram_and_multipliers_are_exact_on_ecp5() -> None:
    for group in ("matvec", "window", "fifo", "requant"):
        for model, real in _pairs("ecp5", group):
            assert (model.bram, model.dsp) == (real["bram"], real["dsp"])


def test_provenance_is_written_down() -> None:
    table = coefficients()
    assert table["command"] and table["measurements"]
    for family in FAMILIES:
        assert all("yosys" in tool.lower() for tool in table["families"][family]["tool"])
        assert table["families"][family]["date"]


@given(mapped_networks())
def test_a_design_costs_the_sum_of_its_blocks(case: tuple[Graph, Folding]) -> None:
    hardware = map_graph(*case)
    for family in FAMILIES:
        total = graph_resources(hardware, family)
        parts = [block_resources(b, family) for b in blocks_of(hardware).values()]
        assert total.lut > sum(p.lut for p in parts) > 0
        assert total.bram == sum(p.bram for p in parts)
        assert total.dsp == sum(p.dsp for p in parts)


def test_more_parallel_costs_more() -> None:
    costs = []
    for pe, simd in ((1, 1), (2, 4), (4, 8), (16, 24)):
        folding = Folding({"conv_2": NodeFolding(pe=pe, simd=simd)})
        block = blocks_of(map_graph(digits_like(), folding))["conv_2"]
        costs.append(block_resources(block, "ecp5").lut)
    assert costs == sorted(costs)


def test_unknown_family_is_refused() -> None:
    with pytest.raises(TargetError, match="no cost model for family 'max10'"):
        graph_resources(map_graph(digits_like()), "max10")


def test_a_family_that_nobody_measured_costs_as_ecp5_does() -> None:
    """iCE40, whose LUTs are ECP5's: memories apart, which are registers there, and block RAMs."""
    assert not _measured("ice40")
    folding = Folding({"conv_2": NodeFolding(pe=4, simd=8, ram_style="block")})
    block = blocks_of(map_graph(digits_like(), folding))["conv_2"]
    there, here = (block_resources(block, family) for family in ("ecp5", "ice40"))
    assert block.memory_cost("ice40").bram >= block.memory_cost("ecp5").bram > 0
    assert here.lut - block.memory_cost("ice40").lut == pytest.approx(
        there.lut - block.memory_cost("ecp5").lut, rel=0.2
    )


def test_the_model_predicts_what_networks_fill_without_bias() -> None:
    """Committed comparison with nextpnr's packed counts, which are what the netlist says."""
    rows = json.loads(MEASURED.with_name("packed_luts.json").read_text())
    assert all(row["netlist"] == row["nextpnr"] for row in rows)
    assert len(rows) >= 2
    errors = np.array([row["model"] / row["nextpnr"] - 1 for row in rows])
    assert abs(errors.mean()) < 0.04
    assert np.abs(errors).max() < 0.10
