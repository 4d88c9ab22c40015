# SPDX-License-Identifier: Apache-2.0
"""Taps on every stream of networks that fork and join: equal as built, and faults are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.hw_networks import densenet, resnet, skynet

from bitwright.base.errors import GraphError
from bitwright.hw import map_graph
from bitwright.ir import Graph, random_feeds
from bitwright.pipeline.diff.hardware import against_graph, against_rtl
from bitwright.rtl.emit import emit
from bitwright.sim import Tap
from bitwright.sim.beats import StreamSpec
from bitwright.sim.taps import run_tapped

NETWORKS: dict[str, Callable[[], Graph]] = {
    "residual": lambda: resnet(blocks=1, size=8, width=2),
    "dense": lambda: densenet(growth=2, layers=2, size=4),
    "bypass": lambda: skynet(16, 16, share=24),
}


def mapped(graph: Graph, folder: Path) -> tuple[Graph, Path, dict[str, np.ndarray]]:
    """Hardware graph, design folder, all its edges for one frame; equal to the integer graph."""
    hardware = map_graph(graph)
    emit(hardware, folder / "rtl")
    feeds = random_feeds(graph, 1, np.random.default_rng(4))
    values = hardware.run(feeds, edges=True)
    equal = against_graph(graph, hardware, graph.run(feeds, edges=True), values)
    assert equal.first is None
    assert equal.compared > 0
    return hardware, folder / "rtl", values


def flipped(path: Path, number: int) -> None:
    """Change the lowest digit of one word of a memory image."""
    lines = path.read_text().splitlines()
    at = [i for i, line in enumerate(lines) if not line.startswith("//")][number]
    lines[at] = lines[at][:-1] + format(int(lines[at][-1], 16) ^ 1, "x")
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("name", NETWORKS)
def test_every_stream_is_compared_and_equal(name: str, tmp_path: Path) -> None:
    hardware, folder, values = mapped(NETWORKS[name](), tmp_path)
    result = against_rtl(hardware, folder, values)
    assert result.first is None, str(result.first)
    assert not result.problem
    streams = {e for node in hardware if node.op != "flatten" for e in node.outputs}
    assert result.compared == sum(hardware.types[e].size for e in (*hardware.inputs, *streams))


@pytest.mark.parametrize(("name", "op"), [("residual", "add"), ("dense", "concat")])
def test_a_fault_behind_a_join_names_the_layer_of_the_fault(
    name: str, op: str, tmp_path: Path
) -> None:
    """The first matrix unit behind the last join: what is before it stays equal."""
    hardware, folder, values = mapped(NETWORKS[name](), tmp_path)
    nodes = list(hardware)
    last = max(i for i, node in enumerate(nodes) if node.op == op)
    unit = next(node for node in nodes[last:] if node.op == "matvec")
    for number in range(4):
        flipped(folder / "mem" / f"{unit.name}_weight.mem", number)
    first = against_rtl(hardware, folder, values).first
    assert first is not None
    assert first.node == f"{unit.name} (matvec)"
    assert first.layer == unit.source


def test_a_fault_in_front_of_a_fork_is_named_once_and_first(tmp_path: Path) -> None:
    """Both branches carry the wrong value; the layer that made it is the one named."""
    hardware, folder, values = mapped(NETWORKS["bypass"](), tmp_path)
    fork = next(node for node in hardware if node.op == "fork")
    before = [node for node in hardware if node.op == "matvec"]
    upstream = [n for n in before if list(hardware).index(n) < list(hardware).index(fork)][-1]
    for number in range(3):
        flipped(folder / "mem" / f"{upstream.name}_weight.mem", number)
    first = against_rtl(hardware, folder, values).first
    assert first is not None
    assert first.node == f"{upstream.name} (matvec)"


def test_values_wider_than_a_word_and_bits_that_fill_no_byte(tmp_path: Path) -> None:
    """What a tap reads is what went through, whatever the width: a FIFO of 1, 13 and 130 bits."""
    for width, lanes in ((1, 1), (13, 1), (130, 10), (64, 4)):
        bits = width // lanes
        spec = StreamSpec(lanes, bits, 5, width, signed=bits > 1)
        folder = _fifo(tmp_path / str(width), spec)
        rng = np.random.default_rng(width)
        lo, hi = spec.interval
        levels = rng.integers(lo, hi + 1, (1, spec.frame_elements))
        run = run_tapped(folder, [Tap("a", "mid", spec)], {"in": levels})
        np.testing.assert_array_equal(run.streams["a"].levels, levels[0])
        assert run.streams["a"].beats == 5
        with pytest.raises(GraphError, match="has no stream"):
            run_tapped(folder, [Tap("a", "none", spec)], {"in": levels})


def _fifo(folder: Path, spec: StreamSpec) -> Path:
    """A top of two FIFOs in a row, with the stream ``mid`` between them."""
    import json

    from bitwright.sim import write_module_bench

    write_module_bench(
        folder, "stream_fifo", {"Width": spec.width, "Depth": 4}, {"in": spec}, {"out": spec}
    )
    pins = (
        "input logic clk_i, rst_ni, in_valid_i, out_ready_i, output logic in_ready_o, out_valid_o"
    )
    wide = f"[{spec.width - 1}:0]"
    (folder / "two.sv").write_text(
        f"module two ({pins}, input logic {wide} in_data_i, output logic {wide} out_data_o);\n"
        "  logic mid_valid, mid_ready;\n"
        f"  logic {wide} mid_data;\n"
        f"  stream_fifo #(.Width({spec.width}), .Depth(4)) a (.clk_i, .rst_ni, .in_valid_i,\n"
        "    .in_ready_o, .in_data_i, .out_valid_o(mid_valid), .out_ready_i(mid_ready),\n"
        "    .out_data_o(mid_data));\n"
        f"  stream_fifo #(.Width({spec.width}), .Depth(4)) b (.clk_i, .rst_ni,\n"
        "    .in_valid_i(mid_valid), .in_ready_o(mid_ready), .in_data_i(mid_data),\n"
        "    .out_valid_o, .out_ready_i, .out_data_o);\n"
        "endmodule\n"
    )
    table = json.loads((folder / "design.json").read_text())
    table |= {"top": "two", "files": ["two.sv", *table["files"]], "parameters": {}}
    (folder / "design.json").write_text(json.dumps(table))
    return folder
