# SPDX-License-Identifier: Apache-2.0
"""How far the simulation of training differs from the integers that evaluation computes.

    python benchmarks/training_difference.py

Random networks of three convolutions with batch norm and a dense layer, random images. Counted are
activations that are on another level, and scores that differ. Writes
docs/results/training_difference.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bitwright.quantize import Policy, QuantizedModel, apply
from bitwright.quantize.activation_quantizer import ActivationQuantizer

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results" / "training_difference.md"
NETWORKS, IMAGES, SHAPE = 20, 64, (3, 16, 16)
BITS = (4, 6, 8)


def network(seed: int) -> nn.Module:
    """Three convolutions of 8 to 32 channels and a dense layer, with running statistics."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    channels = SHAPE[0]
    for stride in (1, 2, 1):
        width = int(torch.randint(8, 33, ()))
        layers += [nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)]
        layers.append(nn.ReLU())
        channels = width
    model = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(channels * 16, 10))
    for _ in range(5):
        model(torch.rand(IMAGES, *SHAPE))
    return model.eval()


@torch.no_grad()
def activations_apart(model: QuantizedModel, images: Tensor) -> tuple[float, float]:
    """Share of activations on another level, and the largest distance in levels."""
    seen: dict[str, Tensor] = {}
    quantizers = {
        node.name: model.get_submodule(str(node.target))
        for node in model.graph.nodes
        if node.op == "call_module"
    }
    quantizers = {n: m for n, m in quantizers.items() if isinstance(m, ActivationQuantizer)}
    handles = [
        module.register_forward_hook(lambda m, i, o, name=name: seen.update({name: o.clone()}))
        for name, module in quantizers.items()
    ]
    model.simulate(images)
    for handle in handles:
        handle.remove()
    integers = model.integers(SHAPE)
    assert integers is not None
    exact = integers.node_values(images)
    apart = torch.cat(
        [
            ((seen[name].double() - exact[name]).abs() / float(module.unit)).flatten()
            for name, module in quantizers.items()
            if name in exact
        ]
    )
    return float((apart > 0.5).double().mean()), float(apart.max())


@torch.no_grad()
def row(bits: int) -> str:
    """One row of the table."""
    shares, furthest, scores = [], 0.0, 0.0
    for seed in range(NETWORKS):
        images = torch.rand(IMAGES, *SHAPE)
        policy = Policy.uniform(f"int{bits}", f"uint{bits}", "uint8")
        model = apply(network(seed), policy, "train", images).eval()
        share, distance = activations_apart(model, images)
        shares.append(share)
        furthest = max(furthest, distance)
        exact, simulated = model(images), model.simulate(images)
        scores = max(scores, float((exact - simulated).abs().max() / exact.abs().max()))
    return (
        f"| {bits} | {100 * np.mean(shares):.4f} % | {100 * max(shares):.4f} % | {furthest:.2f} | "
        f"{100 * scores:.2f} % |"
    )


def main() -> None:
    head = (
        "# What training differs by\n\n"
        "`python benchmarks/training_difference.py`: the simulation of training against the "
        "integers of evaluation, both\non running statistics; "
        f"{NETWORKS} random networks of three convolutions and a dense layer, {IMAGES} images "
        "each.\nWeights and activations have the bits of the first column; "
        f"torch {torch.__version__}.\n\n"
        "| bits | activations on another level, mean | largest share of a network | furthest, in "
        "levels | largest difference of a score, of the largest score |\n|---|---|---|---|---|\n"
    )
    text = head + "\n".join(row(bits) for bits in BITS) + "\n"
    PAGE.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
