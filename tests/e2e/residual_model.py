# SPDX-License-Identifier: Apache-2.0
"""A user's own network with every join: a sum, a concatenation, depthwise layers, an average."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Joined(nn.Module):
    """Two branches that are added, one more that is joined to them, and a global average."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.point = nn.Conv2d(4, 4, 1)
        self.act = nn.ReLU()
        self.mix = nn.Conv2d(8, 6, 1)
        self.head = nn.Linear(6, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 1, 8, 8) -> (N, num_classes)."""
        early = torch.relu(self.stem(x))
        late = self.point(self.act(self.norm(self.deep(early))))
        both = torch.relu(early + late)
        mixed = torch.relu(self.mix(torch.cat([both, early], 1)))
        return self.head(mixed.mean((2, 3)))
