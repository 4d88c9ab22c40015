# SPDX-License-Identifier: Apache-2.0
"""The quantizers of Vailakis 2022 as policies."""

from __future__ import annotations

from typing import Any

#: What the DPU computes in: int8 of one power of two a tensor (its fix position), for input,
#: weights, activations and biases; the power of the least squared error ("diffs" of the vendor's
#: quantizer). Weights, biases and input are rounded half away from zero, activations half up, as
#: the engine does it (vai_q_pytorch, "Configuration Restrictions"). Batch norms are folded first,
#: what is concatenated has one scale, and the mean error of every channel is taken off its bias:
#: without that a narrow DenseNet loses 0.6 points, with it 0.25 (docs/results/dpu_calibrated.md).
DPU: dict[str, Any] = {
    "input": {"format": "dfp8", "scale": "mse", "rounding": "half_away"},
    "weight": {"format": "dfp8", "scale": "mse", "rounding": "half_away"},
    "activation": {"format": "dfp8", "scale": "mse", "rounding": "half_up"},
    "bias": {"format": "dfp8", "scale": "max", "rounding": "half_away"},
    "methods": ["fold", "calibrate", "bias"],
    "concat_scales": "shared",
}


def _affine(bits: int) -> dict[str, Any]:
    """Affine, one scale and zero point a tensor, by the running averages of its minimum and its
    maximum (chapter 4 of the document): activations unsigned, weights signed. The network's
    input has 8 bits in both; the document does not say.
    """
    return {
        "input": {"format": "uint8", "scale": "minmax"},
        "weight": {"format": f"int{bits}", "scale": "minmax", "granularity": "per_tensor"},
        "activation": {"format": f"uint{bits}", "scale": "minmax"},
        "methods": ["calibrate"],
    }


#: Of all experiments without the vendor's tools, 8 and 4 bits.
AFFINE_8, AFFINE_4 = _affine(8), _affine(4)
