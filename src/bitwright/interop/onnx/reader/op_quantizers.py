# SPDX-License-Identifier: Apache-2.0
"""Quantizers: QONNX's Quant, BipolarQuant, Trunc and MultiThreshold; ONNX's Q and DQ pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bitwright.base.errors import FormatError
from bitwright.formats import Rounding
from bitwright.interop.onnx.reader.arithmetic import cast_type
from bitwright.interop.onnx.reader.build import Importer
from bitwright.interop.onnx.reader.levels import Quantizer, whole_numbers
from bitwright.interop.onnx.reader.model import OnnxNode
from bitwright.interop.onnx.reader.op_elementwise import fitted
from bitwright.interop.onnx.reader.values import Array, Codes, Const, Floats, Value

#: Of activations; and of constants, which become a bias of any width.
_MAX_BITS, _MAX_CONSTANT_BITS = 16, 32
_TWO_RANGES = 5
_UINT8 = 2


def _bits(low: Importer, node: OnnxNode, place: int, most: int = _MAX_BITS) -> int:
    array = np.asarray(low.const(node, place).value, np.float64).ravel()
    whole = array.size == 1 and bool(np.isfinite(array[0])) and array[0] % 1 == 0
    if whole and 1 <= array[0] <= most:
        return int(array[0])
    message = f"bit width {array[:4].tolist()}; one whole width of 1 to {most} bits is supported"
    if whole and array[0] > most:
        hint = "quantize activations to fewer bits; sums need no quantizer, they are exact here"
    else:
        hint = "round a learned bit width before the export"
    raise node.error(message, hint)


def _number(low: Importer, node: OnnxNode, place: int, what: str) -> float:
    array = np.asarray(low.const(node, place).value, np.float64)
    if array.size == 0 or not (array == array.flat[0]).all() or not np.isfinite(array).all():
        raise node.error(f"{what} must be one finite number, got an array of {array.size}")
    return float(array.flat[0])


def _whole(value: float, node: OnnxNode, what: str) -> int:
    if value % 1:
        raise node.error(f"{what} {value} is not whole", "integers need a whole zero point")
    return int(value)


def _rounding(node: OnnxNode, default: str = "ROUND") -> Rounding:
    name = node.string("rounding_mode", default)
    try:
        mode = Rounding.from_qonnx(name.upper())
    except FormatError as error:
        raise node.error(error.message, error.hint) from error
    if mode is Rounding.STOCHASTIC:
        raise node.error("rounds stochastically", "export the model in eval mode")
    return mode


def _scale(low: Importer, node: OnnxNode, place: int, value: Value) -> tuple[Value, Floats]:
    value, scale = fitted(low, value, low.const(node, place), node)
    if not (scale > 0).all():
        raise node.error(f"scale {scale.min()} is not positive")
    return value, scale


def _range(node: OnnxNode, bits: int) -> tuple[int, int]:
    """Smallest and largest code of a Quant node."""
    signed, narrow = bool(node.integer("signed", 1)), bool(node.integer("narrow", 0))
    if signed:
        return -(1 << (bits - 1)) + narrow, (1 << (bits - 1)) - 1
    return 0, (1 << bits) - 1 - narrow


def _quant(low: Importer, node: OnnxNode) -> Value | Const:
    tensor = low.tensor(node, 0)
    bits = _bits(low, node, 3, _MAX_CONSTANT_BITS if isinstance(tensor, Const) else _MAX_BITS)
    zero = _whole(_number(low, node, 2, "the zero point"), node, "zero point")
    lo, hi = _range(node, bits)
    bipolar = bits == 1 and bool(node.integer("signed", 1))
    if bipolar and zero:
        raise node.error(f"one signed bit with the zero point {zero:g}", "signs have none: use 0")
    if lo >= hi and not bipolar:
        raise node.error("leaves one code only", "use more bits, or narrow=0")
    ends = tuple(np.full(1, float(v)) for v in (zero, lo, hi))
    if isinstance(tensor, Const):
        if bipolar:
            return _signs(tensor, low.const(node, 1), node)
        quantizer = Quantizer("quant", lo - zero, hi - zero, 1, np.ones(1), (), _rounding(node))
        return _quantized_const(tensor, low.const(node, 1), quantizer, ends, node)
    value, scale = _scale(low, node, 1, tensor)
    if bipolar:
        return low.quantize(value, Quantizer("sign", -1, 1, 2, scale), node)
    return low.quantize(
        value,
        Quantizer("quant", lo - zero, hi - zero, 1, scale, (scale, *ends), _rounding(node)),
        node,
    )


def _spread_scale(tensor: Const, scale: Const, node: OnnxNode) -> Array:
    array = np.asarray(scale.value, np.float32)
    try:
        spread = np.broadcast_to(array, tensor.value.shape)
    except ValueError as error:
        raise node.error(
            f"a scale of shape {array.shape} does not broadcast against {tensor.value.shape}"
        ) from error
    if not (np.isfinite(spread).all() and (spread > 0).all()):
        raise node.error("has a scale that is not positive and finite")
    return spread


def _signs(tensor: Const, scale: Const, node: OnnxNode) -> Const:
    spread = _spread_scale(tensor, scale, node)
    levels = np.where(np.asarray(tensor.value) >= 0, 1, -1).astype(np.int64)
    return Const(levels.astype(np.float32) * spread, levels, spread.astype(np.float64))


def _quantized_const(
    tensor: Const, scale: Const, quantizer: Quantizer, ends: tuple[Floats, ...], node: OnnxNode
) -> Const:
    """Weights: in float32, as QONNX computes them, so that every integer is the same."""
    spread = _spread_scale(tensor, scale, node)
    values = np.asarray(tensor.value, np.float32)
    if not np.isfinite(values).all():
        raise node.error("quantizes a constant that is not finite")
    constants = (spread, *(e.astype(np.float32) for e in ends))
    levels = whole_numbers(np.asarray(quantizer._quant(values, *constants), np.float64))
    return Const(levels.astype(np.float32) * spread, levels, spread.astype(np.float64))


def _bipolar(low: Importer, node: OnnxNode) -> Value | Const:
    tensor = low.tensor(node, 0)
    if isinstance(tensor, Const):
        return _signs(tensor, low.const(node, 1), node)
    value, scale = _scale(low, node, 1, tensor)
    return low.quantize(value, Quantizer("sign", -1, 1, 2, scale), node)


def _sign(low: Importer, node: OnnxNode) -> Value:
    """ONNX's Sign has three values: -1, 0 and +1."""
    one, zero = np.ones(1), np.zeros(1)
    value = low.data(node, 0).then("sign")
    return low.quantize(value, Quantizer("quant", -1, 1, 1, one, (one, zero, -one, one)), node)


def _float_quant(low: Importer, node: OnnxNode) -> Value:
    raise node.error(
        "quantizes to a small floating-point format, integer hardware cannot",
        "quantize with Quant (integers) instead",
    )


def _trunc(low: Importer, node: OnnxNode) -> Value:
    value = low.data(node, 0)
    value, scale = _scale(low, node, 1, value)
    zero = _whole(_number(low, node, 2, "the zero point"), node, "zero point")
    mode = _rounding(node, "FLOOR")
    if len(node.inputs) > _TWO_RANGES:
        out_scale = _number(low, node, 4, "the output scale")
        bits = _bits(low, node, 5)
        by = 2.0 ** np.round(np.log2(np.float64(out_scale) / scale))
        if zero:
            raise node.error("truncates with a zero point", "use zero point 0")
        ends = tuple(float(v) for v in _range(node, bits))
        unit = np.full(1, out_scale)
    else:
        by = np.full(1, 2.0 ** (_bits(low, node, 3) - _bits(low, node, 4)))
        ends, unit = (-np.inf, np.inf), scale
    constants = (scale, np.full(1, float(zero)), by, *(np.full(1, e) for e in ends))
    value = low.settled(value, node)
    probe = Quantizer("trunc", 0, 0, 1, unit, constants, mode)
    reach = np.array(low.level_range(value))[:, None]
    found = low.evaluator.quantized(
        value, probe, np.broadcast_to(reach, (2, max(value.rows, probe.rows))), node
    )
    return low.quantize(value, replace(probe, lo=int(found.min()), hi=int(found.max())), node)


def _multi_threshold(low: Importer, node: OnnxNode) -> Value:
    value = low.data(node, 0)
    table = np.asarray(low.const(node, 1).value, np.float64)
    if table.ndim != 2 or not table.size or np.isnan(table).any():
        raise node.error(f"thresholds must be (C or 1, T) numbers, got shape {table.shape}")
    layout = node.string("data_layout", "") or {2: "NC", 3: "NWC"}.get(len(value.shape), "NCHW")
    axis = layout.index("C") if "C" in layout and len(layout) == len(value.shape) else 1
    table = np.sort(table, axis=1)
    if len(table) > 1:
        if len(table) != value.shape[axis]:
            raise node.error(f"{len(table)} rows of thresholds, {value.shape[axis]} channels")
        shape = [1] * len(value.shape)
        shape[axis] = -1
        value, rows = fitted(low, value, Const(np.arange(len(table)).reshape(shape)), node)
        table = table[rows.astype(np.int64)]
    scale, bias = node.real("out_scale", 1.0), node.real("out_bias", 0.0)
    if scale <= 0:
        raise node.error(f"out_scale {scale} is not positive")
    unit, first, step, rest = _levels_of(scale, bias)
    quantizer = Quantizer(
        "count", first, first + step * table.shape[1], step, np.full(1, unit), (table,)
    )
    found = low.quantize(value, quantizer, node)
    return found.then("add", np.full(1, rest)) if rest else found


def _levels_of(scale: float, bias: float) -> tuple[float, int, int, float]:
    """``scale * count + bias`` as ``unit * (first + step * count) + rest``; rest 0 if it can be."""
    if (bias / scale) % 1 == 0:
        return scale, int(bias / scale), 1, 0.0
    if (2 * bias / scale) % 1 == 0:
        return scale / 2, int(2 * bias / scale), 2, 0.0
    return scale, 0, 1, bias


def _code_range(low: Importer, node: OnnxNode) -> tuple[int, int, float, np.dtype[Any]]:
    """Range of the codes, the zero point and the type of a QuantizeLinear."""
    if node.has(2):
        zero, number = low.const(node, 2).value, _number(low, node, 2, "the zero point")
    else:  # since operator set 21 an attribute may give the type
        kind = node.integer("output_dtype", 0) or _UINT8
        zero, number = np.zeros((), cast_type(replace(node, attrs={"to": kind}))), 0.0
    name = str(zero.dtype)
    if name in ("int4", "uint4", "int2", "uint2"):
        bits = int(name[-1])
        signed = name.startswith("int")
        ends = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    elif np.issubdtype(zero.dtype, np.integer) and zero.dtype.itemsize <= 2:
        info = np.iinfo(zero.dtype)
        ends = (int(info.min), int(info.max))
    else:
        raise node.error(f"quantizes to {name}", "use int8, uint8, int4, uint4, int16 or uint16")
    return *ends, number, zero.dtype


def _quantize_linear(low: Importer, node: OnnxNode) -> Value | Const:
    tensor = low.tensor(node, 0)
    lo, hi, zero, kind = _code_range(low, node)
    if isinstance(tensor, Const):
        scale = _along_axis(low.const(node, 1), tensor, node)
        codes = np.clip(np.rint(np.asarray(tensor.value, np.float32) / scale) + zero, lo, hi)
        return Const(whole_numbers(codes).astype(kind))
    if tensor.codes is not None:
        raise node.error("quantizes codes again", "dequantize them first")
    shaped = Const(_along_axis(low.const(node, 1), Const(np.empty(tensor.shape)), node))
    value, steps = fitted(low, tensor, shaped, node)
    if not (steps > 0).all():
        raise node.error(f"scale {steps.min()} is not positive")
    return replace(value, codes=Codes(steps, np.full(1, zero), lo, hi))


def _along_axis(scale: Const, tensor: Const, node: OnnxNode) -> Array:
    """A scale or zero point shaped to broadcast: per tensor, or along the node's axis."""
    array = np.asarray(scale.value)
    rank = tensor.value.ndim
    if array.size == 1:
        return array.reshape((1,) * min(rank, 1))
    axis = node.integer("axis", 1)
    if array.ndim != 1 or not -rank <= axis < rank or array.size != tensor.value.shape[axis]:
        raise node.error(f"a scale of shape {array.shape} does not fit {tensor.value.shape}")
    shape = [1] * rank
    shape[axis] = -1
    return array.reshape(shape)


def _dequantize_linear(low: Importer, node: OnnxNode) -> Value | Const:
    tensor = low.tensor(node, 0)
    zero = low.const(node, 2) if node.has(2) else Const(np.zeros((), np.int64))
    if isinstance(tensor, Const):
        if (np.asarray(tensor.value, np.float64) % 1).any():
            raise node.error("dequantizes a constant that is not whole")
        offset = np.asarray(_along_axis(zero, tensor, node), np.int64)
        levels = np.asarray(tensor.value, np.int64) - offset
        scale = _along_axis(low.const(node, 1), tensor, node)
        spread = _spread_scale(tensor, Const(scale), node)
        return Const(levels.astype(np.float32) * spread, levels, spread.astype(np.float64))
    to = _whole(_number(low, node, 2, "the zero point") if node.has(2) else 0.0, node, "zero point")
    shaped = Const(_along_axis(low.const(node, 1), Const(np.empty(tensor.shape)), node))
    value, scale = fitted(low, tensor, shaped, node)
    codes = value.codes
    if codes is None:
        return value.then("add", np.full(1, -float(to))).then("mul", scale)
    ends = tuple(np.full(1, float(v)) for v in (codes.lo, codes.hi, to))
    quantizer = Quantizer(
        "codes", codes.lo - to, codes.hi - to, 1, scale, (codes.scale, codes.zero, *ends)
    )
    return low.quantize(value, quantizer, node)


HANDLERS = {
    "Quant": _quant,
    "IntQuant": _quant,
    "BipolarQuant": _bipolar,
    "FloatQuant": _float_quant,
    "Sign": _sign,
    "Trunc": _trunc,
    "MultiThreshold": _multi_threshold,
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
}
