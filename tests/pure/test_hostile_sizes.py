# SPDX-License-Identifier: Apache-2.0
"""Small files that parsers make large things of, and files that only say that they are large."""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from bitwright.base import files
from bitwright.base.described import Strict, validated
from bitwright.base.errors import BitwrightError, DataError, ToolError
from bitwright.base.files import MOST_VALUES, parse_json, parse_toml, read_bytes, read_records
from bitwright.build.netlist_edits import edit_netlist
from bitwright.build.timing import parse_report
from bitwright.build.yosys import parse_statistics
from bitwright.engine.image_table import ImageTable
from bitwright.host.description import Description
from bitwright.interop import protobuf
from bitwright.interop.caffe.files import read_caffemodel
from bitwright.interop.onnx.reader import load as load_onnx
from bitwright.interop.packed_model import load_packed_model
from bitwright.pipeline.designs.folder import parse_settings
from bitwright.pipeline.steps.results import LowerResult
from bitwright.pipeline.steps.results_hardware import EngineExplanation, MapResult
from bitwright.report.record import Report
from bitwright.sim.spec import Design, load_design

MIB = 1 << 20


@pytest.mark.parametrize("item", ['{"":0}', "0", "[]"])
def test_descriptions_have_a_bound_of_values(item: str) -> None:
    inside = ",".join([item] * 10)
    assert len(parse_json(f"[{inside}]")) == 10
    with pytest.raises(ValueError, match="more than 9 values"):
        parse_json(f"[{inside}]", 9)
    with pytest.raises(ValueError, match="more than 9 values"):
        parse_json(f"[{inside}]".encode(), 9)


def test_toml_has_a_bound_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=f"more than {MOST_VALUES} values"):
        parse_toml("a = [" + "0," * (MOST_VALUES + 2) + "]")


class Many(Strict):
    a: int
    b: int
    c: int
    d: int


class Numbers(Strict):
    numbers: list[int]


class Entries(Strict):
    before: int
    entries: tuple[Many, ...] = ()
    others: tuple[Many, ...] | None = None
    kept: dict[str, list[tuple[int, int]]] | None = None
    table: Mapping[str, Many] = {}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('"entries": [{}, {}, {}]', ["entries", 0]),
        ('"others": [{"a": 1, "b": 1, "c": 1, "d": 1}, {}, {}]', ["others", 1]),
        ('"kept": {"x": [[], [], []]}', ["kept", "x", 0]),
        ('"table": {"x": {}, "y": {}}', ["table", "x"]),
    ],
)
def test_of_a_list_the_first_wrong_entry_is_told(said: str, told: list[str | int]) -> None:
    """Three bytes, ``{},``, are as many mistakes of a kilobyte as an entry has fields."""
    with pytest.raises(ValidationError) as caught:
        validated(Entries, f"{{{said}}}")
    found = [item["loc"] for item in caught.value.errors()]
    assert {place[0] for place in found} == {"before", told[0]}
    assert {place[: len(told)] for place in found if place[0] == told[0]} == {tuple(told)}


@pytest.mark.parametrize(
    "kind", [ImageTable, LowerResult, MapResult, EngineExplanation, Report, Design, Description]
)
def test_of_images_and_records_the_first_wrong_entry_is_told(kind: type[BaseModel]) -> None:
    """The table of an engine's image took 3 GB for 1 MB, and so did results of runs."""
    empty = ",".join(["{}"] * 1000)
    fields = [name for name, field in kind.model_fields.items() if "[" in str(field.annotation)]
    said = ", ".join(f'"{name}": [{empty}]' for name in fields)
    with pytest.raises(ValidationError) as caught:
        validated(kind, f"{{{said}}}")
    assert caught.value.error_count() < 100


def test_of_too_many_values_none_is_told(tmp_path: Path) -> None:
    """Each wrong one would be an error of a kilobyte: 33 GB for a file of 64 MiB."""
    assert validated(Numbers, '{"numbers": [1, 2]}').numbers == [1, 2]
    many = '{"numbers": [' + '"",' * (MOST_VALUES + 1) + '""]}'
    with pytest.raises(ValueError, match=f"more than {MOST_VALUES} values") as caught:
        validated(Numbers, many)
    assert len(str(caught.value)) < 1000
    (tmp_path / "design.json").write_text('{"files": [' + "0," * (MOST_VALUES + 1) + "0]}")
    with pytest.raises(BitwrightError, match=f"more than {MOST_VALUES} values"):
        load_design(tmp_path)


def test_the_first_mistakes_are_explained() -> None:
    """Nine hundred thousand took minutes."""
    wrong = {"hardware": {"weights": {"external": [0] * 100_000}}}
    with pytest.raises(BitwrightError, match=r"hardware\.weights\.external"):
        parse_settings(json.dumps(wrong), "hardware.json")


def _head(folder: Path) -> Path:
    head = b"[" + b'{"":0},' * (MOST_VALUES // 2 + 9) + b"0]"
    body = b"BWQ2" + struct.pack("<I", len(head)) + head
    (folder / "x.bwq").write_bytes(body + struct.pack("<I", zlib.crc32(body)))
    return folder / "x.bwq"


def _length(number: int) -> bytes:
    found = b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def _nodes(folder: Path) -> Path:
    """Nodes that say nothing, and an output."""
    pytest.importorskip("onnx")
    graph = b"\x0a\x00" * (4 * MIB) + b"\x62\x00"
    (folder / "x.onnx").write_bytes(b"\x08\x08\x3a" + _length(len(graph)) + graph)
    return folder / "x.onnx"


def _layers(folder: Path) -> Path:
    (folder / "x.caffemodel").write_bytes(b"\xa2\x06\x00" * (4 * MIB))
    return folder / "x.caffemodel"


@pytest.mark.parametrize(
    ("make", "read", "says"),
    [
        (_head, load_packed_model, f"more than {MOST_VALUES} values"),
        (_nodes, load_onnx, "more memory than a file with tensors of its size"),
        (_layers, read_caffemodel, "more memory than a file with tensors of its size"),
    ],
)
def test_what_a_parser_makes_of_a_file_is_bounded(
    make: Callable[[Path], Path], read: Callable[[Path], object], says: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=says):
        read(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


def test_a_large_model_is_parsed_all_the_same() -> None:
    """Real tensors take little more than their bytes."""
    onnx = pytest.importorskip("onnx")
    tensor = onnx.TensorProto(data_type=1, dims=[2 * MIB], raw_data=bytes(8 * MIB))
    body = onnx.ModelProto(graph=onnx.GraphProto(initializer=[tensor])).SerializeToString()
    assert len(body) > protobuf._SMALL
    found = protobuf.parsed(onnx.ModelProto, body, "w", broken="b", hint="h")
    assert found.graph.initializer[0].raw_data == tensor.raw_data


def test_no_file_is_read_without_a_bound(tmp_path: Path) -> None:
    """A file with a hole takes no place on the disk, whatever it says."""
    path = tmp_path / "hole.bwq"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)
    for read in (load_packed_model, read_bytes):
        with pytest.raises(DataError, match=f"has more than {files.MOST_DATA} bytes"):
            read(path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"modules": []}', '{"modules": {"t": {"cells": {"c": 3}}}}', "[" * 100_000, "\xff"],
)
def test_netlists_that_are_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "netlist.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ToolError, match="the netlist cannot be read"):
        edit_netlist(path, "ecp5")


def test_numbers_that_are_none_in_what_tools_say() -> None:
    report = {"fmax": {}, "critical_paths": [],
              "utilization": {"LUT": {"used": float("inf"), "available": 1}}}  # fmt: skip
    with pytest.raises(ToolError, match="the timing report cannot be read"):
        parse_report(json.dumps(report), where="r")
    with pytest.raises(ToolError, match="the statistics cannot be read"):
        parse_statistics('{"design": {"num_cells_by_type": {"LUT4": 1e999}}}', where="s")


def test_a_process_that_confines_itself() -> None:
    """Memory and time of the processor end it, not us."""
    place = Path(files.__file__).parent / "tools" / "confine.py"
    start = f"import runpy; c = runpy.run_path({str(place)!r}); c['confine'](64 << 20, 1); "

    def ended(code: str) -> int:
        command = [sys.executable, "-I", "-c", start + code]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode

    assert ended("x = bytes(1 << 20)") == 0
    assert ended("x = bytes(1 << 30)") == 1
    assert ended("\nwhile True: pass") < 0


def test_records_have_a_bound_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("{}\n" * (MOST_VALUES + 1))
    with pytest.raises(DataError, match=f"more than {MOST_VALUES} lines"):
        read_records(path, dict, "hint")
    seen: list[object] = []
    path.write_text("{}\n[]\n" + "{}\n" * 1000)
    with pytest.raises(DataError, match="a line is no JSON object"):
        read_records(path, seen.append, "hint")
    assert len(seen) == 1  # the rest is not looked at
