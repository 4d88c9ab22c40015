# SPDX-License-Identifier: Apache-2.0
"""Lesson 2: your own plain nn.Module and your own images, here two kinds of drawn pictures.

The recipe names the model as ``module:function`` and a folder of class folders. This program makes
the pictures and the recipe; the model is `make_model` below.
"""

from pathlib import Path

import numpy as np
from PIL import Image
from torch import nn

from bitwright import build_recipe
from bitwright.pipeline.api import explain_recipe
from bitwright.pipeline.recipe import recipe_from_dict


def make_model(num_classes: int) -> nn.Module:
    """Plain layers, nothing of Bitwright in them."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 5 * 5, num_classes),
    )  # fmt: skip


def draw(folder: Path) -> None:
    """Noisy pictures with a bar: lying or standing."""
    random = np.random.default_rng(0)
    for name in ("lying", "standing"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(60):
            pixels = random.normal(60, 20, (12, 12))
            place = int(random.integers(3, 9))
            pixels[place : place + 2, 2:10] += 120
            picture = pixels if name == "lying" else pixels.T
            image = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
            image.save(folder / name / f"{index}.png")


if __name__ == "__main__":
    draw(Path("pictures"))
    recipe = recipe_from_dict(
        {
            "name": "bars",
            "data": {"name": "folder", "path": "pictures"},
            "model": f"{Path(__file__).stem}:make_model",
            "quant": {"input": "uint4", "weight": "ternary", "activation": "uint2"},
            "train": {"float": {"epochs": 8, "batch_size": 16}, "quantized": {"epochs": 4}},
        },
        base_dir=Path(__file__).parent,
    )
    for row in explain_recipe(recipe):
        print(f"{row['layer']:8} {row['operand']:10} {row['format']:8} {row['reason']}")
    summary = build_recipe(recipe, "runs/bars", until="map")
    for label in ("accuracy, integer graph", "cycles an image, predicted", "LUT"):
        print(label, summary.figure(label))
