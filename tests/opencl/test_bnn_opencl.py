# SPDX-License-Identifier: Apache-2.0
"""The document's kernels and ours on an OpenCL device: the CPU's integers, for every length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.base.errors import DataError, ToolError
from bitwright.papers.bnn_soc import device as devices
from bitwright.papers.bnn_soc.device import Device
from bitwright.papers.bnn_soc.kernels import BINARY
from bitwright.papers.bnn_soc.model import Model
from bitwright.papers.bnn_soc.opencl_engine import (
    DeviceMatrix,
    DeviceNetwork,
    opencl_products,
    outer_update,
    transposed_product,
    vector_mult,
)
from bitwright.papers.bnn_soc.packing import pack32
from bitwright.papers.bnn_soc.reference import ReferenceTrainer
from bitwright.papers.bnn_soc.settings import Settings, initial_weights

LENGTHS = [*range(1, 201), 784, 4096]


@pytest.fixture(scope="module")
def device() -> Device:
    return Device.open()


def signs(random: np.random.Generator, *shape: int) -> np.ndarray:
    return 2 * random.integers(0, 2, shape) - 1


def test_every_length(device: Device) -> None:
    random = np.random.default_rng(1)
    for length in LENGTHS:
        weight, x = signs(random, 11, length), signs(random, length)
        for variant in BINARY:
            assert np.array_equal(vector_mult(device, variant, weight, x), weight @ x)


@pytest.mark.parametrize("length", [1, 33, 784, 4096])
def test_sizes_known_to_the_compiler(device: Device, length: int) -> None:
    random = np.random.default_rng(length)
    weight, frames = signs(random, 37, length), signs(random, 13, length)
    static = vector_mult(device, "popcount", weight, frames[0], static=True)
    assert np.array_equal(static, weight @ frames[0])
    found = DeviceMatrix(device, weight, binary=True).product(frames)
    assert np.array_equal(found, frames @ weight.T)


@pytest.mark.parametrize("length", [100])
def test_floats(device: Device, length: int) -> None:
    random = np.random.default_rng(length)
    weight, frames = random.standard_normal((37, length)), random.standard_normal((13, length))
    found = DeviceMatrix(device, weight, binary=False).product(frames)
    np.testing.assert_allclose(found, frames @ weight.T, rtol=1e-4, atol=1e-4)
    by_row = vector_mult(device, "float", weight, frames[0])
    np.testing.assert_allclose(by_row, weight @ frames[0], rtol=1e-4, atol=1e-4)


def test_the_printed_listing_loses_every_term(device: Device) -> None:
    weight, x = np.full((3, 100), 0.9), np.full(100, 0.9)
    assert not vector_mult(device, "as_printed", weight, x).any()


@given(
    st.lists(st.integers(1, 150), min_size=1, max_size=3), st.integers(1, 9), st.integers(0, 999)
)
@settings(max_examples=3)
def test_networks(sizes: list[int], frames: int, seed: int) -> None:
    """Layer by layer and in one enqueue: the sums of the CPU."""
    s = Settings(sizes=(*sizes, 10), seed=seed)
    model = Model(s, tuple(initial_weights(s)), (None,) * s.layers)
    images = np.random.default_rng(seed).integers(0, 256, (frames, sizes[0]), dtype=np.uint8)
    device = Device.open()
    expected = model.sums(images)
    assert np.array_equal(model.sums(images, opencl_products(device, model)), expected)
    network = DeviceNetwork(device, model)
    sent, launches = device.traffic.sent, device.traffic.launches
    assert np.array_equal(network.sums(images), expected)
    assert device.traffic.launches - launches == 1  # and of bytes the images alone
    assert device.traffic.sent - sent == pack32(images).nbytes


def test_backward_products_train_as_the_reference(device: Device) -> None:
    random = np.random.default_rng(5)
    s = Settings(sizes=(100, 70, 10), rate_start=1e-3)
    trainer = ReferenceTrainer(s)
    delta = random.standard_normal(10).astype(np.float32)
    delta[3] = 0
    pulled = trainer._pulled(delta, 1)
    assert np.array_equal(transposed_product(device, trainer.weights[1], delta), pulled)
    x = signs(random, 70).astype(np.float32)
    size = np.float32(1e-3 * s.rate_scale_of(1))
    masters, packed = outer_update(device, trainer.weights[1], delta, x, size)
    trainer._push(delta, x, 1, 1e-3)
    assert np.array_equal(masters, trainer.weights[1])
    assert np.array_equal(packed, pack32(trainer.weights[1]))


def test_what_cannot_be_says_so(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolError, match="no device 'abacus'"):
        Device.open("abacus")
    with pytest.raises(ToolError, match=r"does not build(.|\n)*undeclared_thing"):
        device.kernel("broken", "k", text="__kernel void k() { undeclared_thing = 1; }")
    with pytest.raises(ToolError, match=r"OpenCL|no room"):
        device.empty(1 << 50)
    with pytest.raises(DataError, match="expected 5 inputs"):
        vector_mult(device, "xnor", np.ones((2, 5)), np.ones(6))
    monkeypatch.setattr(devices, "_devices", list)
    with pytest.raises(ToolError, match="no OpenCL device") as caught:
        Device.open()
    assert "pocl-opencl-icd" in str(caught.value.hint)
