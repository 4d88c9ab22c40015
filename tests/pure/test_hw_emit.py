# SPDX-License-Identifier: Apache-2.0
"""The emitter: a golden file, the same bytes every time, whole folders, images read back."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hw_networks import Net, digits_like, mapped_networks, tiny

from bitwright.base.errors import MismatchError
from bitwright.formats import parse_format
from bitwright.hw import Folding, NodeFolding, analyse, map_graph
from bitwright.hw.blocks import MatVec
from bitwright.hw.names import identifier, identifiers
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType
from bitwright.rtl import library_files, needed_modules
from bitwright.rtl.emit import check_memories, emit

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FOLDING = Folding({"conv": NodeFolding(pe=1, simd=3), "scores": NodeFolding(pe=3, simd=2)})


def _tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _without_stamp(text: str) -> str:
    return re.sub(r"Bitwright \S+ from hardware graph \w+", "Bitwright", text)


def test_golden_top_level(tmp_path: Path) -> None:
    """`BITWRIGHT_UPDATE_GOLDEN=1` writes the file anew; read the difference before a commit."""
    emit(map_graph(tiny(), FOLDING), tmp_path / "rtl")
    text = _without_stamp((tmp_path / "rtl" / "tiny.sv").read_text())
    golden = GOLDEN / "tiny.sv"
    if os.environ.get("BITWRIGHT_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_same_graph_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        emit(map_graph(tiny(), FOLDING), tmp_path / name)
    assert _tree(tmp_path / "a") == _tree(tmp_path / "b")
    top = (tmp_path / "a" / "tiny.sv").read_text()
    assert map_graph(tiny(), FOLDING).digest in top and "Do not edit" in top


@settings(max_examples=20)
@given(mapped_networks())
def test_emitted_design_is_complete(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[Graph, Folding]
) -> None:
    folder = tmp_path_factory.mktemp("rtl") / "out"
    hardware = map_graph(*case)
    table = json.loads(emit(hardware, folder).read_text())
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert files == {*table["files"], *table["memories"], "design.json"}
    assert table["predicted"]["interval"] == analyse(hardware).interval
    assert [port["tensor"] for port in table["outputs"]] == list(case[0].outputs)
    text = (folder / table["files"][0]).read_text()
    for path in table["memories"]:
        stem = re.sub(r"\d{4}\.mem$", "", path)  # one file a lane, or a file of its own
        assert f'"{path}"' in text or f'"{stem}"' in text
    for port in (*table["inputs"], *table["outputs"]):
        assert port["width"] % 8 == 0 and port["width"] >= port["lanes"] * port["lane_bits"]
    instances = set(re.findall(r"^  \) (\w+) \($", text, re.MULTILINE))
    assert set(table["instances"]) <= instances
    for fifo in table["fifos"]:
        assert fifo["instance"] in instances


def test_an_older_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "rtl"
    emit(map_graph(digits_like()), out)
    (out / "stray.txt").write_text("old")
    emit(map_graph(tiny(), FOLDING), out)
    assert not (out / "stray.txt").exists() and not (out / "digits.sv").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rtl"]


def test_a_failed_run_leaves_the_older_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rtl"
    emit(map_graph(tiny(), FOLDING), out)
    before = _tree(out)

    def full(self: Path, *args: object, **more: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        emit(map_graph(digits_like()), out)
    monkeypatch.undo()
    assert _tree(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["rtl"]


def test_a_changed_image_is_noticed(tmp_path: Path) -> None:
    hardware = map_graph(tiny(), FOLDING)
    emit(hardware, tmp_path / "rtl")
    check_memories(hardware, tmp_path / "rtl")
    path = tmp_path / "rtl" / "mem" / "conv_weight.mem"
    lines = path.read_text().splitlines()
    lines[-1] = f"{int(lines[-1], 16) ^ 1:0{len(lines[-1])}x}"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(MismatchError, match="differs from the image") as caught:
        check_memories(hardware, tmp_path / "rtl")
    assert "conv_weight.mem" in str(caught.value.where)


def test_wrongly_packed_weights_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hardware = map_graph(tiny(), FOLDING)
    monkeypatch.setattr(MatVec, "unpack_weight", lambda self, memory: -self.weight)
    with pytest.raises(MismatchError, match="are not the layer's weights"):
        emit(hardware, tmp_path / "rtl")
    assert not (tmp_path / "rtl").exists()


def test_library_modules_that_are_needed() -> None:
    assert needed_modules({"stream_dwc"}) == ["stream_check", "stream_dwc", "stream_skid"]
    known = {path.stem for path in library_files()}
    assert set(needed_modules({"matvec", "threshold"})) <= known


@pytest.mark.parametrize(
    ("name", "text"),
    [("layer.0.conv", "layer_0_conv"), ("3rd", "n3rd"), ("module", "module_"), ("", "n")],
)
def test_identifier(name: str, text: str) -> None:
    assert identifier(name) == text


@given(st.lists(st.text(max_size=6), unique=True))
def test_identifiers_are_distinct_and_legal(names: list[str]) -> None:
    made = identifiers(names, taken=("ap_clk",))
    assert len(set(made.values())) == len(names) and "ap_clk" not in made.values()
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) for text in made.values())


def test_a_network_named_like_a_module_or_keyword(tmp_path: Path) -> None:
    for name, top in (("matvec", "matvec_top"), ("begin", "begin_")):
        graph = Net((4,), "uint2", "int2n", name=name).dense(2, name="scores").finish()
        table = json.loads(emit(map_graph(graph), tmp_path / name).read_text())
        assert table["top"] == top


@pytest.mark.parametrize("name", ["verilator", "Synopsys_x", "conv"])
def test_no_comment_begins_with_a_word_that_tools_obey(tmp_path: Path, name: str) -> None:
    """Verilator 5.006 takes what stands behind ``public_flat_rw`` out of the comment, as code."""
    b = GraphBuilder("g", INTEGER)
    x = b.input("x", TensorType((2, 2, 1), parse_format("uint4"), (1.0,), 0, 15))
    source = "public_flat_rw;initial$system(1);//"
    graph = b.finish(b.add("upsample", (x,), name=name, attrs={"factor": (2, 2)}, source=source))
    emit(map_graph(graph, Folding()), tmp_path / "rtl")
    text = (tmp_path / "rtl" / "g.sv").read_text()
    words = [line.split("//", 1)[1].strip().lower() for line in text.splitlines() if "//" in line]
    assert any(source in line for line in words)
    assert not [line for line in words if line.startswith(("verilator", "synopsys"))]
