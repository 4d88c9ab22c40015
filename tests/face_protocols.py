# SPDX-License-Identifier: Apache-2.0
"""A verification protocol without pictures of anybody."""

from __future__ import annotations

import numpy as np

from bitwright.papers.faces.images import FacePreprocessing, face_set
from bitwright.papers.faces.pairs import FaceProtocol, make_pairs
from bitwright.papers.faces.protocols import protocol


def synthetic_protocol(
    people: int = 20, each: int = 6, *, size: int = 32, noise: float = 0.15, seed: int = 0
) -> FaceProtocol:
    """Faces of nobody: every person is a smooth random pattern, every picture of it a noisy copy.

    Half of the people are for view 1, half for view 2.

    Args:
        noise: standard deviation, of white; the larger the harder.
    """
    generator = np.random.default_rng(seed)
    coarse = generator.random((people, 8, 8, 3))
    repeated = np.repeat(np.repeat(coarse, -(-size // 8), 1), -(-size // 8), 2)[:, :size, :size]
    images, keys = [], []
    for person in range(people):
        for number in range(1, each + 1):
            noisy = repeated[person] + noise * generator.standard_normal((size, size, 3))
            images.append((noisy.clip(0, 1) * 255).round().astype(np.uint8))
            keys.append((f"p{person}", number))
    faces = face_set("synthetic", images, keys, FacePreprocessing(size=size, align=False))
    half = people // 2
    first = [key for key in keys if int(key[0][1:]) < half]
    second = [key for key in keys if int(key[0][1:]) >= half]
    folds = min(10, people - half)
    return protocol(
        "synthetic", faces, make_pairs(first, 1, seed=seed), make_pairs(second, folds, seed=seed)
    )
