# SPDX-License-Identifier: Apache-2.0
"""Keras' files: what Keras 3 itself wrote, our own both ways, damaged and foreign ones.

``tests/golden/keras*.h5`` were written by Keras 3.15 with random weights; ``keras_io.npz`` holds
two images and what Keras made of them.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.interop_networks import images, networks
from tests.torch.hostile_files import one_text_again_and_again
from torch import nn

from bitwright.base import archives
from bitwright.base.errors import DataError, ModelError
from bitwright.interop import hdf5
from bitwright.interop.hdf5 import read_hdf5
from bitwright.interop.keras.arrays import keras_name
from bitwright.interop.keras.read import arrays_for, load_keras
from bitwright.interop.keras.write import keras_nodes, save_keras
from bitwright.interop.model_files import load_weights
from bitwright.interop.network import InputConvention, Network
from bitwright.interop.network_from_torch import network_of
from bitwright.interop.network_to_torch import module_of

h5py = pytest.importorskip("h5py")
GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FULL, WEIGHTS = GOLDEN / "keras_full.h5", GOLDEN / "keras.weights.h5"
NETWORKS = networks()


def blank(network: Network) -> Network:
    return network.with_arrays(
        {x.name: {k: 0 * v for k, v in x.arrays.items()} for x in network.layers if x.arrays}
    )


def equal(a: Network, b: Network, rename: bool = False) -> bool:
    return all(
        np.array_equal(values, b[keras_name(x.name) if rename else x.name].arrays[name])
        for x in a.layers
        for name, values in x.arrays.items()
    )


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``.keras`` archive is the configuration and the weights in a zip file."""
    path = tmp_path_factory.mktemp("keras") / "model.keras"
    with h5py.File(FULL) as file, zipfile.ZipFile(path, "w") as whole:
        whole.writestr("config.json", file.attrs["model_config"])
        whole.write(WEIGHTS, "model.weights.h5")
    return path


def test_a_model_of_keras_gives_keras_outputs(archive: Path) -> None:
    with np.load(GOLDEN / "keras_io.npz") as held:
        x, y = torch.from_numpy(held["x"].transpose(0, 3, 1, 2)), held["y"]
    for path in (FULL, archive):
        network = load_keras(path)
        with torch.no_grad():
            assert np.allclose(module_of(network)(x).numpy(), y, atol=1e-6)
        for weights in (FULL, WEIGHTS, archive):
            assert equal(arrays_for(blank(network), weights), network)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_there_and_back_is_bit_for_bit(name: str, tmp_path: Path) -> None:
    model, shape = NETWORKS[name]
    convention = InputConvention("RGB", 1 / 255, (104.0, 117.0, 123.5)[: shape[2]])
    network = network_of(model, shape, convention=convention)
    whole = save_keras(network, tmp_path / "net.h5")
    weights = save_keras(network, tmp_path / "net.weights.h5")
    back = load_keras(whole)
    assert back.convention == convention
    assert equal(network, back, rename=True)
    for path in (whole, weights):
        assert equal(network, arrays_for(blank(network), path))
    with torch.no_grad():
        assert torch.equal(model(images(shape)), module_of(back)(images(shape)))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.MaxPool2d(3, 2, 1), "numbers below zero"),
        (nn.MaxPool2d(2, 2, ceil_mode=True), "rounds the size up"),
        (nn.AvgPool2d(3, 1, 1, count_include_pad=False), "without the padding"),
    ],
)
def test_what_keras_cannot_say_is_refused_and_nothing_written(
    module: nn.Module, words: str, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), module).eval()
    with pytest.raises(ModelError, match=words):
        save_keras(network_of(model, (9, 9, 3)), tmp_path / "net.h5")
    assert not list(tmp_path.iterdir())


def test_axes_are_reordered_as_keras_has_them(tmp_path: Path) -> None:
    model, shape = NETWORKS["face"]
    path = save_keras(network_of(model, shape), tmp_path / "net.h5")
    with h5py.File(path) as file:
        group = file["model_weights"]
        assert set(file.attrs) == {
            "backend",
            "keras_version",
            "model_config",
            "bitwright_input",
        }
        names = [n.decode() for n in group.attrs["layer_names"]]
        conv, fc = names[[n.endswith("_0") for n in names].index(True)], names[-1]
        kernel = group[conv][f"{conv}/kernel:0"]
        assert np.array_equal(kernel[()], model[0].weight.detach().permute(2, 3, 1, 0).numpy())
        assert np.array_equal(group[fc][f"{fc}/kernel:0"][()], model[-1].weight.detach().T.numpy())


def test_a_flattened_image_is_ordered_with_the_channel_fastest() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(3 * 4 * 2, 5)).eval()
    network = network_of(model, (6, 4, 1))
    nodes, output = keras_nodes(network)
    dense = next(node for node in nodes if node.name == output)
    x = images((6, 4, 1))
    with torch.no_grad():
        hidden = model[0](x).permute(0, 2, 3, 1).reshape(2, -1)  # as Keras' Flatten does it
        scores = hidden @ torch.from_numpy(dense.arrays["kernel"]) + model[2].bias
        assert torch.allclose(scores, model(x), atol=1e-6)


class Joined(nn.Module):
    """Two flattened images and a vector, joined, normalised, read by a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.norm = nn.BatchNorm1d(3 * 4 * 2 + 3 + 2 * 6 * 4)
        self.dense = nn.Linear(self.norm.num_features, 5)

    def parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        y = self.conv(x)
        return [y, self.pool(y), x]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([nn.functional.relu(p).flatten(1) for p in self.parts(x)], 1)
        return self.dense(self.norm(y))


def test_joined_flattened_images_are_ordered_part_by_part(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Joined().eval()
        for values in (model.norm.running_mean, model.norm.running_var, model.norm.weight):
            values.data.uniform_(0.5, 2)
    network = network_of(model, (6, 4, 2))
    nodes, _output = keras_nodes(network)
    arrays = {node.kind: node.arrays for node in nodes if node.arrays}
    norm = {n: torch.from_numpy(v) for n, v in arrays["BatchNormalization"].items()}
    x = images((6, 4, 2))
    with torch.no_grad():  # as Keras does it: every part with the channel fastest
        y = torch.cat([p.relu().permute(0, 2, 3, 1).flatten(1) for p in model.parts(x)], 1)
        y = (y - norm["moving_mean"]) / (norm["moving_variance"] + model.norm.eps).sqrt()
        y = y * norm["gamma"] + norm["beta"]
        scores = y @ torch.from_numpy(arrays["Dense"]["kernel"]) + model.dense.bias
        assert torch.allclose(scores, model(x), atol=1e-5)
    save_keras(network, tmp_path / "net.h5")
    assert equal(network, load_keras(tmp_path / "net.h5"), rename=True)


def test_weights_into_a_model_of_other_names_go_by_order(tmp_path: Path) -> None:
    model, shape = NETWORKS["plain"]
    path = save_keras(network_of(model, shape), tmp_path / "net.h5")
    other = nn.Sequential(*list(model.children()))  # the same layers under numbers
    for parameter in other.parameters():
        parameter.data = parameter.data + 1
    load_weights(other, path, shape)
    with torch.no_grad():
        assert torch.equal(other.eval()(images(shape)), module_of(load_keras(path))(images(shape)))


@pytest.mark.parametrize("source", [FULL, WEIGHTS])
def test_files_cut_anywhere_are_refused(source: Path, tmp_path: Path) -> None:
    network = load_keras(FULL)
    whole = source.read_bytes()
    for length in (0, 8, 100, len(whole) // 2, len(whole) - 1):
        cut = tmp_path / source.name
        cut.write_bytes(whole[:length])
        with pytest.raises(DataError):
            arrays_for(network, cut)


def test_foreign_files_are_refused_and_the_model_is_as_it_was(tmp_path: Path) -> None:
    model, shape = NETWORKS["plain"]
    before = {k: v.clone() for k, v in model.state_dict().items()}
    text, plain = tmp_path / "a.h5", tmp_path / "b.h5"
    text.write_text("no HDF5")
    with h5py.File(plain, "w") as file:
        file["x"] = np.zeros(3)
    for path, words in (
        (text, "neither HDF5"),
        (plain, "none of Keras"),
        (FULL, "another network"),
    ):
        with pytest.raises(DataError, match=words):
            load_weights(model, path, shape)
    with pytest.raises(DataError, match="weights only"):
        load_keras(WEIGHTS)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def _copied(tmp_path: Path) -> Path:
    path = tmp_path / "copy.h5"
    path.write_bytes(FULL.read_bytes())
    return path


def test_a_shape_or_number_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = _copied(tmp_path)
    with h5py.File(path, "r+") as file:
        place = file["model_weights/fc/fc"]
        kernel = place["kernel"][()]
        del place["kernel"]
        place["kernel"] = kernel[:-1]
    with pytest.raises(DataError, match=r"weight of layer 'fc' has the shape"):
        load_keras(path)
    path = _copied(tmp_path)
    with h5py.File(path, "r+") as file:
        file["model_weights/c1/c1/kernel"][0, 0, 0, 0] = np.inf
    with pytest.raises(DataError, match="kernel of layer 'c1' holds NaN"):
        load_keras(path)


def test_a_layer_is_listed_once(tmp_path: Path) -> None:
    """Else its numbers are looked at as often as a few bytes say."""
    path = _copied(tmp_path)
    with h5py.File(path, "r+") as file:
        names = [*file["model_weights"].attrs["layer_names"]]
        file["model_weights"].attrs["layer_names"] = [*names, names[0]]
    with pytest.raises(DataError, match="lists a layer twice"):
        load_keras(path)


def test_links_out_of_the_file_are_refused(tmp_path: Path) -> None:
    path = _copied(tmp_path)
    with h5py.File(path, "r+") as file:
        del file["model_weights/fc/fc/bias"]
        file["model_weights/fc/fc/bias"] = h5py.ExternalLink(str(FULL), "model_weights/fc/fc/bias")
    with pytest.raises(DataError, match="is a link"):
        load_keras(path)


def test_a_virtual_data_set_is_refused(tmp_path: Path) -> None:
    """It shows the numbers of another file."""
    path, name = _copied(tmp_path), "model_weights/fc/fc/bias"
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["numbers"] = np.arange(5.0)
    with h5py.File(path, "r+") as file:
        layout = h5py.VirtualLayout(file[name].shape, "f4")
        layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "numbers", file[name].shape)
        del file[name]
        file.create_virtual_dataset(name, layout)
    with pytest.raises(DataError, match="lies in another file"):
        load_keras(path)


def test_zeros_that_take_no_room_in_the_file_are_refused(tmp_path: Path) -> None:
    """Forty sets that were never written, of 400 MB each, in a file of a few kilobytes."""
    path = _copied(tmp_path)
    with h5py.File(path, "r+") as file:
        for number in range(40):
            file.create_dataset(f"model_weights/zeros{number}", (10**8,), "f4", chunks=(10**6,))
    with pytest.raises(DataError, match="more data than fit into such a file"):
        load_keras(path)


def test_chunks_count_as_what_they_unpack_to(tmp_path: Path) -> None:
    """Four numbers, in a chunk of a thousand million."""
    path = _copied(tmp_path)
    with h5py.File(path, "r+") as file:
        file.create_dataset("model_weights/x", (4,), "f4", maxshape=(None,), chunks=(10**9,))
    with pytest.raises(DataError, match=r"'x' of shape \(4,\): more data than fit"):
        load_keras(path)


def test_chunks_may_be_larger_than_what_lies_in_them(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(4.0), maxshape=(None,), chunks=(1024,))
        file.attrs["none"] = []
        file.attrs["names"] = ["\u00e4", "b"]
    found = read_hdf5(tmp_path / "x.h5", "x.h5")
    assert found.arrays["/x"].tolist() == [0, 1, 2, 3]
    assert found.attributes["/"] == {"none": [], "names": ["\u00e4", "b"]}


@pytest.mark.parametrize(
    ("spare", "said"), [(1 << 30, "more data than fit"), (32 << 20, "memory|asks for more than")]
)
def test_texts_count_as_often_as_they_are_there(
    spare: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FREE", 1 << 20)
    monkeypatch.setattr(hdf5, "_SPARE", spare)
    path = tmp_path / "x.h5"
    path.write_bytes(one_text_again_and_again(100_000, 2000))
    with pytest.raises(DataError, match=said):
        read_hdf5(path, "x.h5")


def deflated_twice(path: Path, size: int, count: int) -> Path:
    """Sets of four numbers, each of which unpacks to ``size`` bytes."""
    body = zlib.compress(zlib.compress(bytes(size), 9), 9)
    with h5py.File(path, "w") as file:
        for number in range(count):
            made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            made.set_chunk((4,))
            made.set_deflate(9)
            made.set_deflate(9)
            space = h5py.h5s.create_simple((4,), (h5py.h5s.UNLIMITED,))
            name = f"x{number}".encode()
            held = h5py.h5d.create(file.id, name, h5py.h5t.IEEE_F32LE, space, made)
            held.write_direct_chunk((0,), body)
    return path


def test_what_filters_unpack_has_memory_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5, "_LEAST_SECONDS", 1)
    with pytest.raises(DataError, match="takes more than 1 s to read"):
        read_hdf5(deflated_twice(tmp_path / "x.h5", 100 << 20, 40), "x.h5")
    monkeypatch.setattr(archives, "FREE", 1 << 20)
    monkeypatch.setattr(hdf5, "_SPARE", 32 << 20)
    with pytest.raises(DataError, match="is no whole HDF5 file"):
        read_hdf5(deflated_twice(tmp_path / "x.h5", 100 << 20, 1), "x.h5")


def test_children_are_sought_once() -> None:
    class Counted(dict[str, dict[str, object]]):
        times = 0

        def __iter__(self) -> Iterator[str]:
            self.times += 1
            return super().__iter__()

    groups = Counted({"/": {}, "/b": {}, "/b/c": {}, "/a": {}})
    file = hdf5.Hdf5(groups, {"/b/x": np.zeros(1)})
    for _ in range(9):
        assert file.children("/") == ["b", "a"] and file.children("/b/") == ["c", "x"]
    assert not file.children("/a") and groups.times == 1


def test_names_of_layers_may_be_any_text(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_group("layers/a\nb/vars")
    with pytest.raises(DataError, match="holds no weights"):
        load_keras(tmp_path / "x.h5")


def test_groups_that_lead_to_each_other_are_refused(tmp_path: Path) -> None:
    """Thirty groups, each twice in the one before: a thousand million ways."""
    path = _copied(tmp_path)
    with h5py.File(path, "r+") as file:
        place = file["model_weights"]
        for _ in range(30):
            place["one"] = place["two"] = (inner := place.create_group("both"))
            place = inner
    with pytest.raises(DataError, match="is there more than once"):
        load_keras(path)


def test_groups_as_many_as_channels_of_a_group_are_no_depthwise_kernel(tmp_path: Path) -> None:
    source = network_of(nn.Sequential(nn.Conv2d(4, 8, 3, groups=2)).eval(), (9, 9, 4))
    save_keras(source, tmp_path / "grouped.h5")
    assert equal(source, load_keras(tmp_path / "grouped.h5"), rename=True)
