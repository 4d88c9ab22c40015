# SPDX-License-Identifier: Apache-2.0
"""Real digits through the whole of lowering: trained, frozen, lowered, optimised, exported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bitwright.data import load_dataset
from bitwright.interop.onnx.export_qonnx import export_qonnx
from bitwright.ir import Graph
from bitwright.ir.executor import Executor
from bitwright.lower import certify, check, optimise
from bitwright.lower.compare import compare_edges
from bitwright.models import build_model
from bitwright.quantize import IntegerModel, Policy, apply


def as_torch(images: np.ndarray, scale: float) -> torch.Tensor:
    return torch.from_numpy(np.moveaxis(images, -1, 1).astype(np.float32) * np.float32(scale))


def trained(seed: int) -> nn.Module:
    """A float digits CNN after a few epochs: enough for weights that are not random."""
    train = load_dataset("digits").train
    model = build_model("digits_cnn", 10, (8, 8, 1), seed=seed)
    images, labels = as_torch(train.images, train.scale), torch.from_numpy(train.labels)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    order = torch.Generator().manual_seed(seed)
    for _ in range(6):
        for batch in torch.randperm(len(images), generator=order).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Calibration images, held-out images, held-out labels."""
    splits = load_dataset("digits")
    return (
        as_torch(splits.train.images[:256], splits.train.scale),
        as_torch(splits.test.images, splits.test.scale),
        splits.test.labels,
    )


@pytest.fixture(scope="module")
def float_model() -> nn.Module:
    return trained(0)


@pytest.mark.parametrize(
    ("weight", "activation"), [("int4", "uint4"), ("int8", "uint8"), ("ternary", "uint2")]
)
def test_held_out_digits(
    tmp_path: Path,
    float_model: nn.Module,
    digits: tuple[torch.Tensor, torch.Tensor, np.ndarray],
    weight: str,
    activation: str,
) -> None:
    calibration, images, labels = digits
    policy = Policy.uniform(weight, activation, "uint4")
    frozen: IntegerModel = apply(float_model, policy, "freeze", calibration)
    graph = replace(frozen.graph, name="digits")
    compare_edges(graph, frozen.edges(images), accumulators=True).require()
    optimised = optimise(graph, check=8)

    def fast(which: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return Executor(which, threads=1).run(feeds)

    whole = compare_edges(optimised, frozen.edges(images), execute=fast)
    whole.require()
    assert whole.edges == {"scores": 0, "label": 0} and whole.values == 11 * len(images)
    assert "bias" not in optimised.nodes[0].params
    certificate = certify(optimised)
    check(certificate, optimised)
    assert all(claim.saved > 0 for claim in certificate.claims)
    if weight != "ternary":
        feeds = {"x": frozen.edges(images)["x"]}
        accuracy = (optimised.run(feeds)["label"][:, 0] == labels).mean()
        assert accuracy > 0.85
    levels = frozen.edges(images[:40])["x"]
    export_qonnx(optimised, tmp_path / "digits.onnx", feeds={"x": levels}, batch=20, frames=20)
