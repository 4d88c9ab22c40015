# SPDX-License-Identifier: Apache-2.0
"""The face DenseNets: layer and parameter counts of the literature, shapes, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bitwright.base.errors import ModelError
from bitwright.models import build_model
from bitwright.papers.faces.face_densenet import KERAS_EPSILON, count_layers, face_densenet

SHAPE = (80, 80, 3)
DENSENETS = {
    "1.0": ({}, (13, 13, 1, 2), 50, 381_888, 380_864),
    "2.0": ({"blocks": (6, 12), "final_width": 256}, (39, 38, 1, 3), 139, 1_479_104, 1_475_776),
}


def numbers(model: nn.Module) -> int:
    """Parameters as Keras counts them: with the means and variances of batch norms."""
    running = [b for name, b in model.named_buffers() if "running" in name]
    return sum(tensor.numel() for tensor in [*model.parameters(), *running])


@pytest.mark.parametrize("name", DENSENETS)
def test_counts(name: str):
    options, kinds, keras, with_bias, without = DENSENETS[name]
    model = face_densenet(SHAPE, **options)
    count = count_layers(model)
    assert (count.conv, count.norm, count.dense, count.pool) == kinds
    assert count.keras == keras
    assert numbers(model) == with_bias
    assert numbers(face_densenet(SHAPE, bias=False, **options)) == without


@pytest.mark.parametrize("name", ["face_densenet10", "face_densenet20"])
def test_zoo_gives_embeddings(name: str):
    model = build_model(name, input_shape=SHAPE, num_classes=None)
    assert model.eval()(torch.zeros(2, 3, 80, 80)).shape == (2, 128)
    assert {m.eps for m in model.modules() if isinstance(m, nn.BatchNorm2d)} == {KERAS_EPSILON}


def test_sizes_inside_follow_keras():
    """Keras rounds the max pool down: 40 x 40 becomes 20 x 20, then 10 x 10 behind a transition."""
    model = face_densenet(SHAPE, blocks=(6, 12), final_width=256).eval()
    seen = []
    for module in model.modules():
        if isinstance(module, nn.MaxPool2d | nn.AvgPool2d | nn.AdaptiveAvgPool2d):
            module.register_forward_hook(lambda m, i, o: seen.append(tuple(o.shape[1:])))
    model(torch.zeros(1, *SHAPE[::-1]))
    assert seen == [(64, 20, 20), (128, 10, 10), (256, 1, 1)]


def test_other_densenets():
    options = {"blocks": (2, 3, 2), "growth": 8, "bottleneck": 0, "compression": 0.25}
    model = face_densenet((64, 48, 1), embedding=40, stem_width=12, **options)
    assert model(torch.zeros(2, 1, 64, 48)).shape == (2, 40)
    assert count_layers(model).conv == 1 + 7 + 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding": 0}, "embedding"),
        ({"blocks": ()}, "blocks"),
        ({"growth": 0}, "growth"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"compression": 2.0}, "compression"),
        ({"blocks": (1,) * 7}, "too small"),
    ],
)
def test_impossible_options(options: dict[str, object], message: str):
    with pytest.raises(ModelError, match=message):
        face_densenet(SHAPE, **options)  # type: ignore[arg-type]
