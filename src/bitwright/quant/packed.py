# SPDX-License-Identifier: Apache-2.0
"""A trained quantized model in a small file: weights as integer levels instead of float numbers.

What is left out is what freezing forgets anyway, where between two levels a float weight lay. A
model that was packed and loaded again freezes to the same integers.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, fx, nn

from bitwright.errors import DataError, ModelError
from bitwright.formats import BipolarFormat, Format
from bitwright.quant.layers import QuantConv2d, QuantLinear
from bitwright.quant.policy import ScaleRule
from bitwright.train.checkpoint import load_checkpoint, save_checkpoint

_FIELDS = ("schema", "weights", "state")
_SCHEMA = 1
_LARGEST_BITS = 8
_STABLE = (ScaleRule.LEARNED, ScaleRule.CONST)


def save_packed(path: Path, model: fx.GraphModule) -> None:
    """Write a trained model that `apply` converted.

    Raises:
        ModelError: a weight's scale follows from the float weight (only learned and constant ones
            stand on their own), or a weight has more than 8 bits.
        DataError: the file cannot be written.
    """
    weights = {}
    for name, layer in _layers(model).items():
        spec = layer.weight_quantizer.spec
        if spec.scale not in _STABLE:
            raise ModelError(
                f"its scale rule {spec.scale.value!r} needs the float weight",
                where=name,
                hint="only weights with scale: learned (or const) can be packed",
            )
        if spec.format.bits > _LARGEST_BITS:
            raise ModelError(f"{spec.format} is wider than {_LARGEST_BITS} bits", where=name)
        levels, unit = layer.weight_quantizer.levels(layer.weight)
        places = (levels - spec.format.min_level) / _step(spec.format)
        weights[name] = {
            "codes": pack_bits(places.to(torch.uint8).reshape(-1), spec.format.bits),
            "unit": unit.to(torch.float64),
            "format": spec.format.name,
        }
    state = {k: v for k, v in model.state_dict().items() if k not in _weight_keys(model)}
    save_checkpoint(path, {"schema": _SCHEMA, "weights": weights, "state": state})


def load_packed(path: Path, model: fx.GraphModule) -> None:
    """Load what `save_packed` wrote into a model converted by the same policy.

    Raises:
        DataError: the file is missing, corrupt or of another version.
        ModelError: it belongs to another model or policy. The model is then unchanged.
    """
    content = load_checkpoint(path, fields=_FIELDS)
    if content["schema"] != _SCHEMA:
        raise DataError(f"is of version {content['schema']}, expected {_SCHEMA}", where=str(path))
    layers = _layers(model)
    packed = content["weights"]
    if not isinstance(packed, dict) or set(packed) != set(layers):
        wrong = sorted(set(packed) ^ set(layers))
        raise ModelError(f"belongs to another model: layer {wrong[0]}", where=str(path))
    state = dict(content["state"])
    for name, layer in layers.items():
        state[f"{name}.weight"] = _unpacked(packed[name], layer, f"{path}, {name}")
    expected = model.state_dict()
    for key in sorted(set(state) ^ set(expected)):
        raise ModelError(f"belongs to another model or policy: {key}", where=str(path))
    for key, value in state.items():
        if value.shape != expected[key].shape:
            raise ModelError(
                f"{key} has the shape {tuple(value.shape)}, expected {tuple(expected[key].shape)}",
                where=str(path),
            )
    model.load_state_dict(state)


def _unpacked(
    entry: dict[str, Tensor | str], layer: QuantConv2d | QuantLinear, where: str
) -> Tensor:
    spec, weight = layer.weight_quantizer.spec, layer.weight
    if entry["format"] != spec.format.name:
        raise ModelError(
            f"holds {entry['format']} weights, the policy has {spec.format.name}", where=where
        )
    codes = unpack_bits(entry["codes"], spec.format.bits, weight.numel(), where)
    levels = codes.to(torch.float64) * _step(spec.format) + spec.format.min_level
    if float(levels.max()) > spec.format.max_level:
        raise DataError(f"holds levels beyond {spec.format.max_level}", where=where)
    unit = entry["unit"].reshape(-1, *(1,) * (weight.dim() - 1))
    return (levels.view(weight.shape) * unit).to(weight.dtype)


def _step(number_format: Format) -> int:
    """Distance between neighbouring levels: bipolar has no zero."""
    return 2 if isinstance(number_format, BipolarFormat) else 1


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """(N,) uint8 codes below ``2**bits`` -> bytes, code after code, highest bit first."""
    places = torch.arange(bits - 1, -1, -1, dtype=torch.uint8)
    stream = ((codes[:, None] >> places) & 1).reshape(-1)
    padded = nn.functional.pad(stream, (0, -len(stream) % 8)).view(-1, 8)
    worth = (1 << torch.arange(7, -1, -1)).to(torch.int64)
    return (padded.to(torch.int64) * worth).sum(dim=1).to(torch.uint8)


def unpack_bits(packed: Tensor, bits: int, count: int, where: str = "packed") -> Tensor:
    """What `pack_bits` packed.

    Raises:
        DataError: there are not as many bytes as ``count`` codes need.
    """
    if packed.dtype != torch.uint8 or packed.shape != ((count * bits + 7) // 8,):
        raise DataError(
            f"{tuple(packed.shape)} bytes for {count} codes of {bits} bits", where=where
        )
    places = torch.arange(7, -1, -1, dtype=torch.uint8)
    stream = ((packed[:, None] >> places) & 1).reshape(-1)[: count * bits].view(count, bits)
    worth = (1 << torch.arange(bits - 1, -1, -1)).to(torch.int64)
    return (stream.to(torch.int64) * worth).sum(dim=1).to(torch.uint8)


def _layers(model: fx.GraphModule) -> dict[str, QuantConv2d | QuantLinear]:
    return {n: m for n, m in model.named_modules() if isinstance(m, QuantConv2d | QuantLinear)}


def _weight_keys(model: fx.GraphModule) -> set[str]:
    return {f"{name}.weight" for name in _layers(model)}
