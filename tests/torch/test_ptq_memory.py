# SPDX-License-Identifier: Apache-2.0
"""Memory of post-training quantization: patches, moments, all samples of two networks."""

from __future__ import annotations

import pytest
import torch
from tests.ptq_networks import calibration, trained_digits
from torch import nn
from torch.nn import functional as F

from bitwright.base import memory
from bitwright.base.errors import ModelError
from bitwright.quantize import Policy
from bitwright.quantize.layers import QuantConv2d, QuantLayer
from bitwright.quantize.ptq import adaround, gptq, matrices, post_training_quantize, reconstruction
from bitwright.quantize.ptq.matrices import columns, paired_columns
from bitwright.quantize.ptq.reconstruction import LayerView

W4A4 = Policy.uniform("int4", "uint4", "uint8")


def _layers(model: nn.Module) -> list[QuantLayer]:
    seen: list[QuantLayer] = []
    converted, _ = post_training_quantize(model, W4A4, torch.rand(4, 4, 9, 8), ["calibrate"])
    seen += [m for m in converted.modules() if isinstance(m, QuantLayer)]
    return seen


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": (2, 3), "padding": (1, 2), "stride": (2, 1)},
        {"kernel_size": 3, "dilation": (2, 1), "groups": 2},
        {"kernel_size": 1, "stride": 3},
        {"kernel_size": (3, 2), "padding": 1, "groups": 4},
    ],
)
def test_patches_are_those_of_unfold_all_or_some(options: dict[str, int]) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 4, **options)
    (layer,) = _layers(nn.Sequential(conv, nn.ReLU()).eval())
    assert isinstance(layer, QuantConv2d)
    x = torch.rand(3, 4, 9, 8)
    down, across = conv.padding if isinstance(conv.padding, tuple) else (0, 0)
    padded = F.pad(x, (across, across, down, down))
    patches = F.unfold(padded, conv.kernel_size, conv.dilation, 0, conv.stride)
    wanted = patches.reshape(3, conv.groups, -1, patches.shape[2]).permute(1, 2, 0, 3)
    wanted = wanted.reshape(conv.groups, -1, 3 * patches.shape[2])
    assert torch.equal(columns(layer, x), wanted)
    kept = torch.randperm(wanted.shape[2])[:5]
    assert torch.equal(columns(layer, x, kept), wanted[:, :, kept])


def test_a_large_kernel_has_fewer_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches of 43 x 43 of 64 images took 13 GB before any were left out."""
    torch.manual_seed(0)
    layer = _layers(nn.Sequential(nn.Conv2d(4, 2, 3), nn.ReLU()).eval())[0]
    x = [torch.rand(3, 4, 9, 8)]
    view = LayerView("0", layer, layer, x, x, rectified=False)
    (one,) = paired_columns(view)
    assert one[0].shape == (1, 36, 3 * 7 * 6)
    monkeypatch.setattr(matrices, "_NUMBERS", 36 * 10)
    ((few, beside),) = paired_columns(view)
    assert few.shape == (1, 36, 10) and torch.equal(few, beside)
    (again,) = paired_columns(view)
    assert torch.equal(again[0], few)  # the same ones


def test_a_layer_that_is_too_wide_for_moments_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """23 232 weights a channel: 4.3 GB for each matrix, and a file of 186 kB says so."""
    model = trained_digits()
    there = 3 * 12 * 8 * 50**2  # 36 weights a channel of conv2 have room, 256 of the last do not
    monkeypatch.setattr(memory, "machine_memory", lambda: there)
    _, report = post_training_quantize(model, W4A4, calibration(64))
    noted = {layer.path: layer.note for layer in report.layers}
    assert not noted["conv1"] and "weights a channel" in noted["fc1"]
    rounded = next(layer for layer in report.layers if layer.path == "fc1")
    assert rounded.error <= rounded.nearest_error  # the bias is corrected
    assert "* fc1: no gptq" in report.to_markdown()


def test_samples_that_do_not_fit_are_counted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained_digits()
    for module in (memory, reconstruction):
        monkeypatch.setattr(module, "machine_memory", lambda: 1 << 20)
    monkeypatch.setattr(reconstruction, "held_memory", lambda: 1 << 18)
    with pytest.raises(ModelError, match="64 samples take") as refused:
        post_training_quantize(model, W4A4, calibration(64))
    fit = int(str(refused.value.hint).split("samples: ")[1].split(" fit")[0])
    assert 1 < fit < 64
    post_training_quantize(model, W4A4, calibration(fit))


@pytest.mark.parametrize("most", [20, 1000])
def test_adaround_takes_its_columns_batch_by_batch(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = _layers(nn.Sequential(nn.Conv2d(4, 2, 3), nn.ReLU()).eval())[0]
    x, r = ([torch.rand(2, 4, 9, 8), torch.rand(1, 4, 9, 8)] for _ in range(2))
    view = LayerView("0", layer, layer, x, r, rectified=False)
    monkeypatch.setattr(adaround, "_COLUMNS", most)
    found = adaround._columns(view)
    whole = [torch.cat([columns(layer, each) for each in side], dim=2) for side in (x, r)]
    order = torch.arange(whole[0].shape[2])
    if most < len(order):
        order = torch.randperm(len(order), generator=torch.Generator().manual_seed(1))[:most]
    for got, every in zip(found, whole, strict=True):
        assert torch.equal(got, every[:, :, order])


@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
def test_gptq_rounds_some_rows_at_a_time(granularity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row with every scale took 170 bytes for each byte of the file."""
    weight = {"format": "int4", "granularity": granularity}
    policy = Policy.from_dict({"input": "uint8", "weight": weight, "activation": "uint4"})

    def levels() -> dict[str, torch.Tensor]:
        converted, _ = post_training_quantize(trained_digits(), policy, calibration(64))
        return converted.state_dict()

    whole = levels()
    monkeypatch.setattr(gptq, "_PIECE", 1000)
    for name, value in levels().items():
        assert torch.equal(value, whole[name])
