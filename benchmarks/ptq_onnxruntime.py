# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's static quantization of a network, for ``ptq.py``."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    NotImplemented,
)
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn

from bitwright.data import Dataset

_BATCH = 64
#: What a version raises on what it cannot do; it is part of the table.
FAILURES = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, Fail)
FAILURES += (InvalidArgument, InvalidGraph, NotImplemented)
_OPSET = 21  # the first whose QuantizeLinear knows four bits
#: No kernel pools four bits, so that happens in floating point; the image keeps eight bits.
_FOUR_BITS: dict[str, Any] = {
    "op_types_to_quantize": ["Conv", "Gemm", "MatMul"],
    "extra_options": {"TensorQuantOverrides": {"x": [{"quant_type": QuantType.QUInt8}]}},
}
_MIN_MAX, _PERCENTILE = CalibrationMethod.MinMax, CalibrationMethod.Percentile
_EIGHT, _FOUR = (QuantType.QInt8, QuantType.QUInt8), (QuantType.QInt4, QuantType.QUInt4)
_MIXED = (QuantType.QInt4, QuantType.QUInt8)
#: (name, calibration, types of weights and activations, bits, other arguments). Without VNNI the
#: products of eight bits saturate in pairs, which ``reduce_range`` is there to prevent.
_ROWS: tuple[tuple[str, CalibrationMethod, tuple[QuantType, QuantType], str, dict[str, Any]], ...]
_ROWS = (
    ("MinMax", _MIN_MAX, _EIGHT, "8 / 8", {}),
    ("MinMax, reduce_range", _MIN_MAX, _EIGHT, "7 / 8", {"reduce_range": True}),
    ("Percentile, reduce_range", _PERCENTILE, _EIGHT, "7 / 8", {"reduce_range": True}),
    ("MinMax", _MIN_MAX, _MIXED, "4 / 8", {}),
    ("Percentile", _PERCENTILE, _MIXED, "4 / 8", {}),
    ("MinMax", _MIN_MAX, _FOUR, "4 / 4", _FOUR_BITS),
    ("Percentile", _PERCENTILE, _FOUR, "4 / 4", _FOUR_BITS),
)


class _Reader(CalibrationDataReader):
    """Calibration images, batch after batch."""

    def __init__(self, images: NDArray[np.float32]) -> None:
        self._batches: Iterator[NDArray[np.float32]] = iter(
            images[start : start + _BATCH] for start in range(0, len(images), _BATCH)
        )

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        batch = next(self._batches, None)
        return None if batch is None else {"x": batch}


def measure(
    model: nn.Module, images: NDArray[np.float32], test: Dataset, folder: Path
) -> list[dict[str, Any]]:
    """Quantize by every row, one scale a channel, and run the whole test set."""
    plain, prepared = folder / "float.onnx", folder / "prepared.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(),
            (torch.from_numpy(images[:1]),),
            plain,
            input_names=["x"],
            output_names=["scores"],
            dynamic_axes={"x": {0: "n"}, "scores": {0: "n"}},
            dynamo=False,
            opset_version=20,
        )
    quant_pre_process(str(plain), str(prepared), skip_symbolic_shape=True)
    _raise_opset(prepared)
    found = []
    for name, method, types, bits, more in _ROWS:
        entry: dict[str, Any] = {"name": f"quantize_static, {name}, per channel", "bits": bits}
        target = folder / "quantized.onnx"
        started = time.perf_counter()
        try:
            quantize_static(
                str(prepared),
                str(target),
                _Reader(images),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                **more,
                weight_type=types[0],
                activation_type=types[1],
                calibrate_method=method,
            )
            entry["seconds"] = time.perf_counter() - started
            entry["accuracy"] = _accuracy(target, test, types is _FOUR)
        except FAILURES as error:
            entry["error"] = f"{type(error).__name__}: {error}".replace("\n", " ")[:120]
        print("ONNX Runtime:", entry, flush=True)
        found.append(entry)
    return found


def _raise_opset(path: Path) -> None:
    import onnx
    from onnx import version_converter

    onnx.save(version_converter.convert_version(onnx.load(path), _OPSET), path)


def _accuracy(path: Path, test: Dataset, plain: bool) -> float:
    """``plain``: without graph optimisations, which move four bits through the pools."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if plain:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    right = 0
    for start in range(0, len(test), 500):
        part = test.take(range(start, min(start + 500, len(test))))
        (scores,) = session.run(None, {"x": part.reals()})
        right += int((np.argmax(scores, axis=1) == part.labels).sum())
    return right / len(test)
