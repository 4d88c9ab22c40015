# SPDX-License-Identifier: Apache-2.0
"""What a training loop of one's own makes of pixels, as the table that hosts apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import ModelError
from bitwright.data.preprocessing import PIXELS, Preprocessing, is_size
from bitwright.host.images import to_levels

if TYPE_CHECKING:
    from torch import Tensor

    from bitwright.quantize import IntegerModel

#: Pixels (H, W, C) of an image, uint8, to what the model takes (C, H, W).
PixelsToReals = Callable[[NDArray[np.uint8]], Any]

_AXES = 3


def preprocessing_of(
    integers: IntegerModel, pixels: PixelsToReals, shape: tuple[int, ...]
) -> Preprocessing:
    """The function as a table of levels; image files are stretched to the network's size.

    Args:
        shape: of the network's input, (H, W, C).

    Raises:
        ModelError: the network takes no such images, the function gives something else, or what it
            makes of a pixel depends on others.
    """
    from bitwright.pipeline.steps.lower import level_table

    if len(shape) != _AXES or shape[-1] not in (1, 3):
        raise ModelError(
            f"the model takes inputs of shape {shape}, channels last",
            where="pixels",
            hint="image files have one channel or three: leave pixels out",
        )
    if not is_size(*shape[:2]):
        raise ModelError(
            f"the model takes images of {shape[0]} x {shape[1]} pixels, more than hosts make",
            where="pixels",
            hint="leave pixels out, and give hosts levels",
        )
    whole = (np.full(shape, value, np.uint8) for value in range(PIXELS))
    levels = level_table(integers, (_reals(pixels, image) for image in whole))
    found = Preprocessing(size=(shape[0], shape[1]), channels=shape[2], levels=levels)
    noise = np.random.default_rng(0).integers(0, PIXELS, shape, dtype=np.uint8)
    wanted = integers.input_levels(_reals(pixels, noise)[None])[0].permute(1, 2, 0).numpy()
    if not np.array_equal(to_levels(noise, found), wanted):
        raise ModelError(
            "what the function makes of a pixel depends on where it is or on the pixels around it",
            where="pixels",
            hint="such as a division by the image's maximum; hosts look each pixel up by itself",
        )
    return found


def _reals(pixels: PixelsToReals, image: NDArray[np.uint8]) -> Tensor:
    import torch

    found = torch.as_tensor(pixels(image)).to(torch.float32)
    wanted = (image.shape[-1], *image.shape[:-1])
    if tuple(found.shape) != wanted or not bool(torch.isfinite(found).all()):
        raise ModelError(
            f"gave {tuple(found.shape)} for pixels {image.shape}",
            where="pixels",
            hint=f"expected finite numbers {wanted}, as the model takes an image: "
            "lambda p: torch.from_numpy(p).permute(2, 0, 1) / 255",
        )
    return found
