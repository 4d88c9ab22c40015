# SPDX-License-Identifier: Apache-2.0
"""Small networks whose output is an image: a grid of boxes, or a map of classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bitwright.base.errors import ModelError
from bitwright.models.common import activation_layer, check_options

Shape = tuple[int, int, int]


def _unit(inputs: int, outputs: int, activation: type[nn.Module]) -> nn.Sequential:
    """3 x 3 convolution that keeps the size, batch norm, activation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        activation(),
    )


def box_cnn(
    num_outputs: int,
    input_shape: Shape,
    *,
    widths: Sequence[int] = (8, 16, 32),
    activation: str = "relu",
) -> nn.Sequential:
    """3 x 3 convolutions, each with a 2 x 2 pool, one more, and a 1 x 1 convolution that gives
    ``num_outputs`` numbers for each cell of the grid that is left: with the default widths one of
    8 x 8 pixels.

    Raises:
        ModelError: the image is smaller than a cell.
    """
    check_options("box_cnn", widths=widths)
    height, width, channels = input_shape
    cell = 1 << len(widths)
    if min(height, width) < cell:
        raise ModelError(
            f"images of {height} x {width} are smaller than a cell of {cell}", where="box_cnn"
        )
    layer = activation_layer("box_cnn", activation)
    parts: list[nn.Module] = []
    for each in widths:
        parts += [_unit(channels, each, layer), nn.MaxPool2d(2)]
        channels = each
    parts += [_unit(channels, channels, layer), nn.Conv2d(channels, num_outputs, 1)]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    """One step down and up again with a bypass (after Ronneberger et al. 2015): what the fine half
    sees is joined with what the coarse half makes of it.

    Args:
        inputs, outputs: channels of the image and of the map.
        fine, coarse: channels at full and at half resolution.
    """

    def __init__(
        self, inputs: int, outputs: int, fine: int, coarse: int, activation: type[nn.Module]
    ) -> None:
        super().__init__()
        self.first = _unit(inputs, fine, activation)
        self.down = nn.MaxPool2d(2)
        self.coarse = nn.Sequential(
            _unit(fine, coarse, activation),
            _unit(coarse, coarse, activation),
        )
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.last = _unit(fine + coarse, fine, activation)
        self.map = nn.Conv2d(fine, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, outputs, H, W)."""
        fine = self.first(x)
        coarse = self.up(self.coarse(self.down(fine)))
        return self.map(self.last(torch.cat([fine, coarse], 1)))


def unet(
    num_outputs: int,
    input_shape: Shape,
    *,
    widths: Sequence[int] = (8, 16),
    activation: str = "relu",
) -> UNet:
    """A U-Net of one level; maps are as large as the image.

    Raises:
        ModelError: height or width is odd, or there are not two widths.
    """
    check_options("unet", widths=widths)
    height, width, channels = input_shape
    if len(widths) != 2 or height % 2 or width % 2:
        raise ModelError(
            f"needs two widths and an even height and width, found {list(widths)} and "
            f"{height} x {width}",
            where="unet",
        )
    layer = activation_layer("unet", activation)
    return UNet(channels, num_outputs, widths[0], widths[1], layer)
