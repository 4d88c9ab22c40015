# SPDX-License-Identifier: Apache-2.0
"""Integer graph -> QDQ ONNX file that plain ONNX Runtime runs with the same scores and classes.

Only standard operators (opset 13). Inputs and outputs are reals: the input is quantized by
``QuantizeLinear`` with the graph's scale, the scores are levels times their scale. In between every
tensor holds levels and every ``DequantizeLinear`` has scale 1, so that float32 arithmetic is exact
(below 2^24; a graph that could leave that is refused) and nothing depends on how a runtime fuses
operators. Weights of up to 8 bits are stored as int8 or uint8 behind ``DequantizeLinear``.

An activation becomes multiply, add, ``QuantizeLinear``, ``Clip`` (for fewer than 8 bits),
``DequantizeLinear`` where its thresholds are those of such a line, which is checked in float32 on
both sides of every step; else comparisons with every threshold, summed.

The file is run by ONNX Runtime, with its default optimisations, and compared before it is put in
its place.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.errors import BitwrightError, GraphError, ToolError
from bitwright.base.files import atomic_write
from bitwright.base.memory import LARGE, ran_out, room_for, shown
from bitwright.interop.onnx.runtime import onnx_runtime
from bitwright.interop.onnx.writer.affine_fit import fit_line
from bitwright.interop.onnx.writer.nodes import (
    clipped_thresholds,
    compared,
    conv,
    dense,
    simple,
    sum_pool,
)
from bitwright.interop.onnx.writer.writer import (
    Writer,
    check_exact,
    float_scale,
    from_nchw,
    need_onnx,
    per_channel,
    require_equal,
    to_nchw,
)
from bitwright.ir import ChannelRange, Graph, IntArray, Node, TensorType, random_feeds
from bitwright.ir.footprint import AT_A_TIME, frames_within
from bitwright.ir.levels import random_levels
from bitwright.lower.ranges import analyse, compared_range

_BYTE = 255
#: What ONNX Runtime makes of a product to compute it in bytes.
_ROUNDING = {
    "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulNBits",
}  # fmt: skip
#: Largest sum in front of a line. ONNX Runtime may fold the factor into the weights, which then are
#: no integers: each of n products is off by 2^-24 of itself, together far less than half a unit.
_LINE_REACH = 1 << 18
_BATCH = "N"
_CHUNK = 64
_A_COMPARISON = 5  # bytes in ONNX Runtime


@dataclass(frozen=True)
class QdqReport:
    """What was compared before the file was accepted.

    Attributes:
        lines, comparisons: activations written as multiply-add, and as comparisons.
    """

    path: Path
    frames: int
    values: int
    lines: int
    comparisons: int


def _storage(lo: int, hi: int) -> tuple[str, int] | None:
    """Element type and zero point of an 8-bit tensor with these levels."""
    if lo >= 0 and hi <= _BYTE:
        return "uint8", 0
    if lo >= -128 and hi <= 127:
        return "int8", 0
    return ("uint8", -lo) if 0 <= -lo <= _BYTE and hi - lo <= _BYTE else None


def _pair(
    out: Writer, source: str, target: str, kind: TensorType, name: str, scale: float = 1.0
) -> None:
    """Quantize, clip to the interval, dequantize to levels."""
    stored = _storage(kind.lo, kind.hi)
    assert stored is not None
    dtype, zero = stored
    shape, element = out.shape(kind), dtype.upper()
    one = out.real(f"{name}.one", 1.0)
    step = one if scale == 1.0 else out.real(f"{name}.scale", scale)
    origin = out.constant(f"{name}.zero", np.array(zero, dtype))
    codes = out.apply(
        "QuantizeLinear", [source, step, origin], f"{name}.quantize", shape, element=element
    )
    info = np.iinfo(dtype)
    if (kind.lo + zero, kind.hi + zero) != (info.min, info.max):
        ends = out.ends(name, kind.lo + zero, kind.hi + zero, dtype)
        codes = out.apply("Clip", [codes, *ends], f"{name}.clip", shape, element=element)
    out.op("DequantizeLinear", [codes, one, origin], target, f"{name}.dequantize")


def _input(out: Writer, edge: str) -> str:
    """The real input and its quantizer; returns the input's name."""
    kind = out.graph.types[edge]
    if kind.format is not None and not kind.format.uniform:
        raise GraphError(
            f"{kind.format} inputs have no exact ONNX form: its operators cannot round to uneven "
            "levels",
            where=edge,
            hint="use an integer format for the input",
        )
    shape = out.shape(kind)
    real = out.declare(f"{edge}_real", shape, "")
    scales = float_scale(kind, edge) if kind.scale else np.ones(1, np.float32)
    scale, given = float(scales[0]), real
    if kind.is_bipolar:
        _signs(out, real, edge, f"{edge}.sign", shape)
        return real
    if len(scales) > 1:  # a scale for each channel
        each = out.constant(f"{edge}.scales", per_channel(scales, len(kind.shape)))
        given, scale = out.apply("Div", [real, each], f"{edge}.levels", shape), 1.0
    if _storage(kind.lo, kind.hi) is not None:
        _pair(out, given, edge, kind, edge, scale)
    else:
        ratio = out.apply("Div", [given, out.real(f"{edge}.scale", scale)], f"{edge}.div", shape)
        rounded = out.apply("Round", [ratio], f"{edge}.round", shape)
        ends = out.ends(edge, kind.lo, kind.hi, np.float32)
        out.op("Clip", [rounded, *ends], edge, f"{edge}.clip")
    return real


def _signs(out: Writer, source: str, target: str, name: str, shape: tuple[int | str, ...]) -> None:
    """+1 where the source is not negative, else -1."""
    zero = out.real(f"{name}.zero", 0)
    bits = out.apply("GreaterOrEqual", [source, zero], f"{name}.compare", shape, element="BOOL")
    number = out.apply("Cast", [bits], f"{name}.cast", shape, to=1)
    _scaled(out, number, target, name, shape, 2, -1)


def _scaled(
    out: Writer, source: str, target: str, name: str, shape: tuple[int | str, ...],
    step: int, base: int,
) -> None:  # fmt: skip
    """``base + step * source``."""
    product = out.apply("Mul", [source, out.real(f"{name}.step", step)], f"{name}.mul", shape)
    out.op("Add", [product, out.real(f"{name}.base", base)], target, f"{name}.add")


def _weight(out: Writer, node: Node) -> str:
    """The weights behind a DequantizeLinear: bytes, or int32 where they need more.

    Weights that are plain floats would be rounded to int8 by ONNX Runtime's optimizer; and of bytes
    and floats that come from none, in a dense layer, it would round the floats to bytes.
    """
    values = node.params["weight"]
    stored = _storage(int(values.min()), int(values.max()))
    wide = stored is None or stored[1] or (node.op == "dense" and not _of_bytes(out, node))
    dtype = "int32" if stored is None or wide else stored[0]
    moved = np.moveaxis(values, 3, 1) if node.op == "conv" else values.T
    return _held(out, f"{node.name}.weight", moved.astype(dtype))


def _held(out: Writer, name: str, values: np.ndarray) -> str:
    """Integers behind a DequantizeLinear."""
    held = out.constant(name, values)
    one = out.real(f"{name}_one", 1.0)
    zero = out.constant(f"{name}_zero", np.array(0, values.dtype))
    return out.apply("DequantizeLinear", [held, one, zero], f"{name}_levels", values.shape)


def _of_bytes(out: Writer, node: Node) -> bool:
    """Whether what a node reads comes from a DequantizeLinear, as it is but for its order."""
    makers = {name: made for made in out.nodes for name in made.output}
    edge = node.inputs[0]
    while edge in makers and makers[edge].op_type in ("Transpose", "Flatten"):
        edge = makers[edge].input[0]
    return edge in makers and makers[edge].op_type == "DequantizeLinear"


def _threshold(out: Writer, node: Node, seen: ChannelRange) -> bool:
    """An activation; whether it is a line."""
    kind, step = out.graph.types[node.output], node.integer("step")
    rank, shape = len(kind.shape), out.shape(kind)
    thresholds = clipped_thresholds(node, seen)
    reach = compared_range(node, seen)
    ends = (reach.lo, reach.hi) if len(thresholds) > 1 else tuple(np.array([e]) for e in reach.hull)
    base = node.integer("base") if step == 1 else 0
    count = thresholds.shape[1]
    target = node.output if step == 1 else f"{node.name}.count"
    if step != 1:
        out.declare(target, shape, "")
    exact = max(int(np.abs(end).max()) for end in ends) <= _LINE_REACH
    line = fit_line(thresholds, ends[0], ends[1], base) if exact else None
    stored = line is not None and _storage(base, base + count) is not None
    if line is not None and stored:
        gain = line.gain
        if "flip" in node.params:
            gain = gain * (1 - 2 * node.params["flip"]).astype(np.float32)
        steps = (("Mul", gain), ("Add", line.offset))
        source = node.inputs[0]
        for op, constant in steps:
            held = out.constant(f"{node.name}.{op.lower()}", per_channel(constant, rank))
            source = out.apply(op, [source, held], f"{node.name}.line_{op.lower()}", shape)
        levels = TensorType(kind.shape, None, (), base, base + count)
        _pair(out, source, target, levels, node.name)
    else:
        _comparisons(out, node, thresholds, target, base)
    if step != 1:
        _scaled(out, target, node.output, f"{node.name}.to", shape, step, node.integer("base"))
    return stored


def _comparisons(out: Writer, node: Node, thresholds: IntArray, target: str, base: int) -> None:
    """``base + sum(x >= t)``, one comparison a threshold."""
    kind, name = out.graph.types[node.output], node.name
    shape = (*out.shape(kind), thresholds.shape[1])
    rank = len(kind.shape)
    last = out.constant(f"{name}.axis", np.array([-1], np.int64))
    given = [compared(out, node), last]
    wide = out.apply("Unsqueeze", given, f"{name}.unsqueeze", (*out.shape(kind), 1))
    # (C or 1, T) -> (1, C or 1, 1, 1, T)
    spread = thresholds.reshape(1, -1, *[1] * (rank - 1), thresholds.shape[1])
    held = out.levels(f"{name}.thresholds", spread)
    bits = out.apply("GreaterOrEqual", [wide, held], f"{name}.compare", shape, element="BOOL")
    numbers = out.apply("Cast", [bits], f"{name}.cast", shape, to=1)
    total = target if base == 0 else out.declare(f"{name}.total", out.shape(kind), "")
    out.op("ReduceSum", [numbers, last], total, f"{name}.sum", keepdims=0)
    if base:
        out.op("Add", [total, out.real(f"{name}.base", base)], target, f"{name}.rebase")


@dataclass(frozen=True)
class QdqModel:
    """A graph as a serialised QDQ model.

    Attributes:
        lines: activations that are a line.
        compared: of each of the others the bytes that one frame's comparisons take, of each pixel
            with each threshold: a bit, and a number that is added up.
    """

    body: bytes
    lines: int
    compared: tuple[int, ...]


def qdq_model(graph: Graph) -> QdqModel:
    """The graph as a QDQ model.

    Raises:
        GraphError: a number could leave the exact range of float32, or activations are floats.
        ToolError: ``onnx`` is not installed.
    """
    need_onnx("onnx")
    check_exact(graph)
    ranges = analyse(graph)
    out = Writer(graph, _BATCH)
    inputs = [_input(out, edge) for edge in graph.inputs]
    for edge in graph.inputs:
        out.edge(edge)
    kinds = [_write(out, node, ranges[node.inputs[0]]) for node in graph]
    outputs = [_output(out, edge) for edge in graph.outputs]
    body = bytes(out.model(inputs, outputs, []).SerializeToString())
    compared = (
        _A_COMPARISON * graph.types[node.output].size * node.params["thresholds"].shape[1]
        for node, kind in zip(graph, kinds, strict=True)
        if kind == "comparisons"
    )
    return QdqModel(body, kinds.count("line"), tuple(compared))


def _write(out: Writer, node: Node, seen: ChannelRange) -> str:
    out.edge(node.output)
    if node.op == "threshold":
        return "line" if _threshold(out, node, seen) else "comparisons"
    if node.op == "conv":
        conv(out, node, _weight(out, node))
    elif node.op == "dense":
        dense(out, node, _weight(out, node))
    elif node.op == "sum_pool":
        sum_pool(out, node, lambda name, ones: _held(out, name, ones.astype(np.int8)))
    else:
        simple(out, node)
    return node.op


def _output(out: Writer, edge: str) -> str:
    """The real values of an output; labels stay as they are."""
    kind = out.graph.types[edge]
    if not kind.scale:
        return edge
    scale = per_channel(float_scale(kind, edge), len(kind.shape))
    held = out.constant(f"{edge}.out_scale", scale)
    return out.apply("Mul", [edge, held], f"{edge}_real", out.shape(kind))


def run_qdq(model: QdqModel, graph: Graph, feeds: Mapping[str, IntArray]) -> dict[str, np.ndarray]:
    """The file's outputs by ONNX Runtime for levels of the graph's inputs: reals and labels.

    Raises:
        MemoryError: there is not enough of it.
        ToolError: ``onnxruntime`` is missing or refuses the file.
    """
    need_onnx("onnxruntime")
    onnxruntime = onnx_runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # it takes the next power of two of what is asked for
    try:
        session = _session(model.body, options)
        frames = len(feeds[graph.inputs[0]])
        parts: list[list[np.ndarray]] = []
        step = max(1, min(_CHUNK, AT_A_TIME // max(model.compared, default=1)))
        for start in range(0, frames, step):
            reals = {
                f"{edge}_real": _reals(graph.types[edge], edge, feeds[edge][start : start + step])
                for edge in graph.inputs
            }
            parts.append(session.run(None, reals))
    except BitwrightError:
        raise
    except Exception as error:
        if ran_out(error):
            raise MemoryError(str(error)) from error
        raise ToolError(f"ONNX Runtime cannot run the file: {error}", where="QDQ export") from error
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return {e: from_nchw(v) for e, v in zip(graph.outputs, columns, strict=True)}


def _session(model: bytes, options: Any) -> Any:
    """A session whose optimizer has left the arithmetic as it is written.

    Raises:
        ToolError: it rounds activations by what is largest in them, frame by frame: then equal
            outputs of some frames say nothing about others.
    """
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(place)
        options.log_severity_level = 4  # it tells of what it writes there, and twice what is wrong
        session = onnx_runtime().InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        made = {node.op_type for node in onnx.load(place, load_external_data=False).graph.node}
    if rounding := sorted(made & _ROUNDING):
        raise ToolError(
            f"ONNX Runtime would round its activations once more ({', '.join(rounding)})",
            where="QDQ export",
            hint="this is a bug in Bitwright; please report it; --format qonnx is exact",
        )
    return session


def _reals(kind: TensorType, edge: str, levels: IntArray) -> np.ndarray:
    """What levels stand for, by the graph: channels lie last."""
    reals = levels.astype(np.float32)
    return to_nchw(reals * float_scale(kind, edge) if kind.scale else reals)


def _compare(model: QdqModel, graph: Graph, feeds: Mapping[str, IntArray]) -> int:
    kinds = graph.types
    expected = {
        edge: levels.astype(np.float32) * float_scale(kinds[edge], edge)
        if kinds[edge].scale
        else levels
        for edge, levels in graph.run(feeds).items()
    }
    return require_equal(expected, run_qdq(model, graph, feeds), "ONNX Runtime")


def _quiet_feeds(graph: Graph, count: int, rng: np.random.Generator) -> dict[str, IntArray]:
    """Random levels of which those of a frame lie in a sixteenth of the input's interval."""
    found = {}
    for edge in graph.inputs:
        kind = graph.types[edge]
        parts = []
        for _ in range(count):
            lo = int(rng.integers(kind.lo, kind.hi, endpoint=True))
            hi = min(kind.hi, lo + max(1, (kind.hi - kind.lo) // 16))
            near = kind if kind.is_bipolar else replace(kind, lo=lo, hi=hi)
            parts.append(random_levels(near, 1, rng))
        found[edge] = np.concatenate(parts)
    return found


def export_qdq(
    graph: Graph,
    path: Path,
    *,
    feeds: Mapping[str, IntArray] | None = None,
    frames: int = 8,
    seed: int = 0,
    room: int | None = None,
) -> QdqReport:
    """Write a QDQ file after proving that ONNX Runtime gives the graph's scores and labels.

    Args:
        path: where to write; appears whole or not at all.
        feeds: levels to compare on, for instance of real images; random frames are always added,
            and as many of little contrast: in those of much contrast most activations saturate.
        room: bytes of levels that are held at a time, by default what the machine has; so many
            random frames are drawn, and so many of `feeds` run at a time, as fit.

    Raises:
        MismatchError: ONNX Runtime computes something else; nothing is written.
        GraphError, ToolError: see `qdq_model`.
    """
    model = qdq_model(graph)
    most = room_for(chosen=True) if room is None else room
    frames = frames_within(graph, frames, most, "QDQ export")
    if (compared := max(model.compared, default=0)) > most:
        raise GraphError(
            f"the comparisons of one frame with thresholds take {shown(compared)} of memory; "
            f"{shown(most)} are allowed",
            where="QDQ export",
            hint="use smaller images or fewer levels, or export to QONNX; for a file of your own: "
            f"{LARGE}=1",
        )
    rng = np.random.default_rng(seed)
    values = _compare(model, graph, random_feeds(graph, frames, rng))
    values += _compare(model, graph, _quiet_feeds(graph, frames, rng))
    frames *= 2
    if feeds is not None:
        given = len(feeds[graph.inputs[0]])
        size = frames_within(graph, given, most, "QDQ export")
        for start in range(0, given, size):
            part = {edge: feeds[edge][start : start + size] for edge in graph.inputs}
            values += _compare(model, graph, part)
        frames += given
    atomic_write(path, model.body)
    return QdqReport(path, frames, values, model.lines, len(model.compared))
