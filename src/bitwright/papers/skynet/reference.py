# SPDX-License-Identifier: Apache-2.0
"""SkyNet in float64 NumPy, written down as simply as possible: what the torch model is held to.

Nothing is shared with the torch model but the names of its weights: convolutions are sums over
kernel offsets, batch norm is not folded, the reorganisation is its closed form.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
_EPSILON = 1e-5


def evaluate_skynet(weights: Mapping[str, ArrayLike], images: ArrayLike) -> Floats:
    """The published SkyNet (ReLU6, bypass) on preprocessed images.

    Args:
        weights: by state-dict name, such as ``model_p1.0.0.weight``.
        images: (N, 3, H, W), H and W multiples of 8.

    Returns:
        (N, 10, H/8, W/8).
    """
    w = {name: np.asarray(value, dtype=np.float64) for name, value in weights.items()}
    x = np.asarray(images, dtype=np.float64)
    x = max_pool(_bundle(w, "model_p1.0", x))
    x = max_pool(_bundle(w, "model_p1.2", x))
    early = _bundle(w, "model_p1.4", x)
    late = _bundle(w, "model_p2.1", max_pool(early))
    late = _bundle(w, "model_p2.2", late)
    x = np.concatenate([space_to_depth(early), late], axis=1)
    return pointwise(_bundle(w, "model_p3.0", x), w["model_p3.1.weight"])


def _bundle(w: Mapping[str, Floats], name: str, x: Floats) -> Floats:
    x = relu6(_norm(w, f"{name}.1", depthwise(x, w[f"{name}.0.weight"])))
    return relu6(_norm(w, f"{name}.4", pointwise(x, w[f"{name}.3.weight"])))


def _norm(w: Mapping[str, Floats], name: str, x: Floats) -> Floats:
    mean, var, gamma, beta = (
        w[f"{name}.{field}"][:, None, None]
        for field in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / np.sqrt(var + _EPSILON) * gamma + beta


def relu6(x: Floats) -> Floats:
    """``min(max(x, 0), 6)``."""
    return np.clip(x, 0.0, 6.0)


def depthwise(x: Floats, weight: Floats) -> Floats:
    """3 x 3, padding 1: ``out[c, y, x] = sum weight[c, 0, i, j] * in[c, y + i - 1, x + j - 1]``."""
    height, width = x.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros_like(x)
    for i in range(3):
        for j in range(3):
            part = padded[:, :, i : i + height, j : j + width]
            out += weight[:, 0, i, j][:, None, None] * part
    return out


def pointwise(x: Floats, weight: Floats) -> Floats:
    """1 x 1: every pixel's channels times a matrix."""
    n, c, height, width = x.shape
    out = weight[:, :, 0, 0] @ x.reshape(n, c, height * width)
    return out.reshape(n, weight.shape[0], height, width)


def max_pool(x: Floats) -> Floats:
    """2 x 2 with stride 2."""
    rows = np.maximum(x[:, :, 0::2], x[:, :, 1::2])
    return np.maximum(rows[..., 0::2], rows[..., 1::2])


def space_to_depth(x: Floats) -> Floats:
    """``out[(2 dy + dx) C + c, y, x] = in[c, 2 y + dy, 2 x + dx]``."""
    parts = [x[:, :, dy::2, dx::2] for dy in range(2) for dx in range(2)]
    return np.concatenate(parts, axis=1)
