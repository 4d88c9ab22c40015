# SPDX-License-Identifier: Apache-2.0
"""One door for model files: safetensors, recipes that name files, import and export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.interop_networks import images, networks
from typer.testing import CliRunner

from bitwright.base.errors import DataError, RecipeError, RunError
from bitwright.cli.app import app
from bitwright.interop.model_files import (
    load_model,
    load_weights,
    model_from_spec,
    save_model,
)
from bitwright.models import ModelSpec, build_model
from bitwright.models.tensors import load_tensors, save_tensors
from bitwright.pipeline.export_network import export_model, read_model
from bitwright.pipeline.import_network import import_model

pytest.importorskip("safetensors")
NETWORKS = networks()
PLAIN, SHAPE = NETWORKS["plain"]
SPEC = ModelSpec(name="mnist_cnn")


@pytest.mark.parametrize("spec", [SPEC, None])
def test_a_safetensors_file_says_which_model_it_is(spec: ModelSpec | None, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save_model(PLAIN, "safetensors", path, SHAPE, spec=spec)
    loaded = load_model(path, classes=10)
    assert loaded.input_shape == SHAPE and loaded.spec == spec
    with torch.no_grad():
        assert torch.equal(loaded.model(images(SHAPE)), PLAIN(images(SHAPE)))
    fresh = build_model(SPEC, 10, SHAPE)
    load_weights(fresh, path, SHAPE)
    state = PLAIN.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in fresh.state_dict().items() if "num_b" not in k)


def test_tensors_of_every_type_come_back(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    tensors = {
        "a": shared, "b": shared[2:], "h": shared.half(), "i": torch.arange(3),
        "d": torch.rand(2, 3, dtype=torch.float64).T,
    }  # fmt: skip
    back, facts = load_tensors(save_tensors(tensors, tmp_path / "t.safetensors", {"x": [1]}))
    assert facts == {"x": [1]}
    assert all(torch.equal(back[k], v) and back[k].dtype == v.dtype for k, v in tensors.items())


def test_damaged_and_foreign_safetensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save_model(PLAIN, "safetensors", path, SHAPE, spec=SPEC)
    whole = path.read_bytes()
    for length in (0, 5, 100, len(whole) - 1):
        (tmp_path / "cut.safetensors").write_bytes(whole[:length])
        with pytest.raises(DataError):
            load_model(tmp_path / "cut.safetensors", classes=10)
    other = build_model("digits_cnn", 10, (8, 8, 1))
    before = {k: v.clone() for k, v in other.state_dict().items()}
    with pytest.raises(DataError, match="which the model has not"):
        load_weights(other, path, (8, 8, 1))
    assert all(torch.equal(before[k], v) for k, v in other.state_dict().items())
    save_tensors({"x": torch.tensor(float("nan"))}, path)
    with pytest.raises(DataError, match="NaN"):
        load_tensors(path)


@pytest.mark.parametrize("kind", ["caffe", "keras", "safetensors"])
def test_a_recipe_may_name_a_file_or_start_from_weights(kind: str, tmp_path: Path) -> None:
    path = tmp_path / {"caffe": "n.prototxt", "keras": "n.h5"}.get(kind, "n.safetensors")
    written = save_model(PLAIN, kind, path, SHAPE)
    with torch.no_grad():
        expected = PLAIN(images(SHAPE))
        whole = model_from_spec(str(path), 10, SHAPE)
        assert whole.training
        assert torch.equal(whole.eval()(images(SHAPE)), expected)
        started = model_from_spec({"name": "mnist_cnn", "weights": written[-1]}, 10, SHAPE)
        assert torch.equal(started.eval()(images(SHAPE)), expected)
    with pytest.raises(RecipeError, match="no option 'widths'"):
        model_from_spec({"name": str(path), "options": {"widths": [4]}}, 10, SHAPE)


def test_import_and_export_of_float_models(tmp_path: Path) -> None:
    model, shape = NETWORKS["dense"]
    save_model(model, "caffe", tmp_path / "net.prototxt", shape)
    folder = tmp_path / "imported"
    report = import_model(tmp_path / "net.prototxt", folder)
    assert report["parameters"] == sum(p.numel() for p in model.parameters())
    assert json.loads((folder / "import.json").read_text()) == report
    with torch.no_grad():
        assert torch.equal(read_model(folder).model(images(shape)), model(images(shape)))
    with pytest.raises(RunError, match=r"an import with import.json, model.safetensors"):
        import_model(folder / "model.safetensors", folder)
    import_model(folder / "model.safetensors", folder, force=True)  # over itself
    for kind, name in (
        ("keras", "n.h5"),
        ("caffe", "n.prototxt"),
        ("safetensors", "n.safetensors"),
    ):
        done = export_model(folder, kind, tmp_path / "out" / name)
        assert done["compared_values"] == sum(
            v.numel() for k, v in model.state_dict().items() if "num_b" not in k
        )
    with pytest.raises(RecipeError, match="does not end in"):
        export_model(folder, "keras", tmp_path / "n.prototxt")


def test_import_leaves_nothing_behind_when_it_fails(tmp_path: Path) -> None:
    save_model(PLAIN, "caffe", tmp_path / "net.prototxt", SHAPE)
    (tmp_path / "net.caffemodel").write_bytes((tmp_path / "net.caffemodel").read_bytes()[:500])
    done = CliRunner().invoke(
        app, ["import", str(tmp_path / "net.prototxt"), "--out", str(tmp_path / "x")]
    )
    assert isinstance(done.exception, DataError)
    assert not (tmp_path / "x").exists()


def test_weights_alone_need_their_model(tmp_path: Path) -> None:
    torch.save(PLAIN.state_dict(), tmp_path / "net.pt")
    with pytest.raises(RecipeError, match="no model"):
        import_model(tmp_path / "net.pt", tmp_path / "x")
    import_model(
        tmp_path / "net.pt", tmp_path / "x", model="mnist_cnn", classes=10, input_shape=SHAPE
    )
    with torch.no_grad():
        assert torch.equal(read_model(tmp_path / "x").model(images(SHAPE)), PLAIN(images(SHAPE)))
    (tmp_path / "bad.pt").write_bytes(b"\x80\x04}q\x00.")
    with pytest.raises(DataError, match="no checkpoint of torch"):
        import_model(
            tmp_path / "bad.pt", tmp_path / "y", model="mnist_cnn", classes=10, input_shape=SHAPE
        )
