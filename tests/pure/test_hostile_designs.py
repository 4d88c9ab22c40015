# SPDX-License-Identifier: Apache-2.0
"""Design folders and boards of strangers: nothing of them is run, read without end or believed."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.pure.test_board_protocol import ToyBoard, describe, session

from bitwright.base import noted
from bitwright.base.errors import (
    BitwrightError,
    DataError,
    GraphError,
    RecipeError,
    RunError,
    ToolError,
)
from bitwright.build.soc import driver_header
from bitwright.data.annotated import _MOST_CELLS
from bitwright.data.labels import BoxLabels, LabelKind, MapLabels, ValueLabels
from bitwright.data.load import load_dataset
from bitwright.data.preprocessing import Preprocessing
from bitwright.formats import parse_format
from bitwright.host.board_files import c_header
from bitwright.host.description import FILE, read_description
from bitwright.host.protocol import Flags, Packet, Reply, reply
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType, footprint
from bitwright.ir.footprint import MOST_OF_A_FILE
from bitwright.ir.levels import check_levels
from bitwright.pipeline.designs import folder as designs
from bitwright.pipeline.designs.folder import Design, DesignSettings, open_design, parse_settings
from bitwright.pipeline.designs.steps import diff_design
from bitwright.pipeline.export_network import export_graph, read_graph
from bitwright.pipeline.recipe_hardware import HardwareSection, hardware_facts
from bitwright.pipeline.steps.levels import LEVELS, save_levels
from bitwright.sim.spec import Design as Rtl
from bitwright.sim.spec import Port

GIB = 1 << 30
FACTS = {"a": 1}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user of its own for each test."""
    _other_user(monkeypatch, tmp_path / "cache")
    yield
    noted._HERE.clear()


def _other_user(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("BITWRIGHT_CACHE", str(cache))
    noted._HERE.clear()


def _graph(side: int = 2, grown: int = 1) -> Graph:
    builder, kind = GraphBuilder("g", INTEGER), parse_format("uint4")
    x = builder.input("x", TensorType((side, side, 1), kind, (1.0,), 0, 15))
    return builder.finish(builder.add("upsample", (x,), attrs={"factor": (grown, grown)}))


def _design(folder: Path, graph: Graph | None = None, **settings: Any) -> Design:
    folder.mkdir(parents=True, exist_ok=True)
    return Design(folder, graph or _graph(), DesignSettings.model_validate(settings))


def _make(text: str) -> Any:
    def make(folder: Path) -> None:
        (folder / "rtl").mkdir()
        (folder / "rtl" / "top.sv").write_text(text)

    return make


# --- what a step has made ------------------------------------------------------------------------


def test_a_step_that_this_user_has_made_is_not_made_again(tmp_path: Path) -> None:
    design = _design(tmp_path / "d")
    place = design.step("map", FACTS, _make("ours"))
    noted._HERE.clear()  # another process of the same user
    assert design.step("map", FACTS, _make("again")) == place == design.done("map", FACTS)
    assert (place / "rtl" / "top.sv").read_text() == "ours"
    assert design.done("map", {"a": 2}) is None and design.done("simulate", FACTS) is None
    moved = place.parent.rename(tmp_path / "moved")
    assert replace(design, folder=moved).done("map", FACTS) == moved / "map"


@pytest.mark.parametrize("change", ["text", "file", "link", "whole"])
def test_a_step_of_a_stranger_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    design = _design(tmp_path / "d")
    place = design.step("map", FACTS, _make("ours"))
    source = place / "rtl" / "top.sv"
    if change == "text":
        source.write_text("evil")  # as long as ours
    elif change == "file":
        (place / "rtl" / "more.sv").write_text("evil")
    elif change == "link":
        source.rename(tmp_path / "top.sv")
        source.symlink_to(tmp_path / "top.sv")
    else:  # all of it, its key and names included, came from somebody else
        _other_user(monkeypatch, tmp_path / "other")
    assert design.done("map", FACTS) is None
    design.step("map", FACTS, _make("mine"))
    assert [p.name for p in sorted(place.rglob("*.sv"))] == ["top.sv"]
    assert source.read_text() == "mine" and not source.is_symlink()


def test_links_in_the_place_of_a_step_lead_nowhere(tmp_path: Path) -> None:
    design, victim = _design(tmp_path / "d"), tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    for name in ("map", ".map.partial"):
        (tmp_path / "d" / name).symlink_to(victim)
    place = design.step("map", FACTS, _make("ours"))
    assert not place.is_symlink() and [f.name for f in victim.iterdir()] == ["file"]


def test_a_step_without_a_cache_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    _other_user(monkeypatch, tmp_path / "file" / "cache")
    design = _design(tmp_path / "d")
    design.step("map", FACTS, _make("ours"))
    assert design.done("map", FACTS) is not None
    noted._HERE.clear()  # the next process cannot know
    assert design.done("map", FACTS) is None


def test_files_without_end_in_a_step_are_not_read(tmp_path: Path) -> None:
    place = tmp_path / "d" / "simulate"
    place.mkdir(parents=True)
    with (place / "key.json").open("wb") as file:
        file.truncate(60 * GIB)
    assert _design(tmp_path / "d").done("simulate", FACTS) is None


@pytest.mark.parametrize("field", ["target", "folding_config_file"])
def test_files_without_end_that_settings_name_are_not_read(tmp_path: Path, field: str) -> None:
    path = tmp_path / "big.toml"
    with path.open("wb") as file:
        file.truncate(60 * GIB)
    with pytest.raises(DataError, match="has more than"):
        hardware_facts(HardwareSection.model_validate({field: str(path)}))


def _named(folder: Path, setting: str, path: Path) -> Path:
    section, key = setting.split(".")
    _design(folder).save()
    values = {section: {key: str(path)}}
    if key == "engine":
        values[section]["kind"] = "engine"
    (folder / "hardware.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("hardware.target", "own.toml"),
        ("hardware.target", "own"),
        ("hardware.engine", "own.json"),
        ("hardware.folding_config_file", "own.json"),
        ("implement.board", "own.toml"),
    ],
)
def test_settings_name_no_file_that_their_user_has_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, name: str
) -> None:
    path = tmp_path / name
    path.write_text('key = "hunter2"')
    folder = _named(tmp_path / "d", setting, path)
    with pytest.raises(RunError, match=f"{setting} names .* outside") as error:
        open_design(folder)
    assert "hunter2" not in str(error.value)
    open_design(folder, [f"{setting}={path}"])
    noted._HERE.clear()  # another process of the same user
    open_design(folder)
    _other_user(monkeypatch, tmp_path / "elsewhere")
    with pytest.raises(RunError, match="outside"):
        open_design(folder, ["seed=1"])
    path = folder / name
    path.write_text("")
    open_design(_named(folder, setting, path))


def test_who_saves_a_design_names_its_files(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("")
    _design(tmp_path / "d", hardware={"target": str(path)}).save()
    open_design(tmp_path / "d")


@pytest.mark.parametrize(
    "settings",
    [{"stall_probability": 5e-324}, {"images": 100_000_000}, {"stall_images": 100_000_000}],
)
def test_proofs_of_no_stalls_and_of_years_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(RecipeError, match=f"simulate.{next(iter(settings))}"):
        parse_settings({"simulate": settings}, "hardware.json")


# --- frames --------------------------------------------------------------------------------------


def test_random_frames_are_as_many_as_fit_into_a_gibibyte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitwright.ir.footprint.MOST_OF_A_FILE", 1 << 20)
    assert MOST_OF_A_FILE == GIB
    design = _design(tmp_path / "d", _graph(64), simulate={"images": 1_000_000})
    frames = design.frames()["x"]
    assert 1 <= len(frames) and frames.nbytes < 1 << 20
    assert len(_design(tmp_path / "e", _graph(256), simulate={"images": 20}).frames()["x"]) == 1


def test_real_frames_whose_outputs_fill_the_memory_are_refused(tmp_path: Path) -> None:
    levels = {"x": np.zeros((1000, 2, 2, 1), np.int64)}
    design = replace(_design(tmp_path / "d", _graph(2, 1024)), levels=levels)
    with pytest.raises(DataError, match="GiB, at most"):
        design.frames()
    few = designs.changed(design.settings, ["simulate.images=10"])
    assert len(replace(design, settings=few).frames()["x"]) == 10


def test_levels_of_64_bits_without_a_sign_do_not_wrap() -> None:
    kind = TensorType((2,), parse_format("int4"), (1.0,), -8, 7)
    with pytest.raises(GraphError, match="leave the interval"):
        check_levels("x", kind, np.array([[2**64 - 3, 1]], np.uint64))
    assert check_levels("x", kind, np.array([[3, 1]], np.uint64)).dtype == np.int64


# --- descriptions of boards ----------------------------------------------------------------------

TABLE = [[0] * 256]
WRONG: list[tuple[tuple[str | int, ...], Any]] = [
    (("clock_mhz",), 1e308), (("clock_mhz",), 1 << 31), (("baud",), float("inf")),
    (("buffer_bytes",), 1 << 40), (("interval",), -1), (("latency",), 10**30),
    (("input", "shape"), [-5]), (("input", "shape"), [10**6, 10**6]), (("input", "shape"), [41]),
    (("input", "port", "width"), 17), (("input", "port", "beats"), 1 << 40),
    (("input", "scale"), [float("nan")]), (("outputs", 0, "port", "lane_bits"), 255),
    (("outputs", 0, "port", "codes"), "e4m3"), (("outputs", 0, "shape"), []),
    (("preprocessing",), {"size": [65536, 65536], "channels": 1, "levels": TABLE}),
    (("preprocessing",), {"size": [8, 8], "channels": 1, "levels": TABLE}),
    (("preprocessing",), {"size": [8, 5], "channels": 1, "levels": [[]]}),
    (("preprocessing",), {"size": [8, 5], "channels": 1, "levels": [[1 << 40] * 256]}),
    (("preprocessing",), {"size": [8, 5], "channels": 1, "levels": TABLE * 2}),
    (("preprocessing",), {"size": [8, 5], "channels": 1, "levels": TABLE, "short_side": 10**9}),
    (("preprocessing",), {"size": [8, 5], "channels": 1, "levels": TABLE, "fit": "middle",
                          "short_side": 7}),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value"), WRONG, ids=lambda v: str(v)[:40])
def test_descriptions_that_cannot_be_are_refused(
    tmp_path: Path, place: tuple[str | int, ...], value: Any
) -> None:
    fields = json.loads(describe().to_json())
    inner = fields
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / FILE).write_text(json.dumps(fields))
    with pytest.raises(GraphError, match=f"{place[0]}|scores"):
        read_description(tmp_path / FILE)


def test_levels_are_of_a_graph_with_one_input(tmp_path: Path) -> None:
    """ValueError, wherever such a folder was opened."""
    builder, kind = GraphBuilder("g", INTEGER), parse_format("uint4")
    edges = [builder.input(e, TensorType((2, 2, 1), kind, (1.0,), 0, 15)) for e in "xy"]
    _design(tmp_path, builder.finish(builder.add("add", tuple(edges)))).save()
    levels = np.zeros((1, 2, 2, 1), np.int64)
    save_levels(tmp_path, levels, {"scores": levels})
    with pytest.raises(GraphError, match="has 2 inputs"):
        open_design(tmp_path)
    (tmp_path / LEVELS).unlink()
    np.save(tmp_path / "frame.npy", levels[0])
    with pytest.raises(GraphError, match="has 2 inputs"):
        diff_design(open_design(tmp_path), file=tmp_path / "frame.npy", until="hardware")


@pytest.mark.parametrize("field", ["clock_mhz", "rate_clock_mhz"])
@pytest.mark.parametrize("clock", [1e-308, 1e300])
def test_clocks_of_a_design_can_be_computed_with(field: str, clock: float) -> None:
    """What lies in a cycle of 10^308 ns was counted: OverflowError."""
    text = json.dumps({"hardware": {field: clock, "target_fps": 1.0}})
    with pytest.raises(RecipeError, match=field):
        parse_settings(text, "hardware.json")


def test_a_description_comes_back_as_it_was_written(tmp_path: Path) -> None:
    how = Preprocessing(size=(8, 5), channels=1, levels=((3,) * 256,))
    whole = describe().model_copy(update={"preprocessing": how})
    (tmp_path / FILE).write_text(whole.to_json())
    assert read_description(tmp_path / FILE) == whole


def test_names_are_no_code_in_headers_for_c() -> None:
    evil = '"); system("touch HARMED"); //\\\n'
    port = Port(name="y", tensor=evil, width=8, lane_bits=8, lanes=1, beats=1)
    output = describe().outputs[0].model_copy(update={"name": evil})
    board = describe().model_copy(update={"name": evil, "outputs": (output,), "classes": (evil,)})
    rtl = Rtl(top="t", clock="c", reset="r", files=("t.sv",), inputs=(port,), outputs=(port,))
    for header in (c_header(board), driver_header(rtl, 1)):
        assert "system" in header and 'system("' not in header and "\\\n" not in header


# --- hosts ---------------------------------------------------------------------------------------


class Liar(ToyBoard):
    """Answers every packet of data with a part of an answer that is not what it must be."""

    part: tuple[int, int] = (0, 0)

    def read(self, timeout: float) -> bytes:
        found = super().read(timeout)
        if self.flags & Flags.OPEN and self.received:
            chunk, size = self.part
            seen = self.session, self.sequence, self.received & 0xFFFF, self.received & 0xFFFF
            lie = Packet(Reply.ANSWER, *seen, 0, chunk, 0, Flags.OPEN, 9, bytes(size))
            return reply(lie)
        return found


@pytest.mark.parametrize("part", [(0, 19), (0, 0), (1, 20), (9, 1), (65535, 20)])
def test_answers_of_another_length_are_refused(part: tuple[int, int]) -> None:
    board = Liar(describe())
    board.part = part
    with pytest.raises(ToolError, match="as part"):
        [*session(board).run([bytes(40)] * 3)]


class Loser(ToyBoard):
    """Says of every frame that its answer has been sent."""

    frames = 0

    def read(self, timeout: float) -> bytes:
        found = super().read(timeout)
        if self.flags & Flags.OPEN and self.received:
            self.frames += 3
            seen = self.session, self.sequence, self.received & 0xFFFF, self.received & 0xFFFF
            return reply(
                Packet(Reply.STATUS, *seen, self.frames & 0xFFFF, 0, 0, Flags.OPEN, 0, b"")
            )
        return found


def test_a_board_that_loses_every_answer_is_given_up() -> None:
    with pytest.raises(ToolError, match="was lost 1001 times"):
        [*session(Loser(describe())).run([bytes(40)] * 3)]


class Talker(ToyBoard):
    """Says twenty times a second that it is there, and takes nothing."""

    def read(self, timeout: float) -> bytes:
        found = super().read(timeout)
        if not self.flags & Flags.OPEN:
            return found
        self.time += 0.05
        return reply(Packet(Reply.STATUS, self.session, self.sequence, 0, 0, 0, 0, 0, Flags.OPEN, 0,
                            b""))  # fmt: skip


def test_a_board_that_talks_without_end_is_given_up() -> None:
    board = Talker(describe())
    with pytest.raises(ToolError, match="the board has got no further for 300 s, 0 of"):
        [*session(board).run([bytes(40)] * 3)]
    assert 300 < board.time < 330


@pytest.mark.parametrize("kind", ["qonnx", "qdq", "artifact"])
def test_an_export_of_a_design_folder_has_a_strangers_memory(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many levels lie in it; and so many of them are compared, not fewer."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    graph, rooms = _graph(), []
    levels = {"x": np.arange(2000 * 4).reshape(2000, 2, 2, 1) % 16}
    replace(_design(tmp_path / "d", graph), levels=levels).save()
    within = footprint.frames_within

    def seen(graph: Graph, frames: int, room: int, *args: Any, **kwargs: Any) -> int:
        rooms.append(room)
        return within(graph, frames, room, *args, **kwargs)

    for module in ("artifact.write", "onnx.export_qonnx", "onnx.export_qdq"):
        monkeypatch.setattr(f"bitwright.interop.{module}.frames_within", seen)
    monkeypatch.setattr("bitwright.base.memory.machine_memory", lambda: 64 * GIB)
    out = tmp_path / ("out" if kind == "artifact" else "out.onnx")
    done = export_graph(tmp_path / "d", kind, out)
    assert done["compared_values"] > 0
    assert rooms and max(rooms) == MOST_OF_A_FILE


# --- labels of images ----------------------------------------------------------------------------


def _labelled(path: Path, images: int, more: dict[str, bytes]) -> Path:
    small = path.with_name("small.png")
    Image.new("L", (8, 8)).save(small)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(images):
            archive.write(small, f"images/{number}.png")
        for name, body in more.items():
            archive.writestr(name, body)
    return path


def _png(width: int, height: int) -> bytes:
    """A grey PNG file of zeros, without making the picture."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes((width + 1) * height))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


HEAD, BOX = "file,class,xmin,ymin,xmax,ymax\n", "images/0.png,c,1,1,2,2\n"
MASKS = dict.fromkeys((f"masks/{n}.png" for n in range(9)), _png(4000, 4000))


@pytest.mark.parametrize(
    ("kind", "images", "more", "reason"),
    [
        (MapLabels(), 9, MASKS, "masks come from"),
        (ValueLabels(), 2, {"values.csv": b"file,v\n" + b"x,1\n" * (17 << 20)}, "more than 67"),
        (ValueLabels(), 2, {"values.csv": ("file" + ",v" * 5000).encode()}, "at most 4096"),
        (BoxLabels(), 2, {"boxes.csv": (HEAD + BOX * 40).encode()}, "cells"),
        (BoxLabels(), 300, {"boxes.csv": (HEAD + BOX * 30).encode()}, "has 30 boxes"),
        (ValueLabels(), 1, {"values.csv": b"file,v\n" + b"images/0.png,1\n" * 2}, "more than one"),
    ],
)  # fmt: skip
def test_labels_that_fill_the_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: LabelKind, images: int,
    more: dict[str, bytes], reason: str,
) -> None:  # fmt: skip
    assert _MOST_CELLS < 10_000_000  # a few hundred bytes each
    monkeypatch.setattr("bitwright.data.annotated._MOST_CELLS", 200)
    monkeypatch.setattr("bitwright.data.labels._MOST_BOXES", 8000)
    path = _labelled(tmp_path / "all.zip", images, more)
    with pytest.raises(BitwrightError, match=reason):
        load_dataset({"name": "folder", "path": str(path), "image_size": [8, 8]}, labels=kind)


@pytest.mark.parametrize("name", ["graph.bwg", "levels.npz", "hardware.json"])
def test_nothing_outside_of_a_design_folder_gets_into_what_is_made_of_it(
    name: str, tmp_path: Path
) -> None:
    """What is written goes back to a stranger, who may have left a link to a file of the user's."""
    mine, folder = tmp_path / "mine", tmp_path / "theirs"
    for place in (mine, folder):
        levels = {"x": np.arange(12).reshape(3, 2, 2, 1)}
        replace(_design(place), levels=levels).save()
    (folder / name).rename(folder / "kept")
    (folder / name).symlink_to("kept")
    open_design(folder)
    read_graph(folder)
    (folder / name).unlink()
    (folder / name).symlink_to(mine / name)
    with pytest.raises(RunError, match="is a link that leads out of its folder"):
        open_design(folder)
    if name != "hardware.json":
        with pytest.raises(RunError, match="is a link that leads out of its folder"):
            read_graph(folder)
