# SPDX-License-Identifier: Apache-2.0
"""What a sweep goes over: its grid, its recipes, and what it refuses; nothing is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.tiny import TINY

from bitwright.base.errors import RecipeError, RunError
from bitwright.base.figures import Measured
from bitwright.cli import entry
from bitwright.explore.changes import with_bits, with_distillation, with_lr, with_seed
from bitwright.explore.sweep import check_folder
from bitwright.explore.sweep_axes import SweepPoint, grid, parse_axes
from bitwright.explore.sweep_table import Outcome, sections_of
from bitwright.jobs import JobFailure, JobResult
from bitwright.pipeline.recipe import load_document, recipe_from_dict

_DISTILLED = {"epochs": 1, "distillation": {"alpha": 0.5, "temperature": 2}}
PHASES = {
    "self_study": {"epochs": 1},
    "co_study": {**_DISTILLED, "peer": {"lr": 0.1, "distillation": {"alpha": 0.1}}},
    "tutor_study": _DISTILLED,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


def points(file: Path, *over: str) -> tuple[SweepPoint, ...]:
    return grid(load_document(file), file.parent, parse_axes(over))


def test_the_grid_is_every_combination(file: Path) -> None:
    found = points(file, "bits=8,2", "train.float.epochs=1,5", "seeds=2")
    assert [dict(p.settings) for p in found] == [
        {"bits": bits, "train.float.epochs": epochs, "seed": seed}
        for bits in (8, 2)
        for epochs in (1, 5)
        for seed in (0, 1)
    ]
    last = found[-1]
    assert last.title == "bits=2, epochs=5, seed=1"
    assert last.recipe.seed == last.recipe.train.float_.seed == 1
    assert last.recipe.train.float_.epochs == 5
    assert last.recipe.quant["weight"] == {"format": "int2"}
    assert last.recipe.quant["input"] == "uint4"
    assert len({p.folder for p in found}) == 8
    assert all(set(p.folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") for p in found)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("bits=8", [8]),
        ("bits=2..4", [2, 3, 4]),
        ("bits=3..2,8", [3, 2, 8]),
        ("seed=7,3", [7, 3]),
        ("lr=1e-3,0.01", [1e-3, 0.01]),
        ("quant.weight=int4,{format: int8}", ["int4", {"format": "int8"}]),
        ("train.quantized=null,{epochs: 1}", [None, {"epochs": 1}]),
        ("model.options.widths=[2,3],[4,4]", [[2, 3], [4, 4]]),
    ],
)  # fmt: skip
def test_values_are_yaml(text: str, values: list[Any]) -> None:
    (axis,) = parse_axes([text])
    assert list(axis.values) == values


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ([], "needs something"),
        (["bits"], "expected KEY=V1,V2"),
        (["=4"], "expected KEY=V1,V2"),
        (["bits="], "names no value"),
        (["bits=8,,4"], "no valid YAML"),
        (["bits=[8"], "no valid YAML"),
        (["bits=8,8"], "stands twice"),
        (["bits=8", "bits=4"], "stands twice"),
        (["seeds=3", "seed=4"], "stands twice"),
        (["seeds=0"], "how many seeds"),
        (["seeds=1,2"], "how many seeds"),
        (["bits=8", "quant.weight.format=int4"], "same thing"),
        (["quant.activation=uint2", "bits=8"], "same thing"),
        (["alpha=0.1", "train.quantized.distillation.alpha=0.2"], "same thing"),
        (["train.float={epochs: 1}", "train.float.epochs=3"], "same thing"),
        (["data.date=2024-01-01"], "no number, text"),
        (["lr=.nan"], "no number, text"),
        (["seed=1..100000"], "too long"),
    ],
)
def test_bad_axes_are_refused(over: list[str], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        parse_axes(over)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ("bitz=4", "unknown key 'bitz'; did you mean 'bits'"),
        ("trian.float.lr=1", "did you mean 'train'"),
        ("train.float.epoch=1", "did you mean 'epochs'"),
        ("quant.wieght=int4", "wieght"),
        ("train.float.lr=0.1,-1", "train.float.lr"),
        ("train.float.warmup=0,9", "warmup"),
        ("quant.weight=int4,int99", "int99"),
        ("bits=4,0", "1 to 16"),
        ("bits=4,2.5", "1 to 16"),
        ("alpha=0.5", "distils nothing"),
        ("lr=0.1,0", "lr"),
        ("seed=-1", "seed"),
        ("bits=1..16,1e9", "1 to 16"),
    ],
)
def test_what_the_schema_refuses_is_refused_before_anything_runs(
    file: Path, over: str, words: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        points(file, over)
    assert words in str(caught.value) and "--over" in str(caught.value)


def test_points_are_told_apart_by_name(file: Path) -> None:
    one, other = points(file, "train.float.epochs=1", "train.quantized.epochs=1,2")
    assert one.title == "train.float.epochs=1, train.quantized.epochs=1" != other.title
    (odd,) = points(file, "description='a/b: \u00e9 x'")
    assert odd.folder.startswith("description-a-b-x-") and odd.recipe.description == "a/b: \u00e9 x"


def test_too_many_points(file: Path) -> None:
    with pytest.raises(RecipeError, match="too many"):
        points(file, "seeds=200", "train.float.epochs=1..100")


def test_bits_keep_signs_scales_and_rules() -> None:
    rules = [{"position": "first", "role": "weight", "format": "int8"}]
    quant = {"weight": {"format": "int4", "scale": "learned"}, "activation": "bipolar"}
    recipe = recipe_from_dict({**TINY, "quant": {**quant, "rules": rules}})
    wide, one = with_bits(recipe, 8).quant, with_bits(recipe, 1).quant
    assert wide["weight"] == {"format": "int8", "scale": "learned"}
    assert wide["activation"]["format"] == "int8" and wide["rules"] == rules
    assert one["weight"]["format"] == one["activation"]["format"] == "bipolar"
    assert with_bits(recipe_from_dict(TINY), 1).quant["activation"]["format"] == "uint1"
    with pytest.raises(RecipeError, match="no format"):
        with_bits(recipe_from_dict({**TINY, "quant": {"weight": "float"}}), 4)


def test_shorthands_reach_every_phase() -> None:
    recipe = recipe_from_dict({**TINY, "train": {"quantized": PHASES}})
    colder = with_distillation(recipe, "temperature", 9.0).train.quantized
    assert colder is not None and colder.co_study is not None and colder.tutor_study is not None
    assert colder.co_study.distillation is not None and colder.tutor_study.distillation is not None
    assert colder.co_study.distillation.temperature == 9
    assert colder.tutor_study.distillation.temperature == 9
    assert colder.tutor_study.distillation.alpha == 0.5
    assert colder.co_study.peer is not None and colder.co_study.peer.distillation is not None
    assert colder.co_study.peer.distillation.temperature == 9
    faster = with_lr(recipe, 0.25).train
    assert faster.quantized is not None
    assert [config.lr for _, config in faster.quantized.present] == [0.25] * 3
    assert faster.float_.lr == recipe.train.float_.lr
    assert with_lr(recipe_from_dict({**TINY, "train": {}}), 0.25).train.float_.lr == 0.25


def test_seeds_move_together() -> None:
    fields = {**TINY, "seed": 3, "train": {"float": {"seed": 5}, "quantized": {"epochs": 1}}}
    moved = with_seed(recipe_from_dict(fields), 10)
    assert moved.seed == 10 and moved.train.float_.seed == 12
    assert moved.train.quantized is not None and moved.train.quantized.self_study is not None
    assert moved.train.quantized.self_study.seed == 10


def outcome(point: SweepPoint, accuracy: float | None) -> Outcome:
    figures = {"accuracy, quantized": {"value": accuracy, "unit": "share", "source": "measurement"}}
    failure = JobFailure("ModelError", "training diverged") if accuracy is None else None
    value = None if accuracy is None else {"figures": figures}
    return Outcome(point, JobResult(point.title, Path("x"), value, failure, attempts=1))


def test_means_have_the_standard_error_of_their_seeds(file: Path) -> None:
    axes = parse_axes(["bits=8,4", "lr=0.1,0.2", "seeds=3"])
    found = grid(load_document(file), file.parent, axes)
    shares = [0.90, 0.92, 0.94, 0.80, None, 0.82, None, None, None, 0.7, 0.7, 0.7]
    outcomes = [outcome(p, share) for p, share in zip(found, shares, strict=True)]
    means, each = sections_of(axes, outcomes)
    rows = [row["accuracy, quantized"] for row in means.table.rows]
    assert isinstance(rows[0], Measured) and isinstance(rows[1], Measured)
    assert rows[0].value == pytest.approx(0.92)
    assert rows[0].error == pytest.approx(0.02 / 3**0.5)  # deviation 0.02, three seeds
    assert rows[1].value == pytest.approx(0.81)
    assert rows[1].error == pytest.approx(0.01)  # deviation sqrt(2) * 0.01, two seeds
    assert rows[2] is None and isinstance(rows[3], Measured)
    assert (rows[3].value, rows[3].error) == (pytest.approx(0.7), pytest.approx(0.0))
    assert [row["seeds"] for row in means.table.rows] == [3, 2, 0, 3]
    assert "4 of 12 points failed" in means.table.to_markdown()
    assert [row["failure"] for row in each.table.rows][4] == "training diverged"
    (plot,) = means.plots
    assert plot.x_label == "bits" and {p.series for p in plot.points} == {"lr=0.1", "lr=0.2"}
    assert len(plot.points) == 3 and "<svg" in plot.to_svg()


def test_an_axis_of_words_has_a_table_and_a_plot_too(file: Path) -> None:
    axes = parse_axes(["train.float.optimizer=sgd,adam"])
    found = grid(load_document(file), file.parent, axes)
    means, _ = sections_of(axes, [outcome(p, 0.5) for p in found])
    assert [row["train.float.optimizer"] for row in means.table.rows] == ["sgd", "adam"]
    assert "seeds" not in means.table.rows[0] and means.plots[0].to_svg()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, file: Path) -> None:
    check_folder(tmp_path / "new", "tiny")
    for text, words in (
        ("{", "cannot be read"),
        (json.dumps({"schema": 1, "recipe": "other", "bitwright": "0"}), "recipe 'other'"),
        (json.dumps({"schema": 99, "recipe": "tiny", "bitwright": "9"}), "Bitwright 9"),
    ):
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(RunError, match=words):
            check_folder(tmp_path, "tiny")
    (tmp_path / "plan.json").unlink()
    for path, words in ((tmp_path, "holds no sweep"), (file, "is a file")):
        with pytest.raises(RunError, match=words):
            check_folder(path, "tiny")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--over", "bits=4", "--until", "trian"], 2, "trian"),
        (["--over", "bits=4", "--timeout", "0"], 2, "timeout"),
        (["--over", "bits=4", "--ray", "nowhere"], 2, "is no address"),
        (["--over", "bits=4", "--ray", "127.0.0.1:1"], 6, "no Ray cluster answers"),
        (["--over", "bits=4", "--set", "trian=1"], 2, "did you mean 'train'"),
        ([], 2, "needs something"),
    ],
)
def test_the_command_refuses_before_it_writes(
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    out = tmp_path / "out"
    assert entry.run(["sweep", str(file), *arguments, "--out", str(out)]) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ") and words in error
    assert not out.exists()


def test_dry_run_lists_the_points_and_writes_nothing(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["sweep", str(file), "--over", "bits=8,2", "seeds=2", "--out", str(out)]
    assert entry.run([*arguments, "--dry-run", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["points"]
    assert [entry["point"] for entry in listed][:2] == ["bits=8, seed=0", "bits=8, seed=1"]
    assert not out.exists()
