# SPDX-License-Identifier: Apache-2.0
"""What a run notes for hosts, of images of any size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from bitwright.base.errors import ModelError
from bitwright.pipeline.designs.own_pixels import preprocessing_of
from bitwright.pipeline.steps.lower import host_input
from bitwright.quantize.spec import Rounding


@pytest.mark.parametrize(
    ("size", "taken"), [((4, 8192), True), ((4, 8196), False), ((8192, 4096), False)]
)
def test_images_longer_than_hosts_make_have_no_preprocessing(
    size: tuple[int, int], taken: bool
) -> None:
    """`lower`, behind all of the training, ended with pydantic's ValidationError."""
    images = SimpleNamespace(dtype=np.dtype(np.uint8))
    data = SimpleNamespace(
        train=SimpleNamespace(images=images, noun="images"),
        preparation=None,
        image_shape=(*size, 1),
        scale=1 / 255,
        classes=("no", "yes"),
    )
    work: Any = SimpleNamespace(
        data=data, recipe=SimpleNamespace(data=SimpleNamespace(stream=None))
    )
    integers: Any = SimpleNamespace(
        graph=SimpleNamespace(inputs=["x"], types={"x": SimpleNamespace(scale=(1 / 255,))}),
        input_format=SimpleNamespace(name="uint8"),
        rounding=Rounding.HALF_EVEN,
        input_levels=lambda images: (images[:, :, :1, :1] * 255).round().to(torch.int64),
    )
    given = host_input(work, integers)
    assert given.shape == (*size, 1)
    assert (given.preprocessing is not None) == taken


def test_a_model_of_longer_images_than_hosts_make_takes_no_function_of_pixels() -> None:
    anything: Any = None
    with pytest.raises(ModelError, match="4 x 8193 pixels, more than hosts make"):
        preprocessing_of(anything, anything, (4, 8193, 1))
