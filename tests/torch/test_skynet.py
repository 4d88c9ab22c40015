# SPDX-License-Identifier: Apache-2.0
"""The published SkyNet: weights, and the same boxes as a float64 evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bitwright.base.errors import DataError, ModelError
from bitwright.data.detection import load_images, preprocess
from bitwright.data.detection_boxes import contest_xml, decode, iou, to_pixels
from bitwright.models import build_model
from bitwright.models.skynet import SkyNet, folded_weights
from bitwright.papers.skynet.reference import evaluate_skynet
from bitwright.papers.skynet.weights import load_skynet_weights
from bitwright.quantize import Policy, apply
from bitwright.quantize.activation_quantizer import ActivationQuantizer

h5py = pytest.importorskip("h5py")


@pytest.fixture(scope="module")
def published(data_dir: Path) -> Path:
    folder = data_dir / "skynet"
    if not (folder / "dac.weights").is_file():
        pytest.skip("no skynet/dac.weights in the test data")
    return folder


@pytest.fixture(scope="module")
def network(published: Path) -> SkyNet:
    return load_skynet_weights(published / "dac.weights")


def test_random_weights_and_images_of_another_size() -> None:
    model = build_model("skynet", None, (24, 40, 3), seed=3)
    generator = torch.Generator().manual_seed(5)
    for name, value in model.state_dict().items():  # batch norms that do something
        if "running_mean" in name or name.endswith("bias"):
            value.copy_(torch.randn(value.shape, generator=generator) * 0.1)
        elif "running_var" in name:
            value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
    images = torch.randn(2, 3, 24, 40, generator=generator)
    with torch.no_grad():
        found = model.eval().double()(images.double()).numpy()
    expected = evaluate_skynet(model.state_dict(), images.numpy())
    assert found.shape == (2, 10, 3, 5)
    assert np.abs(found - expected).max() < 1e-10
    assert np.abs(expected).max() > 0.01


def test_boxes_on_the_contest_images_are_those_of_float64(published: Path, network: SkyNet) -> None:
    images = load_images([published / "images" / f"{n}.jpg" for n in range(16)])
    batch = preprocess([image.image for image in images])
    with torch.no_grad():
        found = decode(network(torch.from_numpy(batch)).numpy())
    expected = decode(evaluate_skynet(network.state_dict(), batch))
    for field in ("anchor", "row", "column"):
        assert np.array_equal(getattr(found, field), getattr(expected, field))
    assert (iou(found.boxes, expected.boxes) > 1 - 1e-5).all()
    pairs = zip(to_pixels(found.boxes), to_pixels(expected.boxes), strict=True)
    assert all(contest_xml("x", a) == contest_xml("x", b) for a, b in pairs)
    assert (expected.confidence > 0.5).sum() == 15


def test_both_published_files_hold_the_same_network(published: Path, network: SkyNet) -> None:
    other = load_skynet_weights(published / "weights_floating.bin")
    pairs = zip(folded_weights(network).values(), folded_weights(other).values(), strict=True)
    for (weight, bias), (its_weight, its_bias) in pairs:
        assert torch.allclose(weight, its_weight, rtol=0, atol=1e-6)
        assert torch.allclose(bias, its_bias, rtol=0, atol=1e-6)


def write(path: Path, change: Callable[[dict[str, np.ndarray]], object]) -> Path:
    state = SkyNet().state_dict()
    arrays = {k: v.numpy().copy() for k, v in state.items() if "num_batches" not in k}
    change(arrays)
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def test_points_are_where_a_policy_may_quantize_anew() -> None:
    """The document's variant B: beside variant A's, four of 8 bits; the fifth is the input's."""
    torch.manual_seed(0)
    plain, pointed = (SkyNet(width=0.1, points=points).eval() for points in (False, True))
    pointed.load_state_dict(plain.state_dict())
    x = torch.rand(2, 3, 16, 32)
    assert torch.equal(pointed(x), plain(x))
    rules = [{"type": "Hardtanh", "role": "activation", "format": "int8"}]
    made = {}
    for name, model in (("A", plain), ("B", pointed)):
        policy = Policy.from_dict({"activation": "uint4", "rules": rules if name == "B" else []})
        converted = apply(model, policy, "train", x).eval()
        kinds = [m.format.name for m in converted.modules() if isinstance(m, ActivationQuantizer)]
        made[name] = {kind: kinds.count(kind) for kind in kinds}
        frozen = apply(converted, policy, "freeze")
        assert torch.equal(frozen(x), converted(x))
    assert made == {"A": {"uint8": 1, "uint4": 12}, "B": {"uint8": 1, "uint4": 12, "int8": 4}}


def test_a_file_of_our_own_is_read_back(tmp_path: Path) -> None:
    def number(arrays: dict[str, np.ndarray]) -> None:
        for place, array in enumerate(arrays.values()):
            array[:] = place / 100

    model = load_skynet_weights(write(tmp_path / "w.h5", number))
    state = {k: v for k, v in model.state_dict().items() if "num_batches" not in k}
    for place, value in enumerate(state.values()):
        assert value.eq(torch.tensor(place / 100)).all()
    assert not model.training


KEY = "model_p2.1.3.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop(KEY), f"lacks '{KEY}'"),
        (lambda a: a.update({KEY: a[KEY][:100]}), rf"'{KEY}' has the shape \(100, 192, 1, 1\)"),
        (lambda a: a[KEY].__setitem__(0, np.nan), f"'{KEY}' holds NaN"),
        (lambda a: a.update({"fc.weight": np.zeros(3, np.float32)}), r"has 'fc\.weight'"),
        (lambda a: a["model_p3.0.1.running_var"].fill(-1), "negative variance"),
        (lambda a: a.update({KEY: np.array("text", dtype="S4")}), f"lacks '{KEY}'"),
    ],
)
def test_wrong_weights_are_named_and_leave_the_model_alone(
    tmp_path: Path, change, message: str
) -> None:
    path = write(tmp_path / "w.h5", change)
    model = SkyNet()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(DataError, match=message):
        load_skynet_weights(path, model)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    whole = write(tmp_path / "w.h5", lambda a: None).read_bytes()
    cut = tmp_path / "cut.h5"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut\.h5: is no whole HDF5 file"):
        load_skynet_weights(cut)
    cut.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(DataError, match="neither HDF5 nor 1754872 bytes"):
        load_skynet_weights(cut)
    cut.write_bytes(b"")
    with pytest.raises(DataError, match="but 0 bytes"):
        load_skynet_weights(cut)
    cut.write_bytes(np.full(438718, np.inf, "<f4").tobytes())
    with pytest.raises(DataError, match=r"model_p1\.0\.0\.weight' holds NaN"):
        load_skynet_weights(cut)
    with pytest.raises(DataError, match="cannot be read"):
        load_skynet_weights(tmp_path / "absent")
    with pytest.raises(DataError, match="cannot be read"):
        load_skynet_weights(tmp_path)
    with pytest.raises(ModelError, match="not Linear"):
        load_skynet_weights(cut, torch.nn.Linear(1, 1))


def test_names_and_sizes_that_only_a_broken_file_has(tmp_path: Path) -> None:
    path = write(tmp_path / "w.h5", lambda a: None)
    with h5py.File(path, "a") as file:
        file.create_dataset("huge", (1 << 40,), "f4", chunks=(1 << 20,))
    with pytest.raises(DataError, match=r"'huge' of shape \(1099511627776,\): more data"):
        load_skynet_weights(path)
    whole = write(tmp_path / "w.h5", lambda a: None).read_bytes()
    path.write_bytes(whole.replace(b"model_p3.", b"model_\xff\xfe."))
    with pytest.raises(DataError):
        load_skynet_weights(path)


@pytest.mark.parametrize("seed", range(12))
def test_flipped_bytes_never_end_in_another_error(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    path = write(tmp_path / "w.h5", lambda a: None)
    content = bytearray(path.read_bytes())
    for place in rng.integers(8, 40_000, rng.integers(1, 40)):
        content[place] = rng.integers(256)
    path.write_bytes(bytes(content[: len(content) if seed % 4 else rng.integers(8, len(content))]))
    try:
        load_skynet_weights(path)
    except DataError as error:
        assert "w.h5" in str(error)


def test_other_networks_do_not_take_the_published_weights(published: Path) -> None:
    with pytest.raises(DataError, match="has the shape"):
        load_skynet_weights(published / "dac.weights", SkyNet(bypass=False))


def test_without_h5py_the_extra_is_named(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"bitwright\[exchange\]"):
        load_skynet_weights(published / "dac.weights")
