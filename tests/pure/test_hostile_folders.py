# SPDX-License-Identifier: Apache-2.0
"""Folders that a stranger gave away: runs, sweeps and designs. Nothing in them is waited for, read
without end, or believed.
"""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bitwright.base import archives
from bitwright.base.arrays import read_array, read_npy
from bitwright.base.errors import BitwrightError, DataError, GraphError, RecipeError, RunError
from bitwright.base.files import flush
from bitwright.base.folders import files_below, remove_folder
from bitwright.base.made import is_own
from bitwright.base.store import Store
from bitwright.build.implement import read_result
from bitwright.data import cifar, folders
from bitwright.data.decoding import Decoding
from bitwright.data.image_files import damaged_files
from bitwright.data.listing import list_images
from bitwright.explore.compare import _kind_of as kind_of_row
from bitwright.explore.study import _kind_of, _outcome
from bitwright.explore.sweep import check_folder
from bitwright.explore.sweep_axes import Axis
from bitwright.explore.sweep_table import kind_of
from bitwright.explore.variants import Variant
from bitwright.host.images import image_files
from bitwright.hw.folding import load_folding
from bitwright.jobs import run_jobs
from bitwright.jobs.job import SCHEMA, Job, JobResult
from bitwright.jobs.ray_task import answer_of
from bitwright.low_precision.costs.given import read_costs
from bitwright.papers.bnn_soc.lines import count_files
from bitwright.papers.faces.pairs import parse_pairs
from bitwright.papers.faces.recipe import load_matrix
from bitwright.papers.skynet.search.measure import _KIND as OF_A_CANDIDATE
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.recipe_yaml import load_value
from bitwright.pipeline.replan import with_earlier_plan
from bitwright.pipeline.run_files import hash_files, locked, read_record
from bitwright.pipeline.run_reuse import SharedStep
from bitwright.pipeline.steps.levels import INPUTS, LEVELS, read_levels, save_levels
from bitwright.pipeline.steps.results import LowerResult, load_result
from bitwright.report.scatter import Point, Scatter
from bitwright.sim.parts import PartsSimulator
from bitwright.sim.spec import load_design
from bitwright.train.records import read_metrics

READERS: dict[str, Callable[[Path], object]] = {
    "design.json": lambda path: load_design(path.parent),
    "partition.json": lambda path: PartsSimulator.build(path.parent),
    "result.json": lambda path: load_result(LowerResult, path.parent),
    "implemented.json": read_result,
    "folding.json": load_folding,
    "costs.json": read_costs,
    "recipe.yaml": load_recipe,
    "matrix.yaml": load_matrix,
    "plan.json": lambda path: check_folder(path.parent, "x"),
    "levels.npz": lambda path: read_levels(path.parent),
    "metrics.jsonl": read_metrics,
}


def _put(kind: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["named pipe", "device"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_not_read(name: str, kind: str, tmp_path: Path) -> None:
    _put(kind, tmp_path / name)
    with pytest.raises(
        BitwrightError, match=rf"{kind}, expected a regular file|there is no recipe"
    ):
        READERS[name](tmp_path / name)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["named pipe", "device"])
def test_what_is_no_file_is_as_if_it_were_not_there(kind: str, tmp_path: Path) -> None:
    _put(kind, tmp_path / "job" / "result.json")
    _put(kind, tmp_path / "step" / "step.json")
    _put(kind, tmp_path / "store" / "kind" / "key" / "entry.json")
    assert Job("n", "m:f", {}, tmp_path / "job").finished() is None
    assert read_record(tmp_path / "step") is None
    assert Store(tmp_path / "store").find("kind", "key") is None


@pytest.mark.parametrize("change", [{"seconds": "x"}, {"threads": math.inf}, {"cpu_seconds": -1.0},
                                    {"seconds": math.nan}, {"threads": True}])  # fmt: skip
def test_a_result_with_other_figures_does_not_count(change: Any, tmp_path: Path) -> None:
    job = Job("n", "m:f", {}, tmp_path)
    found = {"schema": SCHEMA, **job.request, "value": 1, "seconds": 1.5, "threads": 2}
    (tmp_path / "result.json").write_text(json.dumps(found))
    assert job.finished() == found
    (tmp_path / "result.json").write_text(json.dumps(found | change))
    assert job.finished() is None
    (tmp_path / "failure.json").write_text(json.dumps({"kind": "Bug", "message": {"a": 1}}))
    assert job.failure() is None


@pytest.mark.parametrize("value", [{}, None, 1, {"figures": 1}, {"figures": {"a": 1.0}},
                                   {"figures": {"a": {"value": "x", "unit": ""}}},
                                   {"figures": {"a": {"value": "1", "unit": ""}}},
                                   {"figures": {"a": {"value": math.nan, "unit": ""}}},
                                   {"figures": {"a": {"value": math.inf, "unit": ""}}},
                                   {"figures": {"a": {"value": 1e308, "unit": ""}}},
                                   {"figures": {"bits": {"value": 1, "unit": ""}}},
                                   {"figures": {"failure": {"value": 1, "unit": ""}}}])  # fmt: skip
def test_a_result_of_another_kind_does_not_count(value: Any, tmp_path: Path) -> None:
    """In a sweep's folder it was taken for figures: KeyError, TypeError, and from its plot
    ValueError, OverflowError.
    """
    job = Job("n", "m:f", {}, tmp_path, kind=kind_of((Axis("bits", (1, 2)),)))
    found = {"schema": SCHEMA, **job.request, "value": value}
    (tmp_path / "result.json").write_text(json.dumps(found))
    assert job.finished() is None
    good = {"figures": {"a": {"value": 1.5, "unit": "share", "source": "model"}}, "seconds": {}}
    (tmp_path / "result.json").write_text(json.dumps(found | {"value": good}))
    assert job.finished() == found | {"value": good}


@pytest.mark.parametrize(
    "values",
    [(1e-308, 3e-308), (1e100, 1e100), (-1e100, 1e100), (0.0, 0.0), (1.0, 1.0 + 2e-16),
     (5e-324, 0.0), (1e17, 1e17 + 16)],
)  # fmt: skip
@pytest.mark.parametrize("log", [False, True])
def test_any_figures_can_be_drawn(values: tuple[float, float], log: bool) -> None:
    """Two that hardly differ, or are tiny, ended in ZeroDivisionError."""
    points = tuple(Point("p", "s", max(value, 1e-100) if log else value, value) for value in values)
    assert "svg" in Scatter("t", "x", "y", points, log_x=log).to_svg()


@pytest.mark.parametrize(
    "figures",
    [{"latency_ms": 0}, {"latency_ms": -1}, {"interval_ms": 1e308}, {"accuracy": math.nan},
     {"accuracy": "0.5"}],
)  # fmt: skip
def test_a_candidate_of_other_figures_is_not_known(figures: Any, tmp_path: Path) -> None:
    """A time of 0 in the folder of a search ended in an error of the logarithm."""
    job = Job("n", "m:f", {}, tmp_path, kind=OF_A_CANDIDATE)
    value = {"accuracy": 0.5, "latency_ms": 2, "interval_ms": 1.5}
    found = {"schema": SCHEMA, **job.request, "value": value}
    (tmp_path / "result.json").write_text(json.dumps(found))
    assert job.finished() == found
    (tmp_path / "result.json").write_text(json.dumps(found | {"value": value | figures}))
    assert job.finished() is None


@pytest.mark.parametrize("link", ["points", "points/a", "points/a/result.json"])
def test_a_result_behind_a_link_is_none(link: str, tmp_path: Path) -> None:
    """A stranger's sweep dropped the results of the user's own, whose steps he had removed."""
    job = Job("n", "json:dumps", {"obj": 1}, tmp_path / "mine" / "points" / "a")
    found = {
        "schema": 1,
        **job.request,
        "value": "1",
        "seconds": 1.0,
        "cpu_seconds": 1,
        "threads": 1,
    }
    job.folder.mkdir(parents=True)
    (job.folder / "result.json").write_text(json.dumps(found))
    assert job.finished() == found
    place = tmp_path / "strange" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "mine" / link)
    strange = replace(job, folder=tmp_path / "strange" / "points" / "a")
    assert strange.finished() is None
    (result,) = run_jobs([strange], workers=1)
    assert result.failure is not None and "symbolic link" in result.failure.reason
    assert job.finished() == found


@pytest.mark.parametrize(
    "link", ["points", "points/a", "points/a/job.log", "points/a/logs", "points/a/logs/tensorboard"]
)
def test_a_job_writes_through_no_link(link: str, tmp_path: Path) -> None:
    """What a job said was written over the file that ``job.log`` led to, in a sweep's folder."""
    target = tmp_path / "target"
    if link.endswith("log"):
        target.write_text("mine")
    else:
        target.mkdir()
    place = tmp_path / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)
    (result,) = run_jobs([Job("n", "json:dumps", {}, tmp_path / "points" / "a")], workers=1)
    assert result.failure is not None and "symbolic link" in result.failure.reason
    assert target.read_text() == "mine" if target.is_file() else not any(target.iterdir())


def test_no_file_of_a_cluster_is_written_through_a_link(tmp_path: Path) -> None:
    """Where the machine that did a job does not see the folder, its files are put there here."""
    (tmp_path / "target").mkdir()
    job = Job("n", "m:f", {}, tmp_path / "points" / "a")
    job.folder.mkdir(parents=True)
    (job.folder / "logs").symlink_to(tmp_path / "target")
    with pytest.raises(RunError, match="symbolic link"):
        answer_of(job, ("{}", {"logs/metrics.jsonl": b"x"}))
    assert not list((tmp_path / "target").iterdir())


@pytest.mark.parametrize("link", [".shared", ".shared/steps", ".shared/steps/.locks"])
def test_a_shared_step_is_kept_behind_no_link(link: str, tmp_path: Path) -> None:
    """`--reuse` of a stranger's runs wrote steps to wherever ``.shared`` led, and dropped there
    what looked like its own and was old.
    """
    target, runs = tmp_path / "target", tmp_path / "runs"
    (target / "steps" / ".new-mine").mkdir(parents=True)
    os.utime(target / "steps" / ".new-mine", (1, 1))
    before = sorted(target.rglob("*"))
    (runs / link).parent.mkdir(parents=True, exist_ok=True)
    (runs / link).symlink_to(target)
    (runs / "a" / "01-train").mkdir(parents=True)
    (runs / "a" / "01-train" / "weights").write_text("x")
    step = SharedStep(runs, "01-train", "key", {})
    with pytest.raises(RunError, match="symbolic link"), step.lock(lambda _: None):
        step.keep(runs / "a" / "01-train")
    assert sorted(target.rglob("*")) == before


def test_a_row_is_kept_behind_no_link(tmp_path: Path) -> None:
    """Rows of a stranger's tables were written to, and dropped from, wherever their kind led."""
    (tmp_path / "target").mkdir()
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "rows").symlink_to(tmp_path / "target")
    store = Store(tmp_path / "table")
    for use in (store.find, store.keep):
        with pytest.raises(RunError, match="symbolic link"):
            use("rows", "key")
    assert not list((tmp_path / "target").iterdir())


def test_what_an_interrupted_step_left_is_gone_on_with_behind_no_link(tmp_path: Path) -> None:
    (tmp_path / "run" / ".work-02-train" / "logs").mkdir(parents=True)
    (tmp_path / "run" / ".work-02-train" / "logs" / "tensorboard").symlink_to(tmp_path)
    with pytest.raises(RunError, match="symbolic link"), locked(tmp_path / "run"):
        pass


def _deep(folder: Path, count: int) -> Path:
    """So many folders inside each other: more than Python's functions that call themselves take."""
    before = Path.cwd()
    folder.mkdir(parents=True)
    os.chdir(folder)
    try:
        for _ in range(count):
            os.mkdir("a")
            os.chdir("a")
        Path("f").write_text("")
    finally:
        os.chdir(before)
    return folder


def test_folders_inside_each_other_have_a_bound(tmp_path: Path) -> None:
    """1500 folders inside each other ended in RecursionError, wherever one was looked into."""
    folder = _deep(tmp_path / "d", 1500)
    assert not is_own(folder, "key")
    job = Job("n", "m:f", {}, tmp_path / "points" / "a")
    _deep(job.folder / "a", 1500)
    for use in (lambda: hash_files(folder), lambda: flush(folder), lambda: job.prepare(1),
                lambda: image_files([folder]), lambda: count_files([folder]),
                lambda: remove_folder(folder)):  # fmt: skip
        with pytest.raises(RunError, match="64 folders inside each other"):
            use()
    assert [p.name for p in files_below(_deep(tmp_path / "less", 20))] == ["f"]
    remove_folder(tmp_path / "less")
    assert not (tmp_path / "less").exists()
    subprocess.run(["rm", "-r", str(tmp_path / "d"), str(job.folder)], check=True)


def test_a_design_has_no_100_000_files(tmp_path: Path) -> None:
    (tmp_path / "a.sv").write_text("")
    table = {"top": "a", "clock": "clk", "reset": "rst", "files": ["a.sv"] * 100_000}
    (tmp_path / "design.json").write_text(json.dumps(table))
    with pytest.raises(GraphError, match=r"files: .* at most 10000 items"):
        load_design(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [({"epoch": "x"}, "epoch is 'x'"), ({"lr": math.nan}, "lr is nan"), ({"epoch": 0}, "epoch is"),
     ({"train_accuracy": None}, "train_metric is None"), ({"precision": 1}, "precision is 1"),
     ({"seconds": True}, "seconds is True"), ({"train_loss": "a"}, "train_loss is 'a'")],
)  # fmt: skip
def test_metrics_are_figures(change: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    good = dict(epoch=1, lr=0.1, train_loss=math.inf, train_accuracy=0.5, validation_loss=math.nan,
                validation_accuracy=1, seconds=2.0)  # fmt: skip
    path.write_text(json.dumps(good))
    assert read_metrics(path)[0].lr == 0.1
    path.write_text(json.dumps(good | change))
    with pytest.raises(DataError, match=said):
        read_metrics(path)
    path.write_text("[1]")
    with pytest.raises(DataError, match="a line is no JSON object"):
        read_metrics(path)


def _levels(**changes: Any) -> dict[str, Any]:
    found = {
        "inputs": np.zeros((2, 1, 1, 1)),
        "scores": np.zeros((2, 3)),
        "labels": np.ones((2, 1)),
    }
    return {name: array.astype(np.int64) for name, array in found.items()} | changes


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        (_levels(scores=np.zeros((1 << 20,), np.int64)), "so far does no real data shrink"),
        (_levels(scores=np.zeros((2, 3))), "float64, not integers"),
        (_levels(scores=np.zeros((2, 3), np.int8)), "not hold what the step wrote"),
        (_levels(scores=np.zeros((3, 3), np.int64)), "not hold what the step wrote"),
        ({"inputs": np.zeros(2, np.int64)}, "not hold what"),
        (
            {"inputs": np.zeros((0, 4), np.int64), "scores": np.zeros((0, 3), np.int64)},
            "not hold what",
        ),
        (_levels(label=np.zeros((2, 1), np.int64)), "names an output twice"),
        (None, "no whole file of arrays"),
    ],
)
def test_levels_of_a_run(
    levels: dict[str, Any] | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FREE", 1 << 16)
    np.savez_compressed(tmp_path / LEVELS, **_levels())
    assert read_levels(tmp_path)["label"].tolist() == [[1], [1]]
    if levels is None:
        (tmp_path / LEVELS).write_bytes(b"PK\3\4" + bytes(100))
    else:
        np.savez_compressed(tmp_path / LEVELS, **levels)
    with pytest.raises(DataError, match=said) as caught:
        read_levels(tmp_path)
    assert caught.value.hint == "run the step lower again"


def test_an_array_has_the_axes_that_numpy_has() -> None:
    head = str({"descr": "<i8", "fortran_order": False, "shape": (1,) * 100}).encode()
    body = b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head + bytes(8)
    with pytest.raises(DataError, match=r"is no \.npy"):
        read_npy(body, "x")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"(" * (1 << 21), "more than 1048576 opcodes"),
        (b"U\6labels" + b"K\1" * 200_001, "more than 200000 labels"),
    ],
)
def test_a_batch_of_cifar_has_an_end(body: bytes, said: str) -> None:
    with pytest.raises(DataError, match=said):
        cifar.parse_python(b"\x80\2" + body + b".", "x")


@pytest.mark.parametrize("size", [None, (8, 8)])
def test_pictures_of_nothing_are_work(
    size: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is decoded has more pixels than real pictures of so many bytes, whatever becomes of
    them: 7 KB took 80 s.
    """
    monkeypatch.setattr(archives, "FREE", 1 << 16)
    picture = io.BytesIO()
    Image.new("RGB", (512, 512)).save(picture, "PNG")
    with zipfile.ZipFile(tmp_path / "p.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(12):
            archive.writestr(f"{'ab'[number % 2]}/{number}.png", picture.getvalue())
    with pytest.raises(DataError, match="so far does no real image shrink"):
        folders.load(
            tmp_path / "p.zip", Decoding(size=size), name="i", seed=0, validation=0.2, test=0.2
        )
    with pytest.raises(DataError, match="so far does no real image shrink"):
        damaged_files(list_images(tmp_path / "p.zip"), threads=1)


def test_the_first_line_of_pairs_has_numbers_of_some_digits() -> None:
    with pytest.raises(DataError, match="expected FOLDS and COUNT"):
        parse_pairs("1" * 5000 + "\n")


@pytest.mark.parametrize("text", ["1:" * 5000 + "1", "1" * 200, "-" + "1:" * 100 + "0.5"])
def test_numbers_of_a_recipe_have_a_length(text: str) -> None:
    with pytest.raises(RecipeError, match="a number has more than 100 signs"):
        load_value(text, "x")


@pytest.mark.timeout(20)
def test_an_array_comes_from_a_file_of_its_own_length(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(6).reshape(2, 3))
    assert read_array(path).tolist() == [[0, 1, 2], [3, 4, 5]]
    np.save(path, np.zeros(2))
    assert read_array(path, "biuf").tolist() == [0, 0]
    with pytest.raises(DataError, match="float64, not integers"):
        read_array(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="does not hold"):
        read_array(path, "biuf")
    _put("named pipe", path)
    with pytest.raises(DataError, match="expected a regular file"):
        read_array(path)


def test_a_design_names_its_files_without_going_back(tmp_path: Path) -> None:
    """The flows copy them by these names: what leads back into this folder leads out of theirs."""
    folder = tmp_path / "deep" / "rtl"
    folder.mkdir(parents=True)
    (folder / "a.sv").write_text("")
    table = {"top": "a", "clock": "clk", "reset": "rst", "files": ["a.sv"]}
    (folder / "design.json").write_text(json.dumps(table))
    assert load_design(folder).named == ("a.sv",)
    table["files"] = ["x/../../../deep/rtl/a.sv"]
    (folder / "x").mkdir()
    (folder / "design.json").write_text(json.dumps(table))
    with pytest.raises(GraphError, match="which is not in the folder"):
        load_design(folder)


@pytest.mark.parametrize(
    "wrong",
    [{"ss": np.ones(3, bool)}, {"ss": np.ones(3, bool), "ptq": np.ones(2, bool)},
     {"ptq": np.array([np.nan])}, {"ptq": np.array(True)}, {"ptq": np.ones(0, bool)}],
)  # fmt: skip
def test_what_a_job_tells_of_images_is_looked_at(wrong: Any, tmp_path: Path) -> None:
    """An arm or images that were missing in the folder of a study were KeyError and ValueError."""
    np.savez_compressed(tmp_path / "right.npz", **wrong)
    with pytest.raises(RunError, match="each test image"):
        _outcome(JobResult("n", tmp_path), "ptq")
    job = Job("n", "m:f", {}, tmp_path, kind=_kind_of(("ptq", "ss")))
    value = {"ptq": {"train": 1, "test": 1, "epochs": 1}}
    (tmp_path / "result.json").write_text(json.dumps({"schema": 1, **job.request, "value": value}))
    assert job.finished() is None


@pytest.mark.parametrize(
    "change",
    [{}, {"row": 1}, {"size": 0}, {"size": "x"}, {"accuracy": {"value": math.nan, "error": None}},
     {"accuracy": {"error": 1}}, {"other": 1}, {"format": "int5"}],
)  # fmt: skip
def test_a_row_of_another_kind_is_made_again(change: Any, tmp_path: Path) -> None:
    """KeyError, TypeError, ValueError of `formats compare` in a folder of a stranger's rows."""
    row = {
        "format": "int4", "activation": "uint8", "method": "default", "size": 10, "loss": None,
        "accuracy": {"value": 0.5, "error": 0.1},
    }  # fmt: skip
    store, kind = Store(tmp_path), kind_of_row(Variant("int4", "uint8", method="default"))
    kept = {"variant": "v", "row": change["row"] if "row" in change else row | change}
    store.keep("rows", "key", kept)
    found = store.find("rows", "key", kind)
    assert (found is None) == bool(change) and (tmp_path / "rows" / "key").exists() != bool(change)
    assert found is None or found.value == kept


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["named pipe", "device"])
def test_the_earlier_recipe_of_a_run_is_a_file(kind: str, tmp_path: Path) -> None:
    """``recipe.yaml`` of a point that a stranger gave away was waited for, or read whole."""
    recipe = load_recipe("digits", ["hardware.budget=null", "hardware.target_fps=1000"])
    _put(kind, tmp_path / "recipe.yaml")
    assert with_earlier_plan(recipe, tmp_path) is recipe


def test_outputs_may_have_any_name_in_levels_but_that_of_the_inputs(tmp_path: Path) -> None:
    names = ("file", "allow_pickle", "label", "labels", "scores")
    outputs = {name: np.full((2, 3), n) for n, name in enumerate(names)}
    save_levels(tmp_path, np.full((2, 4), -1), outputs)
    found = read_levels(tmp_path)
    assert (found.pop(INPUTS) == -1).all()
    assert found.keys() == outputs.keys()
    for name, levels in outputs.items():
        assert np.array_equal(found[name], levels)
    with pytest.raises(GraphError, match="as the inputs are"):
        save_levels(tmp_path, np.zeros((2, 4), np.int64), {INPUTS: outputs["scores"]})
