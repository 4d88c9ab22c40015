# SPDX-License-Identifier: Apache-2.0
"""Images that are drawn on for a page."""

from __future__ import annotations

import numpy as np
import pytest
from tests.memory_peak import peak

from bitwright.tasks.drawing import TRUE, enlarged, with_boxes, with_maps

RNG = np.random.default_rng(0)


def test_small_images_are_enlarged_by_whole_factors() -> None:
    picture = RNG.integers(0, 256, (28, 40), dtype=np.uint8)
    large = enlarged(picture)
    assert large.shape == (168, 240, 3)
    assert np.array_equal(large[::6, ::6, 1], picture) and np.array_equal(
        large[5::6, 5::6, 0], picture
    )


@pytest.mark.parametrize(
    ("shape", "drawn"),
    [
        ((8, 20_000), (1, 1000)),
        ((20_000, 8, 3), (1000, 1)),
        ((4, 300), (12, 900)),
        ((600, 1000, 3), (600, 1000)),
        ((2000, 1025), (1000, 513)),
    ],
)
def test_long_images_are_drawn_as_long_as_a_page_is_wide(
    shape: tuple[int, ...], drawn: tuple[int, int]
) -> None:
    """A picture of 8 x 20 000 became one of 160 x 400 000, and 7 GB with its maps."""
    picture, numbers = np.full(shape, 99, np.uint8), np.ones(shape[:2], np.int64)
    numbers[: shape[0] // 2, : shape[1] // 2] = 0
    boxes = [((0.0, 0.0, 0.5, 0.5), TRUE)]
    assert with_boxes(picture, boxes).shape == (*drawn, 3)
    assert with_maps(picture, [numbers, numbers]).shape == (drawn[0], 3 * drawn[1] + 12, 3)
    assert peak(lambda: with_maps(picture, [numbers, numbers])) < 100 << 20
    assert (enlarged(picture) == 99).all()
