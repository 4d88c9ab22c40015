# SPDX-License-Identifier: Apache-2.0
"""Networks with SkyNet's bundles for tests without torch."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np


def folded(seed: int) -> OrderedDict[str, tuple[np.ndarray, np.ndarray]]:
    """Weights of a network with SkyNet's bundles and few channels."""
    rng = np.random.default_rng(seed)
    layers: OrderedDict[str, tuple[np.ndarray, np.ndarray]] = OrderedDict()

    def bundle(name: str, inputs: int, outputs: int) -> None:
        layers[f"{name}.0"] = rng.normal(0, 0.4, (inputs, 1, 3, 3)), rng.normal(0, 0.3, inputs)
        weight = rng.normal(0, 1.5 / inputs**0.5, (outputs, inputs, 1, 1))
        layers[f"{name}.3"] = weight, rng.normal(0, 0.3, outputs)

    bundle("model_p1.0", 3, 4)
    bundle("model_p1.2", 4, 5)
    bundle("model_p1.4", 5, 6)
    bundle("model_p2.1", 6, 7)
    bundle("model_p2.2", 7, 8)
    bundle("model_p3.0", 8 + 4 * 6, 4)
    layers["model_p3.1"] = rng.normal(size=(10, 4, 1, 1)), np.zeros(10)
    return layers
