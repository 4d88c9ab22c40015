# SPDX-License-Identifier: Apache-2.0
"""The model of the board against the document's tables, its toy pipelines, lines of code."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import DataError, TargetError
from bitwright.papers.bnn_soc import tables
from bitwright.papers.bnn_soc.lanes import pipeline, simd, toy_cases
from bitwright.papers.bnn_soc.lines import count_files, count_text
from bitwright.papers.bnn_soc.soc import (
    KERNELS,
    PLACES,
    bridge_beats,
    buffers,
    cells,
    cost,
    network_time,
    trace,
    usage,
)


def test_every_consistent_cell_within_five_percent() -> None:
    found = cells()
    assert len(found) == 30
    suspect = [cell for cell in found if cell.reason]
    assert [(c.place, c.kernel, c.cell) for c in suspect] == [("arm", "xnor", "hidden1")]
    for cell in found:
        assert abs(cell.relative) <= 0.05 or cell.reason, cell
    assert suspect[0].model_ms == pytest.approx(130.102)


@given(st.sampled_from(PLACES), st.sampled_from(KERNELS), st.integers(784, 4096))
def test_time_grows_with_rows_and_columns(place: str, kernel: str, columns: int) -> None:
    constants = cost(place, kernel)
    assert constants.launch_ms >= 0 and constants.product_ns > 0
    times = [constants.layer_ms(rows, columns) for rows in (1, 10, 4096)]
    assert times == sorted(times)
    assert constants.layer_ms(64, columns + 1) > constants.layer_ms(64, columns)


def test_buffers_are_those_of_the_table() -> None:
    shapes = ((4096, 784), (4096, 4096), (10, 4096))
    weights = {k: [buffers(k, *shape).weight for shape in shapes] for k in KERNELS}
    assert weights["multiply"] == [12845056, 67108864, 163840]
    assert weights["xnor"] == [3211264, 16777216, 40960]
    assert weights["compressed"] == [409600, 2097152, 5120]
    assert [buffers("xnor", *shape).macs for shape in shapes] == [3211264, 16777216, 40960]
    assert sum(weights["compressed"]) == 2511872 and sum(weights["multiply"]) == 80117760


def test_bridges() -> None:
    assert bridge_beats(409600, "hps_to_fpga", 128) == 25600
    assert bridge_beats(5, "lightweight", 32) == 2
    for bridge, bits in (("lightweight", 64), ("hps_to_fpga", 256), ("pcie", 64)):
        with pytest.raises(TargetError, match="bits wide, not"):
            bridge_beats(1, bridge, bits)
    with pytest.raises(DataError, match="no kernel 'gpu'"):
        network_time((784, 10), "soc", "gpu")


def test_the_trace_is_the_described_sequence() -> None:
    events = trace((784, 4096, 10), "compressed")
    layer = [
        "write weights", "write input activations", "start kernel", "read rows and inputs",
        "multiply and accumulate", "write cells of the output", "interrupt: completion",
        "read result", "apply activation",
    ]  # fmt: skip
    assert [e.what for e in events if e.layer == 1] == layer
    assert [e.what for e in events if e.layer == 2] == layer
    assert events[0].what.startswith("read image") and events[-1].what.startswith("compare")
    times = [e.at_ms for e in events]
    assert times == sorted(times) and times[-1] == pytest.approx(34.578, abs=1e-3)
    assert [e.items for e in events if e.what == "start kernel"] == [4096, 10]
    sent = sum(e.nbytes for e in events if e.what == "write weights")
    assert sent == 414720


def test_resources_fit_the_device() -> None:
    found = usage("multiply")
    assert found.used["dsp"] == 3 and found.own["dsp"] == 1 and found.fits
    assert found.shares["m10k"] == pytest.approx(62 / 270)
    assert usage("compressed").shares["memory_bits"] == pytest.approx(0.131, abs=5e-4)


def test_toy_cases() -> None:
    assert [case[1:] for case in toy_cases()] == [(10, 10), (10, 6), (12, 6), (8, 5)]


@given(st.integers(1, 9), st.integers(1, 20), st.integers(1, 8))
def test_pipelines_follow_their_formulas(depth: int, items: int, width: int) -> None:
    assert pipeline(depth, items) == depth + items - 1
    assert simd([[str(n) for n in range(depth)]] * items, width) == depth * -(-items // width)


def test_tables_have_all_rows() -> None:
    assert len(tables.time_table().rows) == 30
    assert len(tables.resource_table().rows) == 7
    faster = {row["what"]: row["faster"] for row in tables.training_table({"x": (1, 2)}).rows}
    assert faster["xnor"] == pytest.approx(25.6, abs=0.05)
    assert faster["ours, x"] == pytest.approx(21547 / 2)
    assert tables.rule_of_thumb(784, 10) == pytest.approx(88.5, abs=0.1)


def test_lines_of_code(tmp_path: Path) -> None:
    c = '/* a\n b */\nint x; // c\n\nchar *s = "/* no comment";\n'
    assert count_text(c, "C") == 2
    python = '"""Doc.\n\nmore"""\n# c\nx = 1\n\n\ndef f():\n    """D."""\n    return "# 1"\n'
    assert count_text(python, "Python") == 3
    assert count_text("-- c\nentity e is -- d\n", "VHDL") == 1
    (tmp_path / "a.cl").write_text(c)
    (tmp_path / "b.txt").write_text("no code")
    assert count_files([tmp_path]) == {"OpenCL": 2}
    with pytest.raises(DataError, match="no Python"):
        count_text("def", "Python")
