# SPDX-License-Identifier: Apache-2.0
"""The integer artefact: both replays agree with the graph, and see every difference."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import require
from tests.hw_networks import rounded_network
from tests.strategies import GraphLimits, integer_graphs

from bitwright.base.errors import GraphError, MismatchError, RunError
from bitwright.formats import parse_format
from bitwright.interop.artifact import export_artifact
from bitwright.interop.artifact import write as write_module
from bitwright.interop.artifact.network_h import arena
from bitwright.interop.artifact.packing import pack
from bitwright.interop.artifact.replay import unpack
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType

COMPILER = shutil.which("cc") or shutil.which("gcc")
EVERYTHING = GraphLimits.everything(blocks=2)


def compiled(folder: Path) -> Path:
    """The artefact's C program; warnings are errors."""
    require(None if COMPILER else "no C compiler on PATH")
    program = folder.parent / f"{folder.name}-replay"
    flags = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-pedantic"]
    flags += ["-fsanitize=undefined", "-fno-sanitize-recover=all"]
    command = [str(COMPILER), *flags, str(folder / "replay.c"), "-o", str(program)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 0, made.stderr
    return program


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """Run a replay."""
    return subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, timeout=120, check=False
    )


def small() -> Graph:
    """Padding, flips, a bipolar layer and a bias."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("small", INTEGER)
    x = b.input("x", TensorType((4, 5, 2), parse_format("int3"), (0.5,), -4, 3))
    weight = rng.integers(-7, 8, (3, 3, 2, 2))
    attrs = {"padding": (1, 0, 1, 1), "stride": (2, 1), "weight_format": "int4n"}
    x = b.add("conv", (x,), name="conv", attrs=attrs, params={"weight": weight})
    attrs = {"base": -1, "step": 2, "format": "bipolar"}
    params = {"thresholds": np.array([[3], [-4], [1 << 40]]), "flip": np.array([0, 1, 0])}
    x = b.add("threshold", (x,), name="act", attrs=attrs, params=params)
    x = b.add("flatten", (x,), name="flat")
    weight = rng.integers(0, 2, (4, b.types[x].size)) * 2 - 1
    params = {"weight": weight, "bias": np.array([1, -300, 0, 7])}
    x = b.add("dense", (x,), name="head", attrs={"weight_format": "bipolar"}, params=params)
    return b.finish(x, b.add("top_k", (x,), name="label"))


@pytest.mark.parametrize(
    ("op", "attrs"), [("space_to_depth", {"block": 2}), ("upsample", {"factor": (2, 3)})]
)
def test_rearrangements_replay(tmp_path: Path, op: str, attrs: dict[str, Any]) -> None:
    b = GraphBuilder("moved", INTEGER)
    x = b.input("x", TensorType((4, 6, 2), parse_format("int3"), (0.5,), -4, 3))
    folder = tmp_path / "net"
    export_artifact(b.finish(b.add(op, (x,), name="moved", attrs=attrs)), folder)
    result = run(compiled(folder), folder)  # stops at undefined behaviour
    assert result.returncode == 0, result.stdout + result.stderr


@given(integer_graphs(EVERYTHING))
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_networks_replay(tmp_path_factory: pytest.TempPathFactory, graph: Graph) -> None:
    folder = tmp_path_factory.mktemp("artefact") / "net"
    report = export_artifact(graph, folder, frames=2)
    assert report.values == 2 * sum(graph.types[e].size for e in graph.types)
    result = run(compiled(folder), folder)
    assert result.returncode == 0, result.stdout + result.stderr


@given(st.integers(1, 40), st.integers(-(2**40), 2**40), st.integers(0, 2**41), st.integers(0, 99))
def test_packing_keeps_values(count: int, low: int, span: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(low, low + span + 1, count)
    body, packed = pack(values, 3)
    assert len(body) == -(-count * packed.bits // 8)
    spec = {"offset": 3, "bits": packed.bits, "encoding": packed.encoding, "shape": [count]}
    assert np.array_equal(unpack(b"abc" + body, spec), values)


def test_bipolar_values_take_one_bit() -> None:
    body, packed = pack(np.array([1, -1, -1, 1, 1, 1, -1, 1, -1]), 0)
    assert (packed.bits, packed.encoding) == (1, "bipolar") and body == bytes([0b10111001, 0])


@given(integer_graphs(EVERYTHING))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_living_tensors_share_no_memory(graph: Graph) -> None:
    places, words = arena(graph)
    order = [*graph.inputs, *(n.output for n in graph)]
    for index, node in enumerate(graph, start=len(graph.inputs)):
        later = {e for n in graph.nodes[index - len(graph.inputs) :] for e in n.inputs}
        alive = {node.output, *(e for e in order[:index] if e in later or e in graph.outputs)}
        spans = sorted((places[e], places[e] + graph.types[e].size) for e in alive)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert spans[-1][1] <= words


@pytest.mark.parametrize("language", ["python", "c"])
@pytest.mark.parametrize("name", ["params.bin", "golden.bin"])
def test_replays_see_a_changed_bit(tmp_path: Path, language: str, name: str) -> None:
    folder = tmp_path / "net"
    export_artifact(small(), folder)
    program: list[object] = [compiled(folder)]
    if language == "python":
        program = [sys.executable, folder / "replay.py"]
    assert run(*program, folder).returncode == 0
    body = bytearray((folder / name).read_bytes())
    body[2 if name == "params.bin" else len(body) // 2] ^= 1
    (folder / name).write_bytes(body)
    result = run(*program, folder)
    assert result.returncode == 1 and "expected" in result.stdout
    (folder / name).write_bytes(body[:-1])
    result = run(*program, folder)
    assert result.returncode == 2 and "cannot replay" in result.stderr


@pytest.mark.parametrize("language", ["python", "c"])
def test_replays_see_a_change_that_no_frame_shows(tmp_path: Path, language: str) -> None:
    folder, graph = tmp_path / "net", small()
    feeds = {name: np.zeros((1, *graph.types[name].shape), np.int64) for name in graph.inputs}
    export_artifact(graph, folder, feeds=feeds)  # nothing but zeros: weights do not matter
    body = bytearray((folder / "params.bin").read_bytes())
    body[2] ^= 1
    (folder / "params.bin").write_bytes(body)
    program: list[object] = [compiled(folder)]
    if language == "python":
        program = [sys.executable, folder / "replay.py"]
    result = run(*program, folder)
    assert result.returncode == 2 and "a checksum differs" in result.stderr


def test_manifest_says_what_is_on_disk(tmp_path: Path) -> None:
    graph = small()
    report = export_artifact(graph, tmp_path / "net", frames=3)
    manifest = json.loads((tmp_path / "net" / "manifest.json").read_text())
    assert manifest["digest"] == graph.digest and manifest["frames"] == report.frames == 3
    for name, size in manifest["bytes"].items():
        assert size == report.files[name] == (tmp_path / "net" / name).stat().st_size
    nodes = {n["name"]: n for n in manifest["nodes"]}
    assert nodes["conv"]["params"]["weight"]["shape"] == [3, 3, 2, 2]  # O, KH, KW, I
    assert nodes["conv"]["params"]["weight"]["bits"] == 4
    assert nodes["head"]["params"]["weight"]["encoding"] == "bipolar"
    assert manifest["tensors"][0]["name"] == "x"


def test_an_artefact_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    export_artifact(small(), tmp_path / "net")
    export_artifact(small(), tmp_path / "net", frames=1)
    assert [p.name for p in tmp_path.iterdir()] == ["net"]
    other = tmp_path / "mine"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="no artefact"):
        export_artifact(small(), other)
    assert (other / "notes.txt").read_text() == "mine"


def test_a_wrong_replay_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = write_module._params

    def wrong(graph: Graph, node: object) -> dict[str, np.ndarray]:
        params = real(graph, node)  # type: ignore[arg-type]
        return {k: -v if k == "weight" else v for k, v in params.items()}

    monkeypatch.setattr(write_module, "_params", wrong)
    with pytest.raises(MismatchError, match=r"conv \(conv\)"):
        export_artifact(small(), tmp_path / "net")
    assert not list(tmp_path.iterdir())


def test_levels_beyond_32_bits_are_refused(tmp_path: Path) -> None:
    b = GraphBuilder("wide", INTEGER)
    x = b.input("x", TensorType((2,), parse_format("uint16"), (1.0,), 0, 65535))
    for index in range(2):
        weight = np.full((2, 2), 32767)
        attrs = {"weight_format": "int16"}
        x = b.add("dense", (x,), name=f"d{index}", attrs=attrs, params={"weight": weight})
    with pytest.raises(GraphError, match="32 bits"):
        export_artifact(b.finish(x), tmp_path / "net")


def test_an_operation_that_it_cannot_replay_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    graph = rounded_network(np.random.default_rng(0), layers=1)
    with pytest.raises(GraphError, match="conv0: conv_rounded has no form in the artefact"):
        export_artifact(graph, tmp_path / "net")
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_whose_sides_share_no_number_is_refused(tmp_path: Path) -> None:
    b = GraphBuilder("wide", INTEGER)
    x = b.input("x", TensorType((1, 1 << 16, 1), parse_format("uint1"), (1.0,), 0, 1))
    weight = np.ones((1, 1, 1 << 16, 1), dtype=np.int64)
    attrs = {"weight_format": "int2", "stride": (1, 1), "padding": (0, 0, 0, 0), "groups": 1,
             "dilation": (1, 1)}  # fmt: skip
    graph = b.finish(b.add("conv", (x,), name="c", attrs=attrs, params={"weight": weight}))
    with pytest.raises(GraphError, match="c: a kernel of 1 x 65536; the artefact has at most"):
        export_artifact(graph, tmp_path / "net")
