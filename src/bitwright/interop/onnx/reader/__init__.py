# SPDX-License-Identifier: Apache-2.0
"""Import of quantized ONNX files: `load` gives the integer graph and a report."""

from __future__ import annotations

from bitwright.interop.onnx.reader.build import Row
from bitwright.interop.onnx.reader.importer import HANDLERS, Imported, load
from bitwright.interop.onnx.reader.model import OnnxModel, read_model
from bitwright.interop.onnx.reader.outputs import Output

__all__ = ["HANDLERS", "Imported", "OnnxModel", "Output", "Row", "load", "read_model"]
