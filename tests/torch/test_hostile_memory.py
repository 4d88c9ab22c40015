# SPDX-License-Identifier: Apache-2.0
"""Small files of models that take a lot of memory behind their reader: when they are quantized, and
when many images pass at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
import yaml
from tests.onnx_models import File
from torch import fx, nn

from bitwright.base import bounded
from bitwright.base.errors import DataError, ModelError, RunError
from bitwright.base.memory import ran_out
from bitwright.cli import entry as cli
from bitwright.explore.subject import _data_spec, find_subject
from bitwright.interop import ops, packed_model
from bitwright.interop.model_files import LoadedModel, save_model, save_network
from bitwright.interop.network import InputConvention, Layer, Network
from bitwright.interop.network_to_torch import module_of
from bitwright.interop.onnx.reader import inspection
from bitwright.interop.packed_model import save_packed_model
from bitwright.models import memory
from bitwright.pipeline import export_network, import_network
from bitwright.pipeline.import_network import import_packed
from bitwright.pipeline.inspection import onnx_file, torch_model
from bitwright.pipeline.inspection.inspect import inspect_model
from bitwright.pipeline.inspection.onnx_file import inspect_onnx
from bitwright.quantize import Policy, apply
from bitwright.quantize.shapes import example_shapes

MIB = 1 << 20


def with_thresholds(path: Path, channels: int) -> Path:
    """A packed model with 4095 thresholds for each of its channels."""
    rng = np.random.default_rng(0)
    weight = {
        "weight": rng.normal(size=(channels, 1, 1, 1)).astype(np.float32),
        "bias": rng.normal(size=channels).astype(np.float32),
    }
    layers = (
        Layer("x", ops.Input((1, 1, 1))),
        Layer("c", ops.Conv(), ("x",), weight),
        Layer("r", ops.Activation("relu"), ("c",)),
        Layer("f", ops.Flatten(), ("r",)),
        Layer("d", ops.Dense(), ("f",), {"weight": np.ones((1, channels), np.float32)}),
    )
    network = Network("n", layers, "d")
    quant = {"weight": "int2", "activation": "uint12", "input": "uint4", "threshold_bits": 12}
    policy = Policy.from_dict(quant)
    seen = apply(module_of(network).eval(), policy, "calibrate", sample_shape=(1, 1, 1)).eval()
    with torch.no_grad():
        seen(torch.rand(4, 1, 1, 1))
    made = apply(seen, policy, "train").eval()
    save_packed_model(path, LoadedModel(made, (1, 1, 1), InputConvention(), network, None, quant))
    return path


def test_thresholds_of_a_small_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_thresholds(tmp_path / "net.bwq", 1200)
    assert path.stat().st_size < 15_000
    monkeypatch.setattr(bounded, "MEMORY", 128 * MIB)
    with pytest.raises(DataError, match=r"net\.bwq: takes more than .* MiB of memory"):
        import_packed(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def greedy(*_: object, **__: object) -> NoReturn:
    """Takes memory that no file of a few bytes gives reason for; touches none of it."""
    np.empty(8 << 30, np.uint8)
    raise AssertionError("nothing stopped it")


def test_what_becomes_of_a_file_has_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An HDF5 file of 88 kB with 8 million equal weights took 1 GB to be inspected."""
    packed = with_thresholds(tmp_path / "net.bwq", 2)
    model = wide(tmp_path / "net.safetensors", padding=0)
    for module in (import_network, export_network):
        monkeypatch.setattr(module, "integer_graph", greedy)
    monkeypatch.setattr(torch_model, "_lowered", greedy)
    with pytest.raises(DataError, match=r"net\.bwq: takes more than 1\.5 GiB of memory"):
        export_network.export_packed(packed, tmp_path / "again.bwq")
    with pytest.raises(DataError, match=r"net\.safetensors: takes more than 1\.5 GiB of memory"):
        inspect_model(str(model))
    with pytest.raises((AssertionError, MemoryError)):  # the machine's memory alone stops it
        inspect_model(str(model), input_shape=(8, 8, 1))


@pytest.mark.parametrize("place", ["walk", "behind"])
def test_inspecting_onnx_has_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A file of 3 kB whose vectors double 18 times took 18.7 GB to be inspected."""
    file = File(1, 4)
    file.quant(scale=1.0, bits=4, signed=0)
    file.op("Relu")
    file.quant(scale=2.0, bits=2, signed=0)
    path = tmp_path / "net.onnx"
    path.write_bytes(file.model(file.net))
    if place == "walk":
        monkeypatch.setattr(inspection, "walk", greedy)
    else:
        monkeypatch.setattr(onnx_file, "becomes_by_layer", greedy)
    (problem,) = inspect_onnx(path).problems
    assert "takes more than 1.5 GiB of memory" in problem.problem


def test_memory_that_runs_out_is_no_shape_that_does_not_fit() -> None:
    """`import` said that "the example input does not pass" and left a network without integers."""

    class Greedy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.new_empty(1 << 60)

    graph = fx.Graph()
    graph.output(graph.call_module("greedy", (graph.placeholder("x"),)))
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        example_shapes(nn.ModuleDict({"greedy": Greedy()}), graph, torch.zeros(1, 3))
    assert ran_out(caught.value)


def test_formats_of_a_small_file_have_their_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prototxt of Ristretto, of 505 bytes and 154 of weights, took 5 GB to become a `.bwq`."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False))
    loaded = LoadedModel(model, (8, 8, 1), InputConvention(), quant={"weight": "int8"})
    monkeypatch.setattr(export_network, "read_model", lambda *_: loaded)
    monkeypatch.setattr(packed_model, "converted", greedy)
    (tmp_path / "net.prototxt").write_text("name: 'net'")
    with pytest.raises(DataError, match=r"net\.prototxt: takes more than 1\.5 GiB of memory"):
        export_network.export_packed(tmp_path / "net.prototxt", tmp_path / "out.bwq")


@pytest.mark.parametrize("folder", ["", "folder", "with run.json"])
def test_orders_of_vectors_of_a_small_file(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """46 joined images of 3 kB became 13 GB of orders for Keras; in a folder, too, where an empty
    ``run.json`` made a run of it.
    """
    made = [Layer("x", ops.Input((4, 4, 4))), Layer("f", ops.Flatten(), ("x",))]
    for number in range(16):  # each twice as long
        before = made[-1].name
        made.append(Layer(f"c{number}", ops.Concat(), (before, before)))
    last = made[-1].name
    made += [Layer(f"w{number}", ops.Concat(), (last, last)) for number in range(6)]
    names = [layer.name for layer in made[-6:]]
    made += [Layer("s0", ops.Add(), tuple(names[:2]))]
    made += [Layer(f"s{n}", ops.Add(), (f"s{n - 1}", names[n + 1])) for n in range(1, 5)]
    network = Network("n", tuple(made), "s4")
    path = tmp_path / "model.safetensors"
    save_network(network, "safetensors", path)
    assert path.stat().st_size < 10_000
    if folder == "with run.json":
        (tmp_path / "run.json").write_text("{}")
    monkeypatch.setattr(bounded, "MEMORY", 256 * MIB)
    with pytest.raises(DataError, match=r"model\.safetensors: takes more than .* MiB of m"):
        export_network.export_model(tmp_path if folder else path, "keras", tmp_path / "out.h5")
    assert not (tmp_path / "out.h5").exists()


def wide(path: Path, padding: int = 500) -> Path:
    """A network whose padding makes 4 MB of an image of 8 x 8."""
    first, behind = nn.Conv2d(1, 1, 1, padding=padding), (nn.Flatten(), nn.Linear(1, 10))
    model = nn.Sequential(first, nn.AdaptiveAvgPool2d(1), *behind).eval()
    (made,) = save_model(model, "safetensors", path, (8, 8, 1))
    return made


def test_images_that_pass_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wide(tmp_path / "net.safetensors")
    assert path.stat().st_size < 2000
    find_subject(str(path), data="digits")
    monkeypatch.setattr(memory, "machine_memory", lambda: 512 * MIB)
    with pytest.raises(ModelError, match=r"net\.safetensors.*takes 9\d\d\.\d MiB of memory"):
        find_subject(str(path), data="digits")


def test_layers_without_weights_of_a_recipes_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = (nn.ZeroPad2d(500), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 10))
    path = tmp_path / "net.safetensors"
    save_model(nn.Sequential(*layers).eval(), "safetensors", path, (8, 8, 1))
    train = {"float": {"epochs": 1, "batch_size": 256}}
    recipe = {"name": "x", "data": "digits", "model": str(path), "train": train}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    monkeypatch.setattr(memory, "machine_memory", lambda: 512 * MIB)
    monkeypatch.chdir(tmp_path)
    argv = ["build", "recipe.yaml", "--until", "train"]
    assert cli.run(argv) == ModelError.exit_code
    said = capsys.readouterr().err
    assert "takes 99" in said and "this machine has 512.0 MiB" in said and "of 256 images" in said


def test_the_model_of_an_import_is_no_link_out_of_it(tmp_path: Path) -> None:
    path, folder = wide(tmp_path / "net.safetensors"), tmp_path / "import"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(path)
    with pytest.raises(RunError, match="a link that leads out of its folder"):
        find_subject(str(folder), data="digits")


def test_data_that_is_there_is_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pics:v2").mkdir()
    assert _data_spec("pics:v2").name == "folder"
    assert _data_spec("pics:v3").name == "pics:v3"
