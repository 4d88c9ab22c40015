# SPDX-License-Identifier: Apache-2.0
"""The network of a candidate, as a model of the zoo: ``bundle_net``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bitwright.base.errors import ModelError
from bitwright.models.common import Shape, activation_layer, initialise
from bitwright.models.skynet import Reorg
from bitwright.papers.skynet.search.candidate import BUNDLES, REORDERED, Candidate


class BundleNet(nn.Module):
    """Bundles and pools, and a 1 x 1 convolution that gives ``outputs`` numbers a cell."""

    def __init__(self, candidate: Candidate, inputs: int, outputs: int) -> None:
        super().__init__()
        layer = activation_layer("bundle_net", candidate.activation)
        last = len(candidate.channels) - 1
        self.around = candidate.last_pool if candidate.bypass else -1
        self.bundles, self.pools = nn.ModuleList(), nn.ModuleList()
        channels = inputs
        for place, (width, pool) in enumerate(
            zip(candidate.channels, candidate.pools, strict=True)
        ):
            if candidate.bypass and place == last:
                channels += REORDERED**2 * candidate.channels[self.around]
            self.bundles.append(_bundle(candidate.bundle, channels, width, layer))
            self.pools.append(nn.MaxPool2d(2) if pool else nn.Identity())
            channels = width
        self.reorg = Reorg(REORDERED) if candidate.bypass else None
        self.head = nn.Conv2d(channels, outputs, 1)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, outputs, H / stride, W / stride)."""
        early = x
        for place, (bundle, pool) in enumerate(zip(self.bundles, self.pools, strict=True)):
            if self.reorg is not None and place == len(self.bundles) - 1:
                x = torch.cat([self.reorg(early), x], 1)
            x = bundle(x)
            if place == self.around:
                early = x
            x = pool(x)
        found: Tensor = self.head(x)
        return found


def _bundle(kind: str, inputs: int, width: int, layer: type[nn.Module]) -> nn.Sequential:
    parts: list[nn.Module] = []
    channels = inputs
    for each in BUNDLES[kind]:
        name = each.rstrip("0123456789")
        size = int(each[len(name) :] or 1)
        wide = channels if name == "dw" else width
        groups = channels if name == "dw" else 1
        parts += [
            nn.Conv2d(channels, wide, size, padding=size // 2, groups=groups, bias=False),
            nn.BatchNorm2d(wide),
            layer(),
        ]
        channels = wide
    return nn.Sequential(*parts)


def bundle_net(
    num_outputs: int,
    input_shape: Shape,
    *,
    bundle: str = "dw3-pw",
    channels: Sequence[int] = (16, 32, 32),
    pools: Sequence[bool] = (True, True, False),
    bypass: bool = False,
    activation: str = "relu6",
) -> BundleNet:
    """The network of a candidate of SkyNet's search.

    Args:
        bundle: one of `search.candidate.BUNDLES`.
        channels, pools: behind each repetition: its channels, and whether a 2 x 2 pool follows.
        bypass: whether what goes into the last pool also goes around it to the last bundle.

    Raises:
        ModelError: an option makes no sense, or the image is no multiple of the output's cells.
    """
    candidate = Candidate(bundle, tuple(channels), tuple(pools), bypass, activation)
    height, width, inputs = input_shape
    if height % candidate.stride or width % candidate.stride:
        raise ModelError(
            f"images of {height} x {width} are no multiple of a cell of {candidate.stride}",
            where="bundle_net",
            hint="fewer pools, or another image_size",
        )
    return BundleNet(candidate, inputs, num_outputs)
