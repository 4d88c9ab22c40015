# SPDX-License-Identifier: Apache-2.0
"""The larger networks of the zoo, as they are, in four bits: frozen model == integer graph."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bitwright.data.detection import preprocess
from bitwright.data.folders import Decoding, decode_image
from bitwright.data.listing import list_images, opened
from bitwright.ir import Graph
from bitwright.ir.executor import Executor
from bitwright.lower import certify, check, optimise
from bitwright.lower.compare import compare_edges
from bitwright.models import build_model
from bitwright.quantize import IntegerModel, Policy, apply

POLICY = Policy.uniform("int4", "uint4", "uint8")


@pytest.fixture(scope="module")
def cifar(data_dir: Path) -> torch.Tensor:
    """96 real images, spread over the classes."""
    path = data_dir / "cifar10-jpg.zip"
    if not path.is_file():
        pytest.skip(f"no {path.name} in the test data")
    listing = list_images(path)
    with opened(listing) as read:
        names = listing.names[:: len(listing.names) // 96][:96]
        images = np.stack([decode_image(read(name), Decoding(), name) for name in names])
    return torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32)) / 255


def with_statistics(model: nn.Module, images: torch.Tensor) -> nn.Module:
    """Batch norms that have seen real images, as after training; factors that differ."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the plain average
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    model.train()
    with torch.no_grad():
        for part in images.split(32):
            model(part)
    return model.eval()


def exact_graph(
    model: nn.Module, policy: Policy, images: torch.Tensor
) -> tuple[IntegerModel, Graph]:
    frozen: IntegerModel = apply(model, policy, "freeze", images[:16])
    graph = replace(frozen.graph, name="net")
    compare_edges(graph, frozen.edges(images[-1:]), accumulators=True).require()
    optimised = optimise(graph)
    check(certify(optimised), optimised)
    return frozen, optimised


@pytest.mark.parametrize(
    ("name", "options", "ops"),
    [
        ("resnet20", {}, {"conv": 21, "add": 9, "dense": 1, "sum_pool": 1}),
        ("densenet21", {}, {"conv": 20, "concat": 8, "dense": 1, "sum_pool": 4}),
        pytest.param(
            "densenet21",
            {"form": "convolution_first"},
            {"conv": 20, "concat": 8, "dense": 1, "sum_pool": 4},
            marks=pytest.mark.long,
        ),
        ("alexnet", {"width": 0.25}, {"conv": 5, "max_pool": 3, "dense": 1}),
        (
            "googlenet",
            {"width": 0.125},
            {"conv": 64, "concat": 9, "max_pool": 11, "dense": 1, "sum_pool": 1},
        ),
        (
            "googlenet_imagenet",
            {"width": 0.125},
            {"conv": 57, "concat": 9, "max_pool": 13, "dense": 1},
        ),
        ("squeezenet", {"width": 0.25}, {"conv": 26, "concat": 8, "max_pool": 3}),
        ("squeezenet_imagenet", {"width": 0.25}, {"conv": 26, "concat": 8, "max_pool": 3}),
        ("mobilenet_cifar", {"width": 0.25}, {"conv": 27, "dense": 1, "sum_pool": 1}),
        ("mobilenet", {"width": 0.25}, {"conv": 27, "dense": 1}),
    ],
)
def test_four_bits_on_cifar(cifar: torch.Tensor, name: str, options, ops: dict[str, int]) -> None:
    model = build_model({"name": name, "options": options}, 10, (32, 32, 3))
    frozen, graph = exact_graph(with_statistics(model, cifar), POLICY, cifar)
    counted = Counter(node.op for node in graph)
    assert {op: counted[op] for op in ops} == ops
    levels = apply_input(frozen, cifar)
    found = Executor(graph, threads=1).run({"x": levels})
    expected = frozen.levels(cifar).numpy()
    assert np.array_equal(found["scores"], expected)
    assert len(np.unique(expected, axis=0)) > 1  # it tells images apart


def test_the_alexnet_of_imagenet_in_four_bits(cifar: torch.Tensor) -> None:
    """Dropout is gone, 3 x 3 pools overlap, and three matrices end it."""
    options = {"width": 0.125, "dropout": 0.5}
    model = build_model({"name": "alexnet_imagenet", "options": options}, 10, (96, 96, 3))
    images = torch.nn.functional.interpolate(cifar[:32], scale_factor=3)
    _, graph = exact_graph(model.eval(), POLICY, images)
    counted = Counter(node.op for node in graph)
    assert (counted["conv"], counted["max_pool"], counted["dense"]) == (5, 3, 3)


def apply_input(frozen: IntegerModel, images: torch.Tensor) -> np.ndarray:
    return frozen.edges(images)["x"]


@pytest.mark.parametrize("threshold_bits", [6, 1])
@pytest.mark.parametrize(("activation", "bypass"), [("relu6", True), ("relu", False)])
def test_skynet_in_four_bits(threshold_bits: int, activation: str, bypass: bool) -> None:
    options = {"activation": activation, "bypass": bypass}
    model = build_model({"name": "skynet", "options": options}, None, (24, 32, 3))
    rng = np.random.default_rng(0)
    photos = [rng.integers(0, 256, (24, 32, 3), dtype=np.uint8) for _ in range(16)]
    images = torch.from_numpy(preprocess(photos, (24, 32)))
    policy = Policy.from_dict(
        {"weight": "int4", "activation": "uint4", "input": "int8", "threshold_bits": threshold_bits}
    )
    _, graph = exact_graph(with_statistics(model, images), policy, images)
    counted = Counter(node.op for node in graph)
    assert counted["conv"] == 13 and counted["max_pool"] == 3
    assert counted["concat"] == counted["space_to_depth"] == int(bypass)
    assert counted["requant" if threshold_bits == 1 else "threshold"] >= 12
    assert graph.types[graph.outputs[0]].shape == (3, 4, 10)
