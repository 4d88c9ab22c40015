# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the package: what the entries say is so, and what does not fit is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bitwright.models.pretrained as place
from bitwright.base.errors import DataError, RecipeError
from bitwright.cli import entry as cli
from bitwright.data import load_dataset
from bitwright.interop.model_files import load_model
from bitwright.models import ModelSpec, build_model, list_pretrained, load_pretrained
from bitwright.models.pretrained import Pretrained, find_pretrained, matching, named, weights_file
from bitwright.pipeline.api import Pipeline, load_recipe
from bitwright.pipeline.recipe import list_recipes
from bitwright.pipeline.steps.facts import facts_of
from bitwright.pipeline.steps.names import step_folder
from bitwright.pipeline.steps.results import TrainResult, load_result
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.train import evaluate
from bitwright.train.config import TrainConfig

DIGITS = "{name: digits_cnn, weights: pretrained}"
ENTRIES = list_pretrained()


def same(first: nn.Module, second: nn.Module) -> bool:
    a, b = first.state_dict(), second.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of its own with the entry of the digits."""
    folder = tmp_path / "store"
    folder.mkdir()
    for ending in ("json", "safetensors"):
        shutil.copy(place.STORE / f"digits-cnn.{ending}", folder)
    monkeypatch.setattr(place, "STORE", folder)
    return folder


def change(store: Path, **fields: object) -> None:
    path = store / "digits-cnn.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    place.read_entries.cache_clear()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_an_entry_is_what_it_says(entry: Pretrained) -> None:
    path = weights_file(entry)
    content = path.read_bytes()
    assert (len(content), hashlib.sha256(content).hexdigest()) == (entry.bytes, entry.sha256)
    model = load_pretrained(entry.name)
    assert not model.training
    assert sum(p.numel() for p in model.parameters()) == entry.parameters
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    height, width, channels = entry.image_shape
    assert model(torch.zeros(2, channels, height, width)).shape == (2, entry.classes)
    assert matching(entry.spec, entry.image_shape, entry.classes, entry.data) == (entry,)
    assert entry.command and entry.versions["torch"] and 0.5 < entry.accuracy <= 1
    TrainConfig.model_validate(entry.training)
    assert entry.history == () or entry.kept_epoch in [row["epoch"] for row in entry.history]


def test_the_package_stays_small() -> None:
    assert ENTRIES
    assert sum(entry.bytes for entry in ENTRIES if not entry.urls) < 5_000_000
    files = {path.name for path in place.STORE.iterdir()}
    named_there = {entry.file for entry in ENTRIES} | {f"{entry.name}.json" for entry in ENTRIES}
    assert files == named_there


def test_the_file_says_which_model_it_is() -> None:
    entry = named("digits-cnn")
    found = load_model(weights_file(entry), classes=entry.classes)
    assert same(found.model, load_pretrained("digits-cnn"))


def test_the_stated_accuracy_is_measured() -> None:
    entry = named("digits-cnn")
    splits = load_dataset("digits", seed=entry.seed)
    assert evaluate(load_pretrained("digits-cnn"), splits.test).accuracy == entry.accuracy
    assert splits.test.choice() == entry.test_digest
    assert load_dataset("digits", seed=1).test.choice() != entry.test_digest


def test_two_names_of_one_network_share_their_weights() -> None:
    spelled = ModelSpec(name="mlp", options={"widths": [64, 64, 64]})
    assert find_pretrained(spelled, (28, 28, 1), 10, "mnist").name == "mnist-tfc"
    assert find_pretrained(ModelSpec(name="tfc"), (28, 28, 1), 10).name == "mnist-tfc"
    other = ModelSpec(name="tfc", options={"activation": "hardtanh"})
    assert matching(other, (28, 28, 1), 10) == ()


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "data"),
    [
        ({"name": "resnet20"}, (8, 8, 1), 10, "digits"),
        ({"name": "digits_cnn", "options": {"widths": [8, 8]}}, (8, 8, 1), 10, "digits"),
        ({"name": "digits_cnn"}, (8, 8, 1), 9, "digits"),
        ({"name": "digits_cnn"}, (8, 8, 3), 10, "digits"),
        ({"name": "digits_cnn"}, (8, 8, 1), 10, "folder"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(spec, shape, classes, data) -> None:
    with pytest.raises(RecipeError, match="no pretrained weights for") as caught:
        build_model(spec | {"weights": "pretrained"}, classes, shape, data=data)
    assert "digits_cnn on digits" in str(caught.value)


def test_an_unknown_entry_says_which_exist() -> None:
    with pytest.raises(DataError, match="no pretrained weights are called 'digits'") as caught:
        load_pretrained("digits")
    assert "digits-cnn" in str(caught.value)


def test_several_that_fit_ask_for_the_data_set(store: Path) -> None:
    fields = json.loads((store / "digits-cnn.json").read_text())
    (store / "other.json").write_text(json.dumps(fields | {"name": "other", "data": "other"}))
    place.read_entries.cache_clear()
    with pytest.raises(RecipeError, match=r"several pretrained weights fit .*digits-cnn, other"):
        build_model({"name": "digits_cnn", "weights": "pretrained"}, 10, (8, 8, 1))


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing", "another network", "entry"])
def test_a_damaged_file_is_named(store: Path, damage: str) -> None:
    path = store / "digits-cnn.safetensors"
    content = bytearray(path.read_bytes())
    expected = "is damaged: its SHA-256"
    if damage == "flipped":
        content[-5] ^= 1
        path.write_bytes(content)
    elif damage == "cut":
        path.write_bytes(content[:-100])
    elif damage == "missing":
        path.unlink()
        expected = "does not exist"
    elif damage == "another network":
        change(store, options={"widths": [8, 9]})
        expected = "the file is of another network"
    else:
        (store / "digits-cnn.json").write_text("{")
        place.read_entries.cache_clear()
        expected = "no entry of pretrained weights"
    with pytest.raises(DataError, match=expected) as caught:
        load_pretrained("digits-cnn")
    assert "digits-cnn" in str(caught.value)


def test_a_file_beside_the_package_is_fetched_once(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path / "cache"))
    away = tmp_path / "away.safetensors"
    (store / "digits-cnn.safetensors").rename(away)
    change(store, urls=[away.as_uri()])
    model = load_pretrained("digits-cnn")
    away.unlink()
    assert same(model, load_pretrained("digits-cnn"))
    kept = next((tmp_path / "cache").rglob("digits-cnn.safetensors"))
    kept.write_bytes(b"0" * 10)
    with pytest.raises(DataError, match="is damaged") as caught:
        load_pretrained("digits-cnn")
    assert "delete it" in str(caught.value)
    kept.unlink()
    with pytest.raises(DataError, match="download failed"):
        load_pretrained("digits-cnn")


def test_half_the_bits_are_widened(store: Path) -> None:
    from bitwright.models.tensors import load_tensors, save_tensors

    path = store / "digits-cnn.safetensors"
    tensors, facts = load_tensors(path)
    half = {n: t.half() if t.is_floating_point() else t for n, t in tensors.items()}
    content = save_tensors(half, path, facts).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    change(store, sha256=digest, bytes=len(content), dtype="float16")
    state: dict[str, Tensor] = load_pretrained("digits-cnn").state_dict()
    for name, values in tensors.items():
        assert state[name].dtype == values.dtype
        assert torch.equal(state[name], half[name].to(values.dtype))


def test_training_starts_from_them(tmp_path: Path) -> None:
    recipe = load_recipe("digits", [f"model={DIGITS}", "train.float.epochs=0"])
    work = Workspace(recipe)
    assert work.shipped is None  # they are a start here, not the result of the recipe's training
    assert same(work.fresh_model(), load_pretrained("digits-cnn"))
    Pipeline(recipe, tmp_path).step("train")
    found = load_result(TrainResult, tmp_path / step_folder("train"))
    assert found.figure.value == named("digits-cnn").accuracy
    assert found.shipped is None and found.history == ()


def test_a_recipe_takes_what_its_training_gave(tmp_path: Path, capsys) -> None:
    assert cli.run(["train", "digits", "--run-dir", str(tmp_path)]) == 0
    assert "pretrained weights digits-cnn, not trained in this run" in capsys.readouterr().out
    entry = named("digits-cnn")
    found = load_result(TrainResult, tmp_path / step_folder("train"))
    assert found.figure.value == entry.accuracy
    assert found.shipped is not None
    assert (found.shipped.name, found.shipped.command) == (entry.name, entry.command)
    assert len(found.history) == len(entry.history) == 60
    assert not Pipeline(load_recipe("digits"), tmp_path).pending()[0] == "train"
    # the same run without them trains
    recipe = load_recipe("digits", ["train.pretrained=false"])
    assert Pipeline(recipe, tmp_path).pending()[0] == "train"


@pytest.mark.parametrize(
    "change",
    [
        "train.pretrained=false",
        "seed=1",
        "data.validation=0.2",
        "data.test=0.3",
        "train.float.epochs=59",
        "train.float.lr=0.02",
        "train.float.augmentation={rotate: 5}",
        "model={name: digits_cnn, options: {widths: [8, 17]}}",
        f"model={DIGITS}",
    ],
)
def test_any_other_training_is_done(change: str) -> None:
    assert Workspace(load_recipe("digits")).shipped == named("digits-cnn")
    assert Workspace(load_recipe("digits", [change])).shipped is None


@pytest.mark.parametrize("change", ["train.float.threads=2", "train.quantized.epochs=1"])
def test_where_it_runs_and_what_follows_do_not_matter(change: str) -> None:
    assert Workspace(load_recipe("digits", [change])).shipped == named("digits-cnn")


@pytest.mark.parametrize("cut", ["seed=1", "data.test=0.3", "data.validation=0.2"])
def test_weights_that_have_seen_the_test_images_are_refused(cut: str) -> None:
    recipe = load_recipe("digits", [f"model={DIGITS}", cut])
    with pytest.raises(RecipeError, match="trained on images that are test images"):
        facts_of(Workspace(recipe))


def test_a_model_from_a_file_has_none(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="brings its weights"):
        load_recipe("digits", ["model={name: net.h5, weights: pretrained}"])


def test_recipes_that_name_them_have_them() -> None:
    """A change of float settings would silently train again: it must change the entry."""
    checked = 0
    for name, _ in list_recipes():
        recipe = load_recipe(name)
        if not recipe.train.pretrained:
            continue
        checked += 1
        found = [entry for entry in ENTRIES if entry.spec.name == recipe.model.name]
        settings = [TrainConfig.model_validate(entry.training) for entry in found]
        assert recipe.train.float_ in settings, name
        assert recipe.seed in [entry.seed for entry in found]
    assert checked >= 3


def test_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["list", "pretrained", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == [entry.name for entry in ENTRIES]
    assert all(row["made_by"] and "%" in row["float_accuracy"] for row in rows)
