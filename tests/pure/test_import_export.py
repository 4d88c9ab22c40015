# SPDX-License-Identifier: Apache-2.0
"""`bitwright import` and `bitwright export`: what they write, and what they refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.onnx_models import File

import bitwright
from bitwright.base.claims import claimed
from bitwright.base.errors import RunError
from bitwright.base.locks import exclusive
from bitwright.cli import entry as cli
from bitwright.interop.onnx.reader import Imported, load
from bitwright.ir import INTEGER, load_graph
from bitwright.pipeline import import_network

SOURCE = Path(bitwright.__file__).parents[1]


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    """A small classifier with a residual."""
    net = File("N", 2, 4, 4)
    first = net.quant(4, 0.25)
    rng = np.random.default_rng(0)
    net.op("Conv", net.const(rng.integers(-3, 4, (2, 2, 3, 3))), pads=(1, 1, 1, 1))
    net.op("Relu")
    net.raw("Add", net.quant(3, 0.5, signed=0), first)
    net.quant(4, 0.5)
    net.op("GlobalAveragePool")
    net.op("Flatten")
    net.quant(6, 0.125)
    net.op("MatMul", net.const(rng.integers(-3, 4, (2, 3))))
    path = tmp_path / "small net.onnx"
    path.write_bytes(net.model())
    return path


def test_import_says_what_became_of_every_node(
    tmp_path: Path, onnx_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.run(["import", str(onnx_file), "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((out / "import.json").read_text())
    graph = load_graph(out / "graph.bwg", {"integer": INTEGER})
    assert graph == load(onnx_file).graph and report["digest"] == graph.digest
    ops = [row["op"] for row in report["nodes"]]
    assert ops == [
        "Quant", "Conv", "Relu", "Quant", "Add", "Quant", "GlobalAveragePool", "Flatten", "Quant",
        "MatMul",
    ]  # fmt: skip
    became = {row["op"]: row["became"] for row in report["nodes"]}
    assert became["Relu"] == "folded" and became["Add"].startswith("add ")
    assert report["steps_elsewhere_in_float32"] == 0 and report["notes"] == []


def test_what_a_quantized_file_says_itself_is_not_asked(
    tmp_path: Path, onnx_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--input-shape=4x4x2", "--model=lenet", "--classes=3", "--output=x"):
        assert cli.run(["import", str(onnx_file), "--out", str(tmp_path / "out"), option]) == 2
        said = capsys.readouterr().err
        assert option.partition("=")[0] in said and "says that itself" in said
    assert not (tmp_path / "out").exists()


def test_an_import_that_ends_while_another_reads_its_file_is_kept(
    tmp_path: Path, onnx_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, out = tmp_path / "other.onnx", tmp_path / "out"
    other.write_bytes(onnx_file.read_bytes())
    again: list[Path] = []

    def overtaken(path: Path, **options: Any) -> Imported:
        if not again:
            again.append(other)
            import_network.import_graph(other, out)
        return load(path, **options)

    monkeypatch.setattr("bitwright.interop.onnx.reader.load", overtaken)
    with pytest.raises(RunError, match=r"exists already: an import with graph\.bwg"):
        import_network.import_graph(onnx_file, out)
    assert json.loads((out / "import.json").read_text())["file"] == "other.onnx"
    import_network.import_graph(onnx_file, out, force=True)
    assert json.loads((out / "import.json").read_text())["file"] == "small net.onnx"
    assert sorted(entry.name for entry in out.iterdir()) == ["graph.bwg", "import.json"]


@pytest.mark.parametrize(
    ("arguments", "message", "advice"),
    [
        (["net.prototxt"], "net.prototxt: cannot be read", "check the path"),
        (["there.prototxt"], "there.caffemodel: cannot be read", "--weights"),
        (["there.pt"], "is no model, only its weights", "--model"),
        (["there.pt", "--model", "mnist_cnn"], "needs the shape of its images", "--input-shape"),
        (["net.pt", "--model", "x", "--input-shape", "2x2x1"], "net.pt: cannot be read", "path"),
    ],
)
def test_what_is_missing_is_said_before_torch_is_loaded(
    tmp_path: Path, arguments: list[str], message: str, advice: str
) -> None:
    for name in ("there.prototxt", "there.pt"):
        (tmp_path / name).write_text("")
    code = (
        "import sys\n"
        "from bitwright.cli import entry\n"
        "code = entry.run(['import', *sys.argv[1:], '--out', 'out'])\n"
        "sys.exit('torch was loaded' if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, check=False, env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert done.returncode in (2, 4), done.stderr
    said, hint = done.stderr.splitlines()
    assert message in said and advice in hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["qonnx", "qdq", "artifact"])
def test_export_of_an_imported_file(
    tmp_path: Path, onnx_file: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["import", str(onnx_file), "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    target = tmp_path / f"result-{kind}"
    arguments = ["export", str(tmp_path / "out"), "--format", kind, "--out", str(target), "--json"]
    assert cli.run(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["compared_values"] > 0 and result["digest"] == load(onnx_file).graph.digest
    for name, size in result["bytes"].items():
        path = target / name if kind == "artifact" else target
        assert path.stat().st_size == size


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["import", "FILE", "--out", "o", "--simulate", "2"], 2, "--target"),
        (["import", "FILE", "--out", "o", "--input-type", "int99"], 9, "int99"),
        (["import", "absent.onnx", "--out", "o"], 4, "cannot be read"),
        (["export", "absent", "--out", "o"], 8, "does not exist"),
        (["export", ".", "--out", "o"], 8, "no integer graph"),
    ],
)
def test_refusals(
    tmp_path: Path,
    onnx_file: Path,
    arguments: list[str],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert cli.run([str(onnx_file) if a == "FILE" else a for a in arguments]) == code
    assert said in capsys.readouterr().err
    assert not list((tmp_path / "here").iterdir())


def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path, onnx_file: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    argv = ["import", str(onnx_file), "--out", str(tmp_path / "mine")]
    assert cli.run(argv) == 8 and cli.run([*argv, "--force"]) == 8
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("kind", ["qonnx", "artifact"])
def test_what_is_there_is_replaced_by_force_alone(
    kind: str, tmp_path: Path, onnx_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An earlier import, a file that was exported before, or anybody's: named, and kept."""
    imported, exported = str(tmp_path / "in"), tmp_path / "out"
    calls = [
        (["import", str(onnx_file), "--out", imported], "in: exists already: an import with graph"),
        (
            ["export", imported, "--format", kind, "--out", str(exported)],
            "out: exists already: " + ("a file of" if kind == "qonnx" else "holds golden.bin"),
        ),
    ]
    for argv, said in calls:
        assert cli.run(argv) == 0
        before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
        capsys.readouterr()
        assert cli.run(argv) == 8
        told = capsys.readouterr().err
        assert said in told and "--force" in told
        assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
        assert cli.run([*argv, "--force"]) == 0


@pytest.mark.parametrize("target", [[], ["--target", "ecp5-25k"]])
def test_what_another_command_works_in_is_not_replaced(
    tmp_path: Path, onnx_file: Path, target: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    argv = ["import", str(onnx_file), "--out", str(out), *target]
    assert cli.run(argv) == 0
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    with exclusive(out / ".lock", remove=True):
        assert cli.run([*argv, "--force"]) == 8
    assert "is in use by process" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    assert cli.run([*argv, "--force"]) == 0


def test_what_another_export_is_about_to_write_is_not_overwritten(
    tmp_path: Path, onnx_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["import", str(onnx_file), "--out", str(tmp_path / "in")]) == 0
    argv = ["export", str(tmp_path / "in"), "--format", "qonnx", "--out", str(tmp_path / "o.onnx")]
    with claimed(tmp_path / "o.onnx"):
        assert cli.run(argv) == 8
    assert "is about to be written: is in use by process" in capsys.readouterr().err
    assert not (tmp_path / "o.onnx").exists()
    assert cli.run(argv) == 0


def test_an_export_needs_no_cache_folder(
    tmp_path: Path, onnx_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.run(["import", str(onnx_file), "--out", str(tmp_path / "in")]) == 0
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr("bitwright.base.files.cache_root", lambda: tmp_path / "file")
    with claimed(tmp_path / "o.onnx"):
        pass
    (tmp_path / "o.onnx").write_text("there")
    with pytest.raises(RunError, match="exists already"), claimed(tmp_path / "o.onnx"):
        pass


def test_a_bad_file_leaves_nothing(tmp_path: Path, onnx_file: Path) -> None:
    onnx_file.write_bytes(onnx_file.read_bytes()[:-40])
    assert cli.run(["import", str(onnx_file), "--out", str(tmp_path / "out")]) != 0
    assert not (tmp_path / "out").exists()


def test_the_file_itself_is_run_and_compared(
    tmp_path: Path, onnx_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("qonnx")
    argv = ["import", str(onnx_file), "--out", str(tmp_path / "out"), "--compare", "5", "--force"]
    assert cli.run([*argv, "--json"]) == 0
    said = capfd.readouterr()
    assert "onnxruntime" not in said.err  # its warnings are none of ours
    found = json.loads(said.out)["compared"]
    assert (found["images"], found["labels_that_differ"], found["scores_that_differ"]) == (5, 0, 0)


def test_fewer_images_are_compared_where_outputs_are_large(
    tmp_path: Path,
    onnx_file: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("qonnx")
    monkeypatch.setattr(import_network, "_COPIES", 1 << 30)
    argv = ["import", str(onnx_file), "--out", str(tmp_path / "out"), "--compare", "5", "--json"]
    assert cli.run(argv) == 0
    assert json.loads(capfd.readouterr().out)["compared"]["images"] == 1


def test_our_own_file_is_run_and_compared_too(
    tmp_path: Path, onnx_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its input holds integers, so levels are drawn."""
    pytest.importorskip("qonnx")
    first, own = tmp_path / "first", tmp_path / "own.onnx"
    assert cli.run(["import", str(onnx_file), "--out", str(first), "--json"]) == 0
    assert cli.run(["export", str(first), "--out", str(own), "--json"]) == 0
    capfd.readouterr()
    argv = ["import", str(own), "--out", str(tmp_path / "second"), "--compare", "5", "--json"]
    assert cli.run(argv) == 0
    found = json.loads(capfd.readouterr().out)["compared"]
    assert (found["images"], found["labels_that_differ"], found["scores_that_differ"]) == (5, 0, 0)
