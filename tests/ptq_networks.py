# SPDX-License-Identifier: Apache-2.0
"""Small networks for post-training quantization: a trained one, and some with lively norms."""

from __future__ import annotations

import copy
from functools import cache

import torch
from torch import Tensor, nn

from bitwright.data import DataSplits, load_dataset
from bitwright.models import build_model


def enliven(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every batch norm statistics and parameters as after a training, in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    for norm in model.modules():
        if not isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            continue
        shape = norm.running_mean.shape
        norm.running_mean.copy_(torch.randn(shape, generator=generator) * 0.3)
        norm.running_var.copy_(torch.rand(shape, generator=generator) * 2 + 0.2)
        if norm.affine:
            with torch.no_grad():
                norm.weight.copy_(torch.randn(shape, generator=generator) * 0.4 + 1)
                norm.bias.copy_(torch.randn(shape, generator=generator) * 0.3)
    return model.eval()


@cache
def digits() -> DataSplits:
    """The 8 x 8 digits that come with scikit-learn."""
    return load_dataset("digits", None, 0)


@cache
def _trained() -> nn.Module:
    splits = digits()
    model = build_model("digits_cnn", 10, splits.image_shape)
    images = torch.from_numpy(splits.train.reals())
    labels = torch.from_numpy(splits.train.labels)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(150):
        chosen = torch.randint(len(images), (64,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    return model.eval()


def trained_digits() -> nn.Module:
    """A float CNN with batch norm, trained for a second."""
    return copy.deepcopy(_trained())


def calibration(count: int = 128) -> Tensor:
    """(N, 1, 8, 8) training images as reals."""
    return torch.from_numpy(digits().train.take(range(count)).reals())


def scored(model: nn.Module) -> float:
    """Share of right answers on the test images."""
    test = digits().test
    with torch.no_grad():
        answers = model(torch.from_numpy(test.reals())).argmax(dim=1)
    return float((answers == torch.from_numpy(test.labels)).double().mean())


def largest_difference(first: nn.Module, second: nn.Module, x: Tensor) -> float:
    """Largest difference of two models' outputs, relative to the largest output of the first."""
    with torch.no_grad():
        a, b = first.eval()(x).double(), second.eval()(x).double()
    return float((a - b).abs().max()) / max(float(a.abs().max()), 1e-30)
