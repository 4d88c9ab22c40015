# SPDX-License-Identifier: Apache-2.0
"""What verbs read of strangers, besides models and graphs: data with boxes, pictures of digits and
faces, runs of the papers' networks, networks for the engine and the DPU, RTL in folders.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tests.memory_peak import peak
from tests.pace import within

from bitwright.base.errors import DataError, GraphError, ModelError, RunError
from bitwright.base.figures import Resources
from bitwright.base.files import read_bytes, sha256_file
from bitwright.base.progress import no_progress
from bitwright.data.annotated import load
from bitwright.data.coco import ImageNames
from bitwright.data.decoding import Decoding
from bitwright.data.labels import BoxLabels
from bitwright.engine.compiler import compile_graph, front, network, plan
from bitwright.engine.config import ENGINES
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType, save_graph
from bitwright.papers.bnn_soc import stream
from bitwright.papers.bnn_soc.course import Look
from bitwright.papers.bnn_soc.model import Model
from bitwright.papers.bnn_soc.run_folder import COURSE, load_run, save_run
from bitwright.papers.bnn_soc.settings import Settings, initial_weights
from bitwright.papers.bnn_soc.stream import LABELS, labelled, watch
from bitwright.papers.bnn_soc.windows import Detection, detect
from bitwright.papers.dpu.architecture import load_architecture
from bitwright.papers.dpu.compiler import PlacedNode
from bitwright.papers.dpu.compiler import compile_graph as compile_for_dpu
from bitwright.papers.faces.images import FacePreprocessing, cut_face
from bitwright.pipeline import board_subject
from bitwright.pipeline.board_subject import find_subject, own_rtl
from bitwright.pipeline.steps.results import FILE, load_result
from bitwright.pipeline.steps.results_hardware import LinkRow, MapResult

MIB = 1 << 20
PIXELS = 28 * 28


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """None of what follows takes minutes, as it did."""
    with within(8):
        yield


# --- data with boxes -----------------------------------------------------------------------------


def _png() -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.eye(8, dtype=np.uint8) * 255).save(content, "PNG")
    return content.getvalue()


def _zip(path: Path, **texts: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a", "b", "c", "d"):
            archive.writestr(f"images/{name}.png", _png())
        for name, text in texts.items():
            archive.writestr(name.replace("_", "."), text)
    return path


def test_classes_of_boxes_are_not_looked_for_one_by_one(tmp_path: Path) -> None:
    """A zip of 100 kB with 100 000 classes and 400 000 boxes took minutes."""
    rows = [f"images/{'abcd'[k % 4]}.png,{59_999 - k % 2},0,0,4,4" for k in range(20_000)]
    place = _zip(
        tmp_path / "data.zip",
        classes_txt="\n".join(map(str, range(60_000))),
        boxes_csv="\n".join(["file,class,xmin,ymin,xmax,ymax", *rows]),
    )
    found = load(
        place, Decoding(grey=True), BoxLabels(), name="x", validation=0.25, test=0.25, seed=0
    )
    assert found.train.labels.shape == (2, 5_000, 5)


def test_thousands_of_images_may_have_one_name_in_many_folders() -> None:
    """Each ``file_name`` of a COCO file went through all images of that name."""
    names = [f"d{number}/x.png" for number in range(20_000)]
    known = ImageNames(names)
    assert [known.named(name, "c.json") for name in names] == names
    with pytest.raises(DataError, match="both may be"):
        known.named("x.png", "c.json")
    for name in ("e/x.png", "a/" * 9_000 + "x.png", "", "/"):
        with pytest.raises(DataError, match="no image here"):
            known.named(name, "c.json")


# --- the thesis on binarized networks ------------------------------------------------------------


def _model(classes: int = 10) -> Model:
    settings = Settings().changed(sizes=(PIXELS, 16, classes))
    return Model(settings, tuple(initial_weights(settings)), (None, None))


def test_windows_of_a_picture_are_not_held_all_at_once() -> None:
    """A black and white PNG of 100 kB, 8192 x 8192 pixels, took 5 GB and an hour."""
    white = np.full((2048, 2048), 255, np.uint8)
    assert peak(lambda: detect(_model(), white, ink=1.1)) < 40 * MIB  # the windows: 200 MiB
    with pytest.raises(DataError, match="windows; at most"):
        detect(_model(), np.full((4200, 4200), 255, np.uint8), ink=1.1)


def _detected(model: Model, picture: NDArray[np.uint8], stride: int) -> list[Detection]:
    """By the definition: the surest first, none near a surer one."""
    found = []
    for top in range(0, picture.shape[0] - 27, stride):
        for left in range(0, picture.shape[1] - 27, stride):
            window = picture[top : top + 28, left : left + 28].reshape(1, -1)
            sums = model.sums(window)[0]
            low, high = np.sort(sums)[-2:]
            if (model.settings.input_values() > 0)[window].mean() >= 0.05:
                lead = (high - low) / np.float32(16)
                found.append(Detection(top, left, int(sums.argmax()), float(lead)))
    kept: list[Detection] = []
    for one in sorted(found, key=lambda d: -d.margin):
        near = (max(abs(one.top - d.top), abs(one.left - d.left)) < 14 for d in kept)
        if one.margin >= 0.02 and not any(near):
            kept.append(one)
    return kept


@pytest.mark.parametrize("stride", [3, 5, 20])
def test_windows_near_a_surer_one_are_left_out(stride: int) -> None:
    random = np.random.default_rng(stride)
    picture = (random.random((70, 90)) > 0.6).astype(np.uint8) * 255
    assert list(detect(_model(), picture, stride=stride)) == _detected(_model(), picture, stride)


def test_a_network_of_one_class_is_sure_of_nothing(tmp_path: Path) -> None:
    picture = np.full((28, 28), 255, np.uint8)
    with pytest.raises(DataError, match="one class"):
        detect(_model(1), picture)
    with pytest.raises(DataError, match="one class"):
        list(watch(_model(1), [("a.png", picture)], tmp_path))


def test_a_long_queue_is_not_read_and_written_for_each_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3000 frames took the square of their number; labels of a person stay all the same."""
    written: list[int] = []
    write = stream._write
    monkeypatch.setattr(stream, "_write", lambda *given: (written.append(1), write(*given)))
    random = np.random.default_rng(0)
    frames = [(f"{n:02}.png", random.integers(0, 256, (28, 28), np.uint8)) for n in range(40)]
    found = watch(_model(), [*frames, *frames[:20]], tmp_path, margin=10.0)
    seen = [next(found) for _ in range(30)]
    table = tmp_path / LABELS
    rows = table.read_text().splitlines()
    assert len(rows) == 31 and rows[0] == "file,label,guess" and len(written) == 1
    assert [row.split(",")[2] for row in rows[1:]] == [str(one.label) for one in seen]
    rows[3] = rows[3].replace(",,", ",7,")
    table.write_text("\n".join(rows))  # no end of the last line, as some editors leave it
    assert len(list(found)) == 30
    rows = table.read_text().splitlines()
    assert len(rows) == 41 and rows[3].split(",")[1] == "7" and len(written) == 2
    assert len(list(tmp_path.glob("*.png"))) == 40


def test_labels_of_a_queue_lie_in_it(tmp_path: Path) -> None:
    """The rows of a table elsewhere were written into the queue, which may go back."""
    queue, elsewhere = tmp_path / "queue", tmp_path / "passwords.csv"
    queue.mkdir()
    elsewhere.write_text("user,password,url\nbob,hunter2,x.org\n")
    (queue / LABELS).symlink_to(elsewhere)
    picture = np.zeros((28, 28), np.uint8)
    with pytest.raises(RunError, match="leads out of its folder"):
        list(watch(_model(), [("a.png", picture)], queue, margin=10.0))
    assert (queue / LABELS).is_symlink()
    with pytest.raises(RunError, match="leads out of its folder"):
        labelled(queue, (28, 28), 10)


def test_labels_have_some_digits(tmp_path: Path) -> None:
    (tmp_path / LABELS).write_text(f"file,label,guess\na.png,{'1' * 5000},0\n")
    with pytest.raises(DataError, match="is no class"):
        labelled(tmp_path, (28, 28), 10)


@pytest.mark.parametrize(
    "change",
    [
        {"threads": float("inf")},
        {"threads": "many"},
        {"looks": []},
        {"looks": [{"cycles": 10**400, "argmax": 0.5, "strict": 0.5, "seconds": 1.0}]},
        {"looks": [{"cycles": 1, "argmax": 0.5, "strict": 0.5, "seconds": float("nan")}]},
        {"looks": [{"cycles": 0, "argmax": 0.5, "strict": 0.5, "seconds": 1.0}]},
        {"looks": [{"cycles": 1, "argmax": 0.5, "strict": 0.5, "seconds": 10**400}]},
        {"more": 1},
    ],
)
def test_how_a_network_was_trained_is_told_in_numbers(
    change: dict[str, object], tmp_path: Path
) -> None:
    save_run(tmp_path, _model(), [Look(60, 0.5, 0.25, 1.5)], 2)
    assert load_run(tmp_path).looks == (Look(60, 0.5, 0.25, 1.5),)
    about = json.loads((tmp_path / COURSE).read_text())
    (tmp_path / COURSE).write_text(json.dumps(about | change))
    with pytest.raises(DataError, match=r"course\.json"):
        load_run(tmp_path)


# --- faces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8192, 8192), (1, 20_000)])
def test_pictures_of_faces_have_a_size(shape: tuple[int, int]) -> None:
    """As much again is put around a picture: 3 GB for one of 8192 x 8192, which takes 8 kB."""
    with pytest.raises(DataError, match="too large or too long"):
        cut_face(np.zeros(shape, np.uint8), FacePreprocessing())


@pytest.mark.parametrize("far", [3e5, 1e308])
def test_landmarks_of_faces_lie_in_reach(far: float) -> None:
    picture = np.zeros((100, 100), np.uint8)
    with pytest.raises(DataError, match=r"landmarks .*"):
        cut_face(picture, FacePreprocessing(), ((0.0, 0.0), (far, 0.0), (far / 2, far)))


# --- networks for the DPU and the engine ---------------------------------------------------------


def _start(shape: tuple[int, int, int]) -> tuple[GraphBuilder, str]:
    builder, kind = GraphBuilder("g", INTEGER), parse_format("uint4")
    return builder, builder.input("x", TensorType(shape, kind, (1.0,), 0, 15))


def _threshold(builder: GraphBuilder, edge: str, first: int = 1) -> str:
    params = {"thresholds": first + np.arange(15)[None]}
    return builder.add("threshold", (edge,), attrs={"format": "uint4"}, params=params)


class Counted(tuple[PlacedNode, ...]):
    """Nodes, and how often somebody went through all of them."""

    times = 0

    def __iter__(self) -> Iterator[PlacedNode]:
        Counted.times += 1
        return super().__iter__()


def test_parts_of_a_network_for_the_dpu_are_listed_once() -> None:
    """For each part all nodes were gone through: 20 000 by 40 000 for a graph of 300 kB."""
    builder, edge = _start((1, 1, 1))
    for _ in range(100):
        edge = _threshold(builder, edge)
        edge = builder.add("max_pool", (edge,), attrs={"kernel": (1, 1), "stride": (1, 1)})
    compiled = compile_for_dpu(builder.finish(edge), load_architecture("zcu102"))
    parts = replace(compiled, nodes=Counted(compiled.nodes)).to_json()["parts"]
    assert len(parts) == 200 and all(len(part["nodes"]) == 1 for part in parts)
    assert Counted.times < 5


def test_no_more_parts_for_the_dpu_are_written_than_a_folder_is_for(tmp_path: Path) -> None:
    """A graph of 82 kB was 10 000 files, each flushed to the disk."""
    builder, edge = _start((1, 1, 1))
    for _ in range(4):
        edge = _threshold(builder, edge)
        edge = builder.add("max_pool", (edge,), attrs={"kernel": (1, 1), "stride": (1, 1)})
    compiled = compile_for_dpu(builder.finish(edge), load_architecture("zcu102"))
    many = replace(compiled, parts=compiled.parts * 200)
    with pytest.raises(GraphError, match="1600 parts would be as many files"):
        many.save(tmp_path / "many")
    assert not (tmp_path / "many").exists()
    compiled.save(tmp_path / "some")
    assert len(list((tmp_path / "some").iterdir())) == 9


def _conv(builder: GraphBuilder, edge: str, channels: int) -> str:
    attrs = {"groups": 1, "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}
    weight = np.full((channels, 1, 1, channels), 7)
    return builder.add(
        "conv", (edge,), attrs={**attrs, "weight_format": "int4"}, params={"weight": weight}
    )


def _pools_and_thresholds() -> Graph:
    """Sums of more than 8 bits, pools behind each other, and many activations of the last."""
    builder, edge = _start((2, 2, 16))
    edge = _conv(builder, edge, 16)
    border = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1)}
    for _ in range(100):
        edge = builder.add("max_pool", (edge,), attrs=border)
    return builder.finish(
        builder.add("concat", tuple(_threshold(builder, edge, k) for k in range(250)))
    )


def _weights_and_thresholds() -> Graph:
    builder, edge = _start((1, 1, 512))
    edge = _conv(builder, edge, 512)
    return builder.finish(
        builder.add("concat", tuple(_threshold(builder, edge, k) for k in range(300)))
    )


@pytest.mark.parametrize("make", [_pools_and_thresholds, _weights_and_thresholds])
def test_what_many_activations_read_is_made_again_some_times(make: Callable[[], Graph]) -> None:
    """100 kB of 300 pools and 400 thresholds became 120 000 layers; weights were copied."""
    graph = make()
    with pytest.raises(ModelError, match="layers or more of the engine"):
        compile_graph(graph, ENGINES["e256"])


def test_a_plan_is_looked_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 kB of sums that are read in the opposite order: hours, with more than the square."""
    builder, edge = _start((32, 32, 32))
    kept = []
    for _ in range(12):
        kept.append(edge)
        border = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1)}
        other = builder.add("max_pool", (edge,), attrs=border)
        edge = _threshold(builder, builder.add("add", (edge, other), attrs={"multipliers": (1, 1)}))
    for old in reversed(kept):
        edge = _threshold(builder, builder.add("add", (edge, old), attrs={"multipliers": (1, 1)}))
    graph = builder.finish(edge)
    monkeypatch.setattr(plan, "_MOST_LOOKS", 2_000)
    with pytest.raises(ModelError, match="no plan was found in 2000 looks"):
        compile_graph(graph, ENGINES["e256"])


def test_a_concatenation_of_one_value_many_times_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builder, edge = _start((1, 1, 1))
    monkeypatch.setattr(network, "_MOST_LAYERS", 1 << 20)
    graph = builder.finish(builder.add("concat", (edge,) * 20_000))
    with within(5):
        assert len(front.network_of(graph, ENGINES["e256"]).layers) == 19_999


# --- figures of a design, RTL in folders, files of the kernel -------------------------------------


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, 1e300, 1e-320])
@pytest.mark.parametrize("field", ["clock_mhz", "baud", "interval"])
def test_what_figures_are_divided_by_is_a_figure(field: str, wrong: float, tmp_path: Path) -> None:
    """`kpi --design` and `board` divide by what ``result.json`` of a stranger says."""
    nothing = Resources()
    link = LinkRow(board="b", baud=1e6, bytes_in=1, bytes_out=1, images_per_s=1)
    found = MapResult(
        target="t", clock_mhz=100, link=link, interval=10, latency=20, bottleneck="b",
        resources=nothing, capacity=nothing, blocks=(), fifos=(),
    )  # fmt: skip
    found.save(tmp_path)
    assert load_result(MapResult, tmp_path) == found
    table = json.loads(found.model_dump_json())
    (table["link"] if field == "baud" else table)[field] = wrong
    (tmp_path / FILE).write_text(json.dumps(table))
    if field == "interval" and wrong == 0:
        assert load_result(MapResult, tmp_path).interval == 0
        return
    with pytest.raises(RunError, match=field):
        load_result(MapResult, tmp_path)


@pytest.mark.parametrize("beside", ["", "step.json"])
def test_rtl_beside_no_graph_is_not_run(beside: str, tmp_path: Path) -> None:
    """`board run --simulated` compiled and ran what lay in ``map/rtl`` of any folder."""
    rtl = tmp_path / "map" / "rtl"
    rtl.mkdir(parents=True)
    (rtl / "design.json").write_text("{}")
    if beside:
        (tmp_path / "graph.bwg").write_text("")
        (tmp_path / beside).write_text("{}")
    with pytest.raises(RunError, match="has no RTL"):
        find_subject(tmp_path)


@pytest.mark.parametrize("named", ["", "map/rtl", "link"])
def test_rtl_of_a_design_folder_is_made_again_however_it_is_named(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`board run FOLDER/map/rtl --simulated` compiled and ran what lay there."""
    (tmp_path / "map" / "rtl").mkdir(parents=True)
    (tmp_path / "map" / "rtl" / "design.json").write_text("{}")
    (tmp_path / "link").symlink_to("map/rtl")
    builder = GraphBuilder("g", INTEGER)
    kind = TensorType((2,), parse_format("uint4"), (1.0,), 0, 15)
    save_graph(builder.finish(builder.input("x", kind)), tmp_path / "graph.bwg")
    monkeypatch.setattr(board_subject, "map_design", lambda *_: Path("made"))
    assert own_rtl(find_subject(tmp_path / named), no_progress) == Path("made/rtl")
    rtl = tmp_path / "own"  # but a folder of RTL is the user's
    rtl.mkdir()
    (rtl / "design.json").write_text("{}")
    assert own_rtl(find_subject(rtl), no_progress) == rtl


@pytest.mark.parametrize("link", ["map", "map/rtl"])
@pytest.mark.parametrize("named", ["", "map/rtl"])
def test_rtl_of_a_design_folder_is_made_again_wherever_it_lies(
    link: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link in the place of ``map`` made a folder of the user's own RTL of it, which was run."""
    rtl = tmp_path / "other" / "rtl"
    rtl.mkdir(parents=True)
    (rtl / "design.json").write_text("{}")
    (tmp_path / "map").mkdir() if link != "map" else None
    (tmp_path / link).symlink_to(rtl.parent if link == "map" else rtl)
    builder = GraphBuilder("g", INTEGER)
    kind = TensorType((2,), parse_format("uint4"), (1.0,), 0, 15)
    save_graph(builder.finish(builder.input("x", kind)), tmp_path / "graph.bwg")
    monkeypatch.setattr(board_subject, "map_design", lambda *_: Path("made"))
    assert own_rtl(find_subject(tmp_path / named), no_progress) == Path("made/rtl")
    (tmp_path / "step.json").write_text("{}")  # no design folder any more, and no RTL of the user's
    with pytest.raises(RunError, match=r"has no RTL|no design folder"):
        own_rtl(find_subject(tmp_path / named), no_progress)


@pytest.mark.parametrize("place", ["map/devices/chain", "map/rtl/sub", "implement", "report/rtl"])
def test_other_rtl_in_a_design_folder_is_not_run(place: str, tmp_path: Path) -> None:
    """Only ``map/rtl`` was made again; ``map/devices/chain``, say, was run as it lay there."""
    rtl = tmp_path / place
    rtl.mkdir(parents=True)
    (rtl / "design.json").write_text("{}")
    builder = GraphBuilder("g", INTEGER)
    kind = TensorType((2,), parse_format("uint4"), (1.0,), 0, 15)
    save_graph(builder.finish(builder.input("x", kind)), tmp_path / "graph.bwg")
    with pytest.raises(RunError, match="lies in the design folder"):
        own_rtl(find_subject(rtl), no_progress)


def test_what_only_seems_to_be_rtl_and_a_step_is_neither(tmp_path: Path) -> None:
    """With step.json it was no design folder, and with design.json RTL, which was run."""
    for name in ("graph.bwg", "step.json", "design.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(RunError, match="has no RTL"):
        find_subject(tmp_path)


@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="only root may read it")
def test_a_file_that_has_nothing_yet_has_nothing(tmp_path: Path) -> None:
    """A read that would wait gives None in Python: a traceback, and in a hash no end."""
    (tmp_path / "x").symlink_to("/proc/kmsg")
    read_bytes(tmp_path / "x", most=1 << 24)
    assert len(sha256_file(tmp_path / "x")) == len(hashlib.sha256().hexdigest())
