# SPDX-License-Identifier: Apache-2.0
"""Ristretto's formats in Caffe's architecture files: a float prototxt with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bitwright.base.errors import DataError
from bitwright.interop.caffe.files import prototxt_of, read_prototxt
from bitwright.interop.caffe.quantization_param import QuantizationParam

_QUANTIZED = {"Convolution": "ConvolutionRistretto", "InnerProduct": "FcRistretto"}
_FLOAT = {quantized: plain for plain, quantized in _QUANTIZED.items()}


def quantized_prototxt(source: Path, params: Mapping[str, QuantizationParam]) -> str:
    """The text of a prototxt in which some layers are quantized; all else is as it was.

    Args:
        params: by the names of layers, or by the paths that the reader of the network made of them.

    Raises:
        DataError: the file is damaged, or has no such convolution or dense layer.
    """
    net, facts = read_prototxt(source)
    found = {path_of(layer.name): layer for layer in net.layer if layer.type in _QUANTIZED}
    found |= {path_of(layer.name): layer for layer in net.layer if layer.type in _FLOAT}
    for path, param in params.items():
        layer = found.get(path_of(path))
        if layer is None:
            raise DataError(
                f"has no Convolution or InnerProduct layer {path!r}",
                where=str(source),
                hint=f"it has: {', '.join(layer.name for layer in found.values()) or 'none'}",
            )
        layer.type = _QUANTIZED.get(layer.type, layer.type)
        layer.ClearField("quantization_param")
        _fill(layer.quantization_param, param)
    return prototxt_of(net, facts)


def path_of(name: str) -> str:
    """The module path that the reader of a network makes of a layer's name."""
    from bitwright.interop.network_to_torch import path_component

    return ".".join(path_component(part) for part in name.split("."))


def _fill(message: Any, param: QuantizationParam) -> None:
    for name, value in param.to_dict().items():
        if isinstance(value, str):
            enum = message.DESCRIPTOR.fields_by_name[name].enum_type
            setattr(message, name, enum.values_by_name[value].number)
        else:
            setattr(message, name, value)
