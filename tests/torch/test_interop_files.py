# SPDX-License-Identifier: Apache-2.0
"""One door for model files: safetensors, recipes that name files, import and export."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.interop_networks import images, networks
from typer.testing import CliRunner

from bitwright.base.errors import DataError, MismatchError, RecipeError, RunError
from bitwright.cli.app import app
from bitwright.interop import ops
from bitwright.interop.model_files import (
    load_model,
    load_weights,
    model_from_spec,
    save_model,
    save_network,
)
from bitwright.interop.network import InputConvention, NetworkBuilder
from bitwright.interop.network_passes import prune
from bitwright.models import ModelSpec, build_model
from bitwright.models.tensors import load_tensors, save_tensors
from bitwright.pipeline import export_network
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
        assert done["largest_difference"] == 0.0
    with pytest.raises(RecipeError, match="does not end in"):
        export_model(folder, "keras", tmp_path / "n.prototxt")


def test_what_is_infinite_agrees_with_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tolerance that is a share of infinity has no end."""
    model, shape = NETWORKS["dense"]
    save_model(model, "caffe", tmp_path / "net.prototxt", shape)
    import_model(tmp_path / "net.prototxt", tmp_path / "in")
    built: list[torch.nn.Module] = [
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(prod(shape), 2)) for _ in range(2)
    ]
    for value, built_model in zip((torch.inf, 0.0), built, strict=True):
        for parameter in built_model.parameters():
            torch.nn.init.constant_(parameter, value)
    monkeypatch.setattr(export_network, "_float", lambda loaded: built.pop(0))
    with pytest.raises(MismatchError, match="differ by inf"):
        export_model(tmp_path / "in", "safetensors", tmp_path / "n.safetensors")
    assert not (tmp_path / "n.safetensors").exists()


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


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_file_is_compared_with_its_source_whatever_the_outputs_are(
    size: float, tmp_path: Path
) -> None:
    """An absolute tolerance lets everything pass where outputs are small."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4))
    with torch.no_grad():
        model[1].weight.mul_(size)
        model[1].bias.mul_(size)
    save_model(model, "keras", tmp_path / "net.h5", (4, 4, 1))
    loaded, paths = load_model(tmp_path / "net.h5"), (tmp_path / "net.h5",)
    assert export_network._check_written(loaded, *paths, paths) <= 1e-5 * size
    with torch.no_grad():
        model[1].bias[2] += 1e-3 * size
    save_model(model, "keras", tmp_path / "net.h5", (4, 4, 1))
    with pytest.raises(MismatchError, match="the largest is"):
        export_network._check_written(loaded, *paths, paths)
    assert not paths[0].exists()


def test_what_float32_loses_allows_nothing(tmp_path: Path) -> None:
    """x * 1e-25 * 1e-25 * 1e50 is 0 in float32, and x in float64."""
    b = NetworkBuilder()
    x = b.add("data", ops.Input((2, 4, 4)))
    lost = x
    for k, factor in enumerate((1e-25, 1e-25, 1e25, 1e25)):
        gamma = {"gamma": np.full(2, factor, np.float32)}
        lost = b.add(f"s{k}", ops.Scale(), (lost,), gamma)
    gamma = np.array([1.0, 2.0], np.float32)
    files = []
    for sign in (1, -1):
        kept = b.add(f"k{sign}", ops.Scale(), (x,), {"gamma": sign * gamma})
        network = b.network("n", b.add(f"sum{sign}", ops.Add(), (lost, kept)), InputConvention())
        files.append(tmp_path / f"n{sign}.safetensors")
        save_network(prune(network, f"sum{sign}"), "safetensors", files[-1])
    with pytest.raises(MismatchError):
        export_network._check_written(load_model(files[0]), files[1], (files[1],))


def test_what_float64_loses_allows_nothing(tmp_path: Path) -> None:
    """x * 1e-25 * 1e-25 * 1e80 is 0 in float32; in float64 nothing else is left beside it."""
    files = [tmp_path / f"{sign}.safetensors" for sign in "+-"]
    for sign, file in zip((1, -1), files, strict=True):
        b = NetworkBuilder()
        x = lost = b.add("data", ops.Input((2, 4, 4)))
        for k, factor in enumerate((1e-25, 1e-25, 1e25, 1e25, 1e30)):
            gamma = {"gamma": np.full(2, factor, np.float32)}
            lost = b.add(f"s{k}", ops.Scale(), (lost,), gamma)
        gamma = {"gamma": sign * np.array([1.0, 2.0], np.float32)}
        both = b.add("sum", ops.Add(), (lost, b.add("kept", ops.Scale(), (x,), gamma)))
        save_network(b.network("n", both, InputConvention()), "safetensors", file)
    with pytest.raises(MismatchError, match="nobody can tell"):
        export_network._check_written(load_model(files[0]), files[1], (files[1],))


def test_outputs_beyond_float32_agree_with_nothing(tmp_path: Path) -> None:
    """They are infinite in float32, and a tolerance that is a share of that has no end."""
    files = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4))
        with torch.no_grad():
            model[1].weight.uniform_(1e38, 2e38)
        files.append(tmp_path / f"{seed}.h5")
        save_model(model, "keras", files[-1], (4, 4, 1))
    with pytest.raises(MismatchError):
        export_network._check_written(load_model(files[0]), files[1], (files[1],))
    assert not files[1].exists()
