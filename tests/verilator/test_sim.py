# SPDX-License-Identifier: Apache-2.0
"""The harness notices stuck designs, wrong tlast, surplus beats, failed assertions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.verilator.lib_cases import MatShape, axis_in, levels_of, matvec, spec

from bitwright.base.errors import GraphError, MismatchError, ToolError
from bitwright.base.source import Sources
from bitwright.sim import (
    RunLimits,
    Simulator,
    StreamSpec,
    compare,
    no_stalls,
    random_stalls,
    standard_stalls,
    write_module_bench,
)
from bitwright.sim import simulator as simulators
from bitwright.sim.spec import load_design

SHORT = RunLimits(idle=300)
AXIS = {"Width": 9, "TdataWidth": 16, "Beats": 4}


def _axis_out(folder: Path, beats: int, *, trace: bool = False, out_beats: int = 0) -> Simulator:
    write_module_bench(
        folder,
        "axis_out",
        AXIS,
        {"in": spec(1, 9, beats)},
        {"m_axis": StreamSpec(1, 9, out_beats or beats, 16)},
    )
    return Simulator.build(folder, trace=trace)


def _run(simulator: Simulator, frames: int = 3) -> None:
    port = simulator.design.inputs[0]
    levels = {port.name: levels_of(port.spec, frames, np.random.default_rng(2))}
    simulator.run(simulator.pack(levels), frames, limits=SHORT)


def test_misplaced_tlast(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="tlast is wrong on m_axis at frame 0, beat 3 of 6"):
        _run(_axis_out(tmp_path, 6))


def test_missing_beats_are_a_deadlock_that_says_what_waits(tmp_path: Path) -> None:
    port = spec(1, 8, 4)
    write_module_bench(tmp_path, "stream_skid", {}, {"in": port}, {"out": spec(1, 8, 8)})
    with pytest.raises(MismatchError, match="nothing moves any more") as caught:
        _run(Simulator.build(tmp_path))
    assert "in: 12 of 12 beats taken, has nothing to offer" in caught.value.message
    assert "out: 12 of 24 beats given, waits for valid" in caught.value.message


def test_surplus_beats(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="came out after the last frame"):
        _run(_axis_out(tmp_path, 8, out_beats=4))


def test_misplaced_tlast_of_an_input_is_what_the_design_says(tmp_path: Path) -> None:
    case = axis_in()
    wrong = {"s_axis": StreamSpec(2, 5, 12, 16)}
    write_module_bench(tmp_path, case.module, case.parameters, wrong, {"out": spec(2, 5, 6)})
    with pytest.raises(MismatchError, match="says that tlast is misplaced on s_axis"):
        _run(Simulator.build(tmp_path))


@pytest.mark.parametrize("seed", range(4))
def test_every_tlast_ends_one_frame_of_the_right_length(seed: int, tmp_path: Path) -> None:
    """Frames too short and too long at random: the right ones come out as they went in."""
    case, rng = axis_in(), np.random.default_rng(seed)
    write_module_bench(tmp_path, case.module, case.parameters, case.inputs, case.outputs)
    simulator = Simulator.build(tmp_path)
    lengths = rng.choice([6, 6, 6, 1, 3, 5, 7, 12, 13], 40)
    lengths[-1] = 6
    lasts = np.zeros(lengths.sum(), dtype=bool)
    lasts[np.cumsum(lengths) - 1] = True
    levels = rng.integers(0, 32, (len(lasts), 2))
    words = levels[:, 0] | levels[:, 1] << 5
    beats = words.astype("<u2").view(np.uint8).reshape(-1, 2)
    for stalls in standard_stalls(seed):
        result = simulator.run({"s_axis": beats}, 40, stalls, limits=SHORT, lasts={"s_axis": lasts})
        assert result.frame_error == 1
        start = 0
        for length, got in zip(lengths, result.levels["out"], strict=True):
            sent = levels[start : start + min(length, 6)].ravel()
            assert (got[: len(sent)] == sent).all() and not got[len(sent) :].any()
            start += length


def test_failed_assertion_names_the_instance(tmp_path: Path) -> None:
    case = matvec("plain", MatShape(12, 6, 2, 3))
    parameters = {**case.parameters, "AccWidth": 6}
    out = {"out": spec(2, 6, 3, signed=True)}
    write_module_bench(tmp_path, case.module, parameters, case.inputs, out, case.memories)
    with pytest.raises(MismatchError, match=r"matvec\..*no_overflow"):
        _run(Simulator.build(tmp_path))
    _run(Simulator.build(tmp_path, assertions=False))


def test_missing_memory_image(tmp_path: Path) -> None:
    case = matvec("plain", MatShape(12, 6, 2, 3))
    write_module_bench(
        tmp_path, case.module, case.parameters, case.inputs, case.outputs, case.memories
    )
    simulator = Simulator.build(tmp_path)
    (tmp_path / "w.mem").unlink()
    with pytest.raises(ToolError, match=r"w\.mem"):
        _run(simulator)
    with pytest.raises(GraphError, match=r"names the file 'w\.mem'"):
        Simulator.build(tmp_path)


def test_broken_rtl_shows_what_verilator_said(tmp_path: Path) -> None:
    _axis_out(tmp_path, 4)
    (tmp_path / "lib" / "axis_out.sv").write_text("module axis_out (input wire a;\nendmodule\n")
    with pytest.raises(ToolError, match="syntax error"):
        Simulator.build(tmp_path)


def test_malformed_design_file(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="cannot be read"):
        Simulator.build(tmp_path)
    _axis_out(tmp_path, 4)
    table = json.loads((tmp_path / "design.json").read_text())
    del table["outputs"][0]["lanes"]
    (tmp_path / "design.json").write_text(json.dumps(table))
    with pytest.raises(GraphError, match="lanes"):
        Simulator.build(tmp_path)


def test_wrong_number_of_beats(tmp_path: Path) -> None:
    simulator = _axis_out(tmp_path, 4)
    with pytest.raises(GraphError, match=r"expected beats of shape \(8, 2\)"):
        simulator.run({"in": np.zeros((4, 2), dtype=np.uint8)}, 2)


@pytest.mark.long
def test_waveform_throttle_and_repeatability(tmp_path: Path) -> None:
    simulator = _axis_out(tmp_path, 4, trace=True)
    levels = {"in": levels_of(simulator.design.inputs[0].spec, 5, np.random.default_rng(3))}
    beats, wave = simulator.pack(levels), tmp_path / "run.vcd"
    slow = simulator.run(beats, 5, no_stalls(), throttle=22, trace=wave)
    assert slow.interval == 22
    assert list(slow.input_cycles["in"][:5]) == [0, 5, 11, 16, 22]
    assert "m_axis_tlast" in wave.read_text()
    runs = [simulator.run(beats, 5, random_stalls(0.5, seed)) for seed in (4, 4, 5)]
    cycles = [list(run.output_cycles["m_axis"]) for run in runs]
    assert cycles[0] == cycles[1] != cycles[2]
    assert compare({"m_axis": levels["in"]}, runs[0].levels) is None
    with pytest.raises(MismatchError, match="max_cycles is over after 6 cycles"):
        simulator.run(beats, 5, limits=RunLimits(max_cycles=6))


def test_compiled_simulators_are_kept_by_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    first = _axis_out(tmp_path / "a", 4)
    kept = Simulator.build(tmp_path / "a", workdir=work)
    stamp = kept.program.stat().st_mtime_ns
    assert Simulator.build(tmp_path / "a", workdir=work).program.stat().st_mtime_ns == stamp
    assert len(list(work.iterdir())) == 1
    assert first.program != kept.program
    design = load_design(tmp_path / "a")
    keys = {simulators._content_key(design, "-O2", on, trace) for on in (0, 1) for trace in (0, 1)}
    with monkeypatch.context() as patch:
        patch.setattr(simulators, "_options", lambda *_: ["-O0"])
        keys.add(simulators._content_key(design, "-O2", True, False))
    monkeypatch.setattr(Sources, "meaning", lambda *_: "another compilation")
    assert len({*keys, simulators._content_key(design, "-O2", True, False)}) == 6


def test_patience_grows_with_the_predicted_latency(tmp_path: Path) -> None:
    """A network whose first frame takes longer than the usual limit is no deadlock."""
    slow = 300_000
    lines = [
        "`default_nettype none",
        "module slow (input logic ap_clk, input logic ap_rst_n, input logic [7:0] s_axis_0_tdata,",
        "  input logic s_axis_0_tvalid, output logic s_axis_0_tready, input logic s_axis_0_tlast,",
        "  output logic [7:0] m_axis_0_tdata, output logic m_axis_0_tvalid,",
        "  input logic m_axis_0_tready, output logic m_axis_0_tlast);",
        "  logic [31:0] count_q; logic [7:0] data_q; logic busy_q;",
        "  always_ff @(posedge ap_clk) begin",
        "    if (!ap_rst_n) begin count_q <= '0; busy_q <= 1'b0; end",
        "    else if (!busy_q) begin",
        "      if (s_axis_0_tvalid) begin data_q <= s_axis_0_tdata; busy_q <= 1'b1; end",
        f"    end else if (count_q < {slow}) count_q <= count_q + 1;",
        "    else if (m_axis_0_tready) begin busy_q <= 1'b0; count_q <= '0; end",
        "  end",
        "  assign s_axis_0_tready = !busy_q; assign m_axis_0_tdata = data_q;",
        f"  assign m_axis_0_tvalid = busy_q && count_q == {slow}; assign m_axis_0_tlast = 1'b1;",
        "endmodule",
    ]
    (tmp_path / "slow.sv").write_text("\n".join(lines) + "\n")
    port = {"tensor": "x", "width": 8, "lane_bits": 8, "lanes": 1, "beats": 1}
    port |= {"signed": False, "bipolar": False}
    table = {
        "top": "slow",
        "clock": "ap_clk",
        "reset": "ap_rst_n",
        "files": ["slow.sv"],
        "memories": [],
        "inputs": [{"name": "s_axis_0", **port}],
        "outputs": [{"name": "m_axis_0", **port}],
        "fifos": [],
    }
    levels = {"s_axis_0": np.array([[7]])}
    for predicted, works in ((slow, True), (0, False)):
        text = json.dumps({**table, "predicted": {"interval": slow, "latency": predicted}})
        (tmp_path / "design.json").write_text(text)
        simulator = Simulator.build(tmp_path)
        beats = simulator.pack(levels)
        if works:
            assert simulator.run(beats, 1).levels["m_axis_0"].ravel().tolist() == [7]
        else:
            with pytest.raises(MismatchError, match="nothing moves"):
                simulator.run(beats, 1)
