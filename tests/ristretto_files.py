# SPDX-License-Identifier: Apache-2.0
"""The formats that a prototxt of Ristretto names, read without the package's own reader."""

from __future__ import annotations

from bitwright.interop.caffe.files import parse_prototxt
from bitwright.interop.caffe.quantization_param import QuantizationParam

LAYERS = ("ConvolutionRistretto", "FcRistretto")


def quantization_of(text: str) -> dict[str, QuantizationParam]:
    """The formats of every quantized layer, by its name."""
    found = {}
    for layer in parse_prototxt(text, "prototxt").layer:
        if layer.type in LAYERS:
            fields = {
                field.name: field.enum_type.values[value].name if field.enum_type else value
                for field, value in layer.quantization_param.ListFields()
            }
            found[layer.name] = QuantizationParam.from_dict(fields, layer.name)
    return found
