# SPDX-License-Identifier: Apache-2.0
"""What a weight quantizer may keep beside its parameters: the table of a codebook, fixed levels.

Both are buffers that are None until they are set. They travel with the state dict, and float
weights that are loaded anew make the quantizer forget them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bitwright.base.errors import ModelError
from bitwright.formats import CodebookFormat, Format
from bitwright.formats.clustering import kmeans
from bitwright.formats.rounding import FloatArray
from bitwright.quantize.scale_rules import rows
from bitwright.quantize.scale_search import TINY
from bitwright.quantize.spec import Granularity, QuantSpec, ScaleRule

#: The names of the optional buffers.
OPTIONAL = ("table", "table_scale", "fixed_levels", "fixed_unit", "fixed_mask")
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


def make_room(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Load hook of a quantizer: an optional buffer is there if the state dict has it."""
    for name in OPTIONAL:
        value = state.get(prefix + name)
        if isinstance(value, Tensor):
            setattr(module, name, torch.empty_like(value))
            module.revision = module.revision + 1


def forget(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Load hook of a layer: with a weight (or bias) that comes alone, what its quantizer kept for
    another one is gone.
    """
    for parameter in ("weight", "bias"):
        quantizer = getattr(module, f"{parameter}_quantizer", None)
        if quantizer is None or prefix + parameter not in state:
            continue
        for name in OPTIONAL:
            if f"{prefix}{parameter}_quantizer.{name}" not in state:
                setattr(quantizer, name, None)
                quantizer.revision += 1


def smallest_integer(levels: Tensor) -> Tensor:
    """Whole numbers as the smallest torch integer type that holds them."""
    whole = levels.to(torch.int64)
    low, high = (int(whole.min()), int(whole.max())) if whole.numel() else (0, 0)
    fitting = (t for t in _INTEGERS if torch.iinfo(t).min <= low and high <= torch.iinfo(t).max)
    return whole.to(next(fitting))


def check_levels(
    levels: Tensor, unit: Tensor, number_format: Format, counts: tuple[int, ...]
) -> None:
    """Refuse levels that the format has not.

    Args:
        counts: how many units there may be.

    Raises:
        ModelError: what is wrong.
    """
    where, values = "fix_levels", levels.to(torch.float64)
    if unit.numel() not in counts:
        raise ModelError(
            f"{unit.numel()} units for a weight that may have {' or '.join(map(str, counts))}",
            where=where,
        )
    if not bool((torch.isfinite(unit) & (unit > 0)).all()):
        raise ModelError("a unit must be positive and finite", where=where)
    if not bool(torch.isfinite(values).all()) or not bool((values == values.round()).all()):
        raise ModelError("levels must be whole numbers", where=where)
    if not number_format.exact_levels:
        return
    known = holds(number_format, values.cpu().numpy())
    if not known.all():
        wrong = values.cpu().numpy()[~known].flat[0]
        raise ModelError(
            f"{wrong:.0f} is no level of {number_format}",
            where=where,
            hint=f"levels lie in {number_format.min_level} .. {number_format.max_level}",
        )


def holds(number_format: Format, levels: FloatArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether whole numbers are levels of a format; of blocks, levels shifted by an exponent."""
    whole = levels.astype(np.int64)
    known = number_format.contains(whole) & (whole.astype(np.float64) == levels)
    if number_format.block:
        for _ in range(62):
            if known.all():
                break
            even = whole % 2 == 0
            whole = np.where(known | ~even, whole, whole // 2)
            known = known | (even & number_format.contains(whole))
    return known


def fit_codebook(weights: list[Tensor], spec: QuantSpec) -> tuple[CodebookFormat, list[Tensor]]:
    """The codebook that k-means finds for some weights together, and the scale of each of them.

    The centroids are the exact optimum; with a scale a channel, of the weights divided by it. The
    largest centroid (or a channel's largest weight) becomes the largest level.

    Returns:
        The fitted format; scales (1,) or (O,) float64, one tensor a weight.

    Raises:
        ModelError: NaN or infinity in a weight.
    """
    codebook = spec.format
    if not isinstance(codebook, CodebookFormat):
        raise ModelError(f"{codebook} is no codebook")
    wide = [weight.detach().to(torch.float64).cpu() for weight in weights]
    if not all(bool(torch.isfinite(weight).all()) for weight in wide):
        raise ModelError("a weight is NaN or infinite: it has no codebook")
    if spec.granularity is Granularity.PER_CHANNEL and spec.scale is ScaleRule.MAX:
        (weight,) = wide
        reach = codebook.centroid.max_level * codebook.lsb
        scale = (rows(weight, spec.granularity).abs().amax(dim=1) / reach).clamp(min=TINY)
        scale = scale.to(torch.float32).to(torch.float64)  # as it is stored
        ratio = rows(weight, spec.granularity) / scale[:, None]
        clusters = kmeans(ratio.numpy(), codebook.size, allow_fewer=True)
        return codebook.fitted(clusters.centroids, 1.0), [scale]
    values = torch.cat([weight.reshape(-1) for weight in wide]).numpy()
    clusters = kmeans(values, codebook.size, allow_fewer=True)
    constant = spec.scale is ScaleRule.CONST
    real = spec.value if constant else codebook.scale_for(clusters.centroids)
    if spec.power_of_two and not constant:
        real = float(2.0 ** np.ceil(np.log2(real) - 1e-9))
    # A scale is stored as float32; with float64's the table would be another one.
    real = float(np.float32(real))
    channels = spec.granularity is Granularity.PER_CHANNEL
    scales = [torch.full((len(w) if channels else 1,), real, dtype=torch.float64) for w in wide]
    return codebook.fitted(clusters.centroids, real), scales
