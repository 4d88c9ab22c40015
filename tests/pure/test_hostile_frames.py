# SPDX-License-Identifier: Apache-2.0
"""Designs of a few hundred bytes with frames as large as a stranger's may be: what is done with
many of them takes the memory of a few.
"""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tests.pure.test_board_protocol import describe

from bitwright.base.errors import DataError, GraphError
from bitwright.interop.onnx.export_qdq import export_qdq
from bitwright.interop.onnx.export_qonnx import export_qonnx
from bitwright.ir import INTEGER, Graph, GraphBuilder, footprint
from bitwright.ir.footprint import held_bytes
from bitwright.ir.types import parse_type
from bitwright.pipeline import board, board_subject
from bitwright.pipeline.board_subject import RANDOM, BoardSubject, choose_images
from bitwright.pipeline.designs.folder import Design, parse_settings
from bitwright.pipeline.designs.steps import diff_design
from bitwright.pipeline.steps import simulate
from bitwright.sim import Simulator, StallPattern, StreamSpec, beats, pack, unpack
from bitwright.sim.spec import Design as Rtl
from bitwright.sim.spec import Port

MIB = 1 << 20


class Wire(Simulator):
    """A design that gives what it takes."""

    def execute(self, job: Path, pattern: StallPattern) -> str:
        frames = dict(line.split(" ", 1) for line in job.read_text().splitlines())["frames"]
        stamps = np.arange(int(frames) * self.design.inputs[0].beats, dtype="<u8")
        for name in ("in0", "out0"):
            stamps.tofile(job.parent / f"{name}.cycles")
        shutil.copyfile(job.parent / "in0.beats", job.parent / "out0.beats")
        table = {"status": "done", "outputs": [{"bad_last": -1}], "memories": []}
        (job.parent / "result.json").write_text(
            json.dumps(table | {"finish": len(stamps), "frame_error": 0})
        )
        return ""


def test_twelve_frames_are_simulated_in_the_memory_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit of an element is 64 of a level: twelve frames of 512 MiB took 20 GB."""
    lanes = 1 << 16
    port = Port(name="x", width=lanes, lane_bits=1, lanes=lanes, beats=16, bipolar=True)
    design = Rtl(top="t", clock="c", reset="r", files=("t.sv",), inputs=(port,), outputs=(port,))
    levels = np.ones((1, 16 * lanes), np.int64)  # 8 MiB
    levels[0, ::3] = -1
    proof = simulate._Proof(Wire(design, Path(), False), {"x": levels}, {"x": levels}, 16)
    monkeypatch.setattr(simulate, "_PART_BYTES", 16 * MIB, raising=False)
    monkeypatch.setattr(beats, "_CHUNK_ELEMENTS", 1 << 16, raising=False)
    tracemalloc.start()
    try:
        result, _ = simulate._check_rate(proof, lambda *_: None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.frames == 12
    assert peak < 48 * MIB  # 12 frames of levels are 96


@pytest.mark.parametrize("bits", [1, 5, 8, 24])
def test_beats_are_the_same_in_parts(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = StreamSpec(3, bits, 7, 3 * bits + 2, signed=bits == 5, bipolar=bits == 1)
    low, high = spec.interval
    levels = np.random.default_rng(0).integers(low, high + 1, (4, 21))
    levels[levels == 0] = high
    whole = pack(spec, levels)
    monkeypatch.setattr(beats, "_CHUNK_ELEMENTS", 12, raising=False)
    assert (pack(spec, levels) == whole).all()
    assert (unpack(spec, whole) == levels).all()


def _graph() -> Graph:
    builder = GraphBuilder("g", INTEGER)
    x = builder.input("x", parse_type("uint4[4,4,1] * 0x1p+0 in [0,15]"))
    return builder.finish(builder.add("upsample", (x,), attrs={"factor": (2, 2)}))


def test_a_board_gets_as_many_random_frames_as_take_a_gibibyte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen of 768 MiB each, packed and compared at once, took more than 10 GB."""
    graph, described = _graph(), describe()
    own = described.input.model_copy(update={"shape": (4, 4, 1)})
    described = described.model_copy(update={"input": own})
    subject = BoardSubject(tmp_path, tmp_path, graph)
    assert len(choose_images(subject, described, [], None).levels) == RANDOM
    one = 8 * (16 + 2 * 64)
    monkeypatch.setattr(footprint, "MOST_OF_A_FILE", 3 * one)
    assert len(choose_images(subject, described, [], None).levels) == 3
    assert len(choose_images(subject, described, [], 5).levels) == 5  # who says so gets them
    monkeypatch.setattr(board_subject, "MOST_BYTES", 8 * 16 * 20, raising=False)
    with pytest.raises(DataError, match="21 frames"):
        choose_images(subject, described, [], 21)
    pictures = [tmp_path / f"{number}.png" for number in range(21)]
    for picture in pictures:
        picture.touch()
    with pytest.raises(DataError, match="21 frames"):
        choose_images(subject, described, pictures, None)


def test_a_design_is_proven_on_as_many_frames_as_take_half_a_gibibyte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty of a stranger's 20 MiB each, with the outputs, took 5.4 GB; who says that they are
    his own gets more of them.
    """
    settings = parse_settings({"simulate": {"images": "all"}}, "here")
    design = Design(tmp_path, _graph(), settings, {"x": np.zeros((21, 4, 4, 1), np.int64)})
    one = 8 * (16 + 64)
    monkeypatch.setattr("bitwright.pipeline.designs.folder._MOST_BYTES", 20 * one)
    monkeypatch.setattr("bitwright.pipeline.designs.folder._MOST_OWN_BYTES", 21 * one)
    with pytest.raises(DataError, match="21 frames") as refused:
        design.frames()
    assert "simulate.images=20" in str(refused.value.hint)
    few = parse_settings({"simulate": {"images": 20}}, "here")
    assert len(Design(tmp_path, design.graph, few, design.levels).frames()["x"]) == 20
    monkeypatch.setenv("BITWRIGHT_LARGE_FRAMES", "1")
    assert len(design.frames()["x"]) == 21


def test_answers_of_a_board_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = _graph()
    levels = np.random.default_rng(0).integers(0, 16, (7, 4, 4, 1))
    edge = graph.outputs[0]
    got = graph.run({"x": levels})[edge].reshape(7, -1)
    got[2, 0] += 1
    got[6, 5] += 1
    monkeypatch.setattr(footprint, "MOST_OF_A_FILE", 3 * 8 * (16 + 2 * 64))
    assert board._compare(graph, levels, {edge: got}) == (7 * 64, 2)


def test_a_comparison_keeps_no_more_edges_of_the_hardware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window holds 64 times the image of a pool of 8 x 8; 24 of them took more than 10 GB."""
    builder = GraphBuilder("g", INTEGER)
    edge = builder.input("x", parse_type("bipolar[12,12,1] * 0x1p+0 in [-1,1]"))
    attrs = {"kernel": (8, 8), "stride": (1, 1), "padding": (3, 3, 4, 4)}
    for _ in range(2):
        edge = builder.add("max_pool", (edge,), attrs=attrs)
    settings = parse_settings({"hardware": {"target": "xczu9eg"}}, "here")
    design = Design(tmp_path, builder.finish(edge), settings)
    design.save()
    assert len(diff_design(design, until="hardware").stages) == 1
    monkeypatch.setattr("bitwright.base.memory.MOST_OF_A_FILE", 8 * 12 * 12 * 64)
    with pytest.raises(GraphError, match="one frame takes") as raised:
        diff_design(design, until="hardware")
    assert "BITWRIGHT_LARGE_FRAMES=1" in str(raised.value)
    monkeypatch.setenv("BITWRIGHT_LARGE_FRAMES", "1")
    assert len(diff_design(design, until="hardware").stages) == 1


@pytest.mark.parametrize("kind", ["qonnx", "qdq"])
def test_an_export_runs_as_many_frames_at_a_time_as_fit(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fourteen frames that lay in a design folder were run at once, every edge of them kept."""
    pytest.importorskip("onnxruntime")
    export = {"qonnx": export_qonnx, "qdq": export_qdq}[kind]
    graph, counts = _graph(), []
    if kind == "qonnx":
        pytest.importorskip("qonnx")
    module = __import__(export.__module__, fromlist=["_compare"])
    compare = module._compare

    def seen(model: bytes, graph: Graph, feeds: dict[str, np.ndarray]) -> int:
        counts.append(len(feeds["x"]))
        return int(compare(model, graph, feeds))

    monkeypatch.setattr(module, "_compare", seen)
    feeds = {"x": np.arange(14 * 16).reshape(14, 4, 4, 1) % 16}
    room = 3 * held_bytes(graph, edges=kind == "qonnx")
    done = export(graph, tmp_path / "out.onnx", feeds=feeds, frames=2, room=room)
    assert max(counts) == 3
    assert sum(counts) == done.frames == 14 + (2 if kind == "qonnx" else 4)
