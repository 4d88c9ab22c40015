# SPDX-License-Identifier: Apache-2.0
"""Networks for the exchange tests: trained-looking numbers, every kind of layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bitwright.models import build_model
from bitwright.papers.faces.face_densenet import face_densenet

Shape = tuple[int, int, int]


class Odd(nn.Module):
    """Paddings, strides and kernels that differ by side, dilation, groups, both joins, averages."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, (3, 5), (2, 1), (1, 2), bias=True)
        self.wide = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=2, bias=False)
        self.norm = nn.BatchNorm2d(8, eps=1.001e-5)
        self.bare = nn.BatchNorm2d(8, affine=False)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.mean = nn.AvgPool2d(2, 2)
        self.drop = nn.Dropout(0.25)
        self.flatten = nn.Flatten()
        self.flat_norm = nn.BatchNorm1d(96)
        self.fc = nn.Linear(96, 7)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, 18, 12) -> (N, 7)."""
        x = self.stem(x).relu()
        y = self.norm(self.wide(x)) + self.bare(x)
        z = torch.cat([self.pool(torch.relu(y)), self.pool(x)], 1)
        z = self.mean(z)
        return self.fc(self.drop(self.flat_norm(self.flatten(z))))


def seasoned(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model in evaluation mode, with batch norms that have seen something."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            for values, low, high in (
                (module.running_mean, -1.0, 1.0), (module.running_var, 0.5, 2.0),
                (module.weight, 0.5, 1.5), (module.bias, -0.5, 0.5),
            ):  # fmt: skip
                if values is not None:
                    values.data.uniform_(low, high, generator=generator)
    return model.eval()


def networks() -> dict[str, tuple[nn.Module, Shape]]:
    """Networks of every family with the shape of their images."""
    small: Shape = (16, 16, 3)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        found: dict[str, tuple[nn.Module, Shape]] = {
            "odd": (Odd(), (18, 12, 3)),
            "plain": (build_model("mnist_cnn", 10, (12, 8, 1)), (12, 8, 1)),
            "residual": (
                build_model({"name": "resnet20", "options": {"blocks": [1, 1], "widths": [4, 8]}},
                            10, small), small,
            ),
            "dense": (
                build_model(
                    {"name": "densenet", "options": {"blocks": [2, 2], "growth": 4}}, 10, small
                ),
                small,
            ),
            "face": (face_densenet((40, 40, 3), blocks=(2,), growth=4), (40, 40, 3)),
        }  # fmt: skip
        return {name: (seasoned(model), shape) for name, (model, shape) in found.items()}


def images(shape: Shape, count: int = 2) -> Tensor:
    """Random images (N, C, H, W)."""
    height, width, channels = shape
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(3))
