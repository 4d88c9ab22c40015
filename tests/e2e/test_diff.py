# SPDX-License-Identifier: Apache-2.0
"""`bitwright diff` finds a fault in any level of a run, and names its layer, channel and pixel."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitwright.base.places import claim
from bitwright.cli import entry as cli
from bitwright.hw.dialect import HARDWARE
from bitwright.ir import INTEGER, Graph, Node, load_graph, rebuild, save_graph

RTL = Path("04-map") / "rtl"


def diff(run: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, Any]:
    """Exit code and JSON of the verb."""
    code = cli.run(["diff", str(run), "--json", *options])
    return code, json.loads(capsys.readouterr().out)


def stages(found: Any) -> dict[str, Any]:
    return {stage["stage"]: stage for stage in found["stages"]}


def changed(path: Path, graph: Graph, name: str, param: str, place: tuple[int, ...]) -> int:
    """Save the graph with one parameter changed by one; gives the value that is there now."""
    nodes = []
    value = 0
    for node in graph:
        if node.name == name:
            array = node.params[param].copy()
            array[place] += 1 if array[place] <= 0 else -1
            value = int(array[place])
            params = {**node.params, param: array}
            node = Node(  # noqa: PLW2901
                node.name, node.op, node.inputs, node.outputs, node.attrs, params, node.source
            )
        nodes.append(node)
    save_graph(rebuild(graph, tuple(nodes)), path)
    return value


def line_changed(path: Path, number: int, text: str) -> None:
    """Replace the n-th word of a memory image."""
    lines = path.read_text().splitlines()
    words = [i for i, line in enumerate(lines) if not line.startswith("//")]
    assert lines[words[number]] != text, "this would be no fault"
    lines[words[number]] = text
    path.write_text("\n".join(lines) + "\n")


def test_a_whole_run_is_equal(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = diff(built, capsys, "--index", "5")
    assert code == 0
    assert found["equal"]
    by_name = stages(found)
    assert list(by_name) == ["quantized", "integers", "graph", "hardware", "rtl"]
    assert all(by_name[name]["first"] is None for name in ("graph", "hardware", "rtl"))
    assert by_name["rtl"]["compared"] > by_name["hardware"]["compared"] > 0
    assert {"conv1", "act1", "conv2", "act2", "fc1"} <= {
        r["layer"] for r in by_name["quantized"]["rows"]
    }
    assert max(row["largest"] for row in by_name["quantized"]["rows"]) > 0


def test_a_wrong_weight_word_in_the_rtl(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The layer whose memory it is, its output channel, and the first pixel where it counts."""
    memory = copied / RTL / "mem" / "conv1_weight.mem"
    header = memory.read_text().splitlines()[0]
    assert "SF=9, NF=2; lane p*SIMD + s, PE=1, SIMD=1, 3 bits" in header
    line_changed(memory, 9 + 4, "3" if memory.read_text().splitlines()[2 + 13] != "3" else "2")
    code, found = diff(copied, capsys, "--index", "2")
    assert code == 10
    first = stages(found)["rtl"]["first"]
    assert stages(found)["hardware"]["first"] is None
    assert (first["layer"], first["node"], first["channel"]) == ("conv1", "conv1 (matvec)", 1)
    # Word 9 + 4: row 1, middle of the 3x3 kernel, so the first pixel that is not zero is it.
    levels = np.load(copied / "03-lower" / "levels.npz")["inputs"][2]
    rows, columns, _ = np.nonzero(levels)
    assert first["pixel"] == [rows[0], columns[0]]
    assert first["expected"] != first["got"]


def test_a_wrong_threshold_in_the_rtl(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory = copied / RTL / "mem" / "act2_thr0_0000.mem"  # of the first lane
    text = memory.read_text().splitlines()
    bits = int(text[1].rpartition(" of ")[2].split()[0])  # "// N words of B bits"
    words = [line for line in text if not line.startswith("//")]
    lowest = f"{1 << (bits - 1):0{len(words[0])}x}"
    for channel in range(len(words)):
        try:
            line_changed(memory, channel, lowest)
        except AssertionError:
            continue
        break
    code, found = diff(copied, capsys)
    first = stages(found)["rtl"]["first"]
    if first is None:  # no value lay between the two thresholds of this image
        pytest.fail("the threshold fault was not seen")
    assert code == 10
    assert first["layer"] == "act2"
    assert first["node"].startswith("act2")
    assert first["channel"] == channel


def test_a_changed_graph(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every level behind stays as it was: the fault is between frozen model and integer graph."""
    path = copied / "03-lower" / "graph.bwg"
    graph = load_graph(path, {"integer": INTEGER})
    node = next(n for n in graph if n.op == "threshold")
    array = node.params["thresholds"]
    changed_graph = []
    for n in graph:
        if n.name == node.name:
            table = np.repeat(array, 1, axis=0).copy()
            table[1] = -5000  # channel 1: every threshold is reached
            params = {**n.params, "thresholds": table}
            n = Node(n.name, n.op, n.inputs, n.outputs, n.attrs, params, n.source)  # noqa: PLW2901
        changed_graph.append(n)
    save_graph(rebuild(graph, tuple(changed_graph)), path)
    code, found = diff(copied, capsys, "--until", "graph")
    assert code == 10
    first = stages(found)["graph"]["first"]
    assert (first["layer"], first["node"], first["channel"]) == (node.source, node.output, 1)
    assert first["pixel"] is not None


def test_a_changed_hardware_graph(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copied / "04-map" / "hardware.bwg"
    graph = load_graph(path, {"hardware": HARDWARE})
    changed(path, graph, "fc1", "bias", (7,))
    code, found = diff(copied, capsys, "--until", "hardware")
    assert code == 10
    first = stages(found)["hardware"]["first"]
    assert (first["layer"], first["channel"], first["pixel"], first["count"]) == ("fc1", 7, None, 1)
    assert abs(first["expected"] - first["got"]) == 1


def test_a_design_that_stands_still(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The block that takes nothing and gives nothing is named, not its neighbours."""
    top = copied / RTL / "tiny.sv"
    text = top.read_text()
    pins = re.search(r"\) i_conv2 \(\n.*\n(\s+\.in_valid_i\((\w+)_valid\))", text)
    assert pins is not None
    top.write_text(text.replace(pins[1], pins[1].replace(f"{pins[2]}_valid", "1'b0")))
    code, found = diff(copied, capsys)
    assert code == 10
    stage = stages(found)["rtl"]
    assert "nothing moves any more" in stage["problem"]
    assert stage["first"]["layer"] == "conv2"
    assert stage["first"]["node"] == "conv2 (matvec)"
    assert stage["first"]["got"] is None
    assert "stands still after 0 of" in stage["first"]["detail"]


def test_an_input_of_ones_own(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = np.random.default_rng(0).random((1, 8, 8)).astype(np.float32)
    np.save(tmp_path / "image.npy", image)
    np.save(tmp_path / "last.npy", np.moveaxis(image, 0, -1))
    found = []
    for name in ("image.npy", "last.npy"):
        options = ("--input", str(tmp_path / name), "--until", "hardware")
        code, one = diff(built, capsys, *options)
        assert code == 0
        found.append(one["stages"])
    assert found[0] == found[1]


def test_a_run_by_its_name_in_runs(
    copied: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As `bitwright board` takes it; the name of a recipe stays that recipe."""
    (tmp_path / "runs").mkdir()
    copied.rename(tmp_path / "runs" / "mine")
    (tmp_path / "runs" / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli.run(["diff", "mine", "--until", "quantized"]) == 8
    assert "you have not made it, or not here" in capsys.readouterr().err
    claim(Path("runs/mine"))
    assert cli.run(["diff", "mine", "--until", "quantized"]) == 0
    assert cli.run(["explain", "mine"]) == 0
    assert cli.run(["diff", "empty"]) == 2
    assert "no recipe 'empty'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--index", "100000"), "no test image 100000"),
        (("--index", "-1"), "no test image -1"),
        (("--input", "missing.npy"), "is no .npy file"),
        (("--input", "shape.npy"), "save one image of shape"),
        (("--input", "nan.npy"), "NaN"),
        (("--input", "text.npy"), "is no .npy file"),
    ],
)
def test_inputs_that_cannot_be(
    built: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("shape.npy", np.zeros((3, 3)))
    np.save("nan.npy", np.full((1, 8, 8), np.nan))
    Path("text.npy").write_text("no array")
    assert cli.run(["diff", str(built), *options]) == 4
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


def test_a_run_that_has_no_rtl_yet(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "04-map" / "step.json").unlink()
    assert cli.run(["diff", str(copied)]) == 8
    assert "the step map has not been done" in capsys.readouterr().err
    assert cli.run(["diff", str(copied), "--until", "graph"]) == 0


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("02-quantize/quantized.pt", 4),
        ("03-lower/graph.bwg", 4),
        ("04-map/hardware.bwg", 4),
        ("04-map/rtl/design.json", 5),
        ("04-map/rtl/tiny.sv", 5),
    ],
)
def test_damaged_files(
    copied: Path, capsys: pytest.CaptureFixture[str], name: str, code: int
) -> None:
    (copied / name).write_bytes(b"\x00\xff junk")
    assert cli.run(["diff", str(copied)]) == code
    told = capsys.readouterr().err
    assert Path(name).name in told
    assert "Traceback" not in told
