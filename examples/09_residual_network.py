# SPDX-License-Identifier: Apache-2.0
"""Lesson 9: a network with forks, and a rate that it is to reach: SiLU, Hardswish, depthwise
convolutions, three residual additions, on pictures of your own.

The search folds forks and joins with what stands around them. `benchmarks/residual_network.py`
takes the same recipe through place and route.
"""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn

from bitwright.pipeline.api import estimate_recipe
from bitwright.pipeline.recipe import recipe_from_dict

RATE = 15_780  # images a second
SHAPES = ("disc", "ring", "square", "cross")


class Residual(nn.Module):
    """Depthwise and pointwise convolution with an addition around them."""

    def __init__(self, channels: int, activation: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
            nn.BatchNorm2d(channels), activation,
            nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.body(x) + x)


def make_model(num_classes: int) -> nn.Module:
    """A stem, three residual blocks on two sizes, a classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.SiLU(),
        Residual(16, nn.SiLU()),
        nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(24), nn.Hardswish(),
        Residual(24, nn.Hardswish()),
        Residual(24, nn.Hardswish()),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, num_classes),
    )  # fmt: skip


def draw(folder: Path, count: int = 40) -> None:
    """Pictures of four shapes in colours of their own, 48 x 56 pixels."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:48, :56]
    for name in SHAPES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            dy, dx = y - random.integers(16, 32), x - random.integers(16, 40)
            size, far = int(random.integers(8, 14)), np.hypot(dy, dx)
            inside = {
                "disc": far < size,
                "ring": (far < size) & (far > size - 4),
                "square": np.maximum(abs(dy), abs(dx)) < size,
                "cross": (np.minimum(abs(dy), abs(dx)) < 3) & (np.maximum(abs(dy), abs(dx)) < size),
            }[name]
            pixels = random.normal(80, 25, (48, 56, 3)) + inside[..., None] * random.uniform(
                60, 120, 3
            )
            picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            picture.save(folder / name / f"{index}.png")


def recipe(pictures: Path, **hardware: Any) -> dict[str, Any]:
    """The recipe, with other fields of the section ``hardware`` if they are given."""
    return {
        "name": "residual",
        "data": {"name": "folder", "path": str(pictures)},
        "model": f"{Path(__file__).stem}:make_model",
        "quant": {"input": "uint8", "weight": "int4", "activation": "int5"},
        "train": {
            "float": {"epochs": 12, "batch_size": 16, "lr": 0.003},
            "quantized": {"epochs": 4, "batch_size": 16, "lr": 0.001},
        },
        "hardware": {"target": "ecp5-85k", "clock_mhz": 100, "target_fps": RATE, **hardware},
    }


if __name__ == "__main__":
    draw(Path("pictures"))
    made = recipe_from_dict(recipe(Path("pictures").resolve()), base_dir=Path(__file__).parent)
    found = estimate_recipe(made)  # untrained: cycles and cells do not depend on the weights
    reached = found["clock_mhz"] * 1e6 / found["interval"]
    print(f"{found['interval']} cycles an image, {reached:,.0f} images/s by the model")
    print(", ".join(f"{count:,.0f} {kind}" for kind, count in found["resources"].items()))
    assert reached >= RATE, "the search keeps its promise"
