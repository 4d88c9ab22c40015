# SPDX-License-Identifier: Apache-2.0
"""A graph as a native plan: an array of C structures that one call executes.

Thresholds and requantizations that follow a product alone are done inside it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bitwright.ir.executor.builder import Builder, NativePlan, View, aligned, finish
from bitwright.ir.executor.compiler import Library
from bitwright.ir.executor.layout import PAD_ROWS, COp, Epilogue, Kind, Op, storage
from bitwright.ir.executor.packing import Packed, choose_kernel, pad_rows
from bitwright.ir.executor.products import (
    INT32_TOP,
    Product,
    as_patches,
    gathers_patches,
    product_of,
    segment_taps,
)
from bitwright.ir.graph import Graph, IntArray, Node
from bitwright.ir.types import TensorType

_ROUNDINGS = {"half_even": 0, "half_up": 1, "floor": 2}
_MAX_SHIFT = 62


def supported(graph: Graph) -> str | None:
    """None, or why a graph cannot run natively (it then runs on numpy)."""
    known = {"conv", "dense", "threshold", "requant", "max_pool", "flatten", "top_k"}
    for node in graph.nodes:
        if node.op not in known:
            return f"{node.name}: no native kernel for {node.op}"
        if node.op == "requant" and node.integer("shift") > _MAX_SHIFT:
            return f"{node.name}: a shift by {node.integer('shift')}"
        if any(len(graph.types[edge].shape) not in (1, 3) for edge in node.inputs):
            return f"{node.name}: input is neither (C,) nor (H, W, C)"
    for edge in graph.inputs:
        if len(graph.types[edge].shape) not in (1, 3):
            return f"{edge}: neither (C,) nor (H, W, C)"
    return None


def make_plan(graph: Graph, library: Library, only: frozenset[Op] | None = None) -> NativePlan:
    """Choose kernels, pack weights and lay out memory for a graph.

    Args:
        graph: a verified integer graph for which `supported` is None.
        library: the compiled kernels.
        only: product kernels to consider, all by default; the int64 fallback is always allowed.
    """
    builder = Builder(graph, library, only)
    for port, edge in enumerate(graph.inputs):
        _emit_input(builder, port, edge)
    fused: set[str] = set()
    for node in graph.nodes:
        if node.name not in fused:
            _emit_node(builder, node, fused)
    for port, edge in enumerate(graph.outputs):
        op = COp(op=Op.OUTPUT, port=port)
        builder.emit(op, builder.views[edge], None)
    return finish(builder)


def _emit_input(builder: Builder, port: int, edge: str) -> None:
    tensor = builder.graph.types[edge]
    view = builder.views[edge] = builder.view(tensor)
    op = COp(op=Op.INPUT, port=port, lo=tensor.lo, hi=tensor.hi, bipolar=tensor.is_bipolar)
    builder.emit(op, None, view)


def _emit_node(builder: Builder, node: Node, fused: set[str]) -> None:
    types = builder.graph.types
    source = builder.views[node.inputs[0]]
    if node.op == "flatten":
        size = types[node.output].size
        builder.views[node.output] = replace(
            source, shape=(1, 1, size), pixel=size * source.kind.size
        )
        return
    if node.op in ("conv", "dense"):
        _emit_product(builder, node, fused)
        return
    target = builder.view(types[node.output])
    builder.views[node.output] = target
    if node.op == "max_pool":
        op = COp(op=Op.POOL)
        op.kh, op.kw = node.ints("kernel")
        op.sh, op.sw = node.ints("stride")
        op.pt, op.pl = node.ints("padding")[:2]
    elif node.op == "top_k":
        op = COp(op=Op.ARGMAX)
    else:
        op = COp(op=Op.THRESHOLD if node.op == "threshold" else Op.REQUANT)
        channels = types[node.inputs[0]].channels
        rows = np.arange(channels + PAD_ROWS) % channels
        _set_activation(builder, op, node, rows, np.dtype(np.int64))
    builder.emit(op, source, target)


def _set_activation(
    builder: Builder, op: COp, node: Node, rows: IntArray, dtype: np.dtype[np.signedinteger]
) -> None:
    """Fill in the tables of a threshold or requant node.

    Args:
        rows: channel of each padded row.
        dtype: of the accumulators that are compared.
    """
    source = builder.graph.types[node.inputs[0]]
    zero = storage(builder.graph.types[node.output])[1]
    if node.op == "requant":
        op.shift, op.rounding = node.integer("shift"), _ROUNDINGS[node.string("rounding")]
        op.lo, op.hi = node.integer("lo"), node.integer("hi")
        for name, key in (("multiplier", "multiplier"), ("addend", "offset")):
            values = np.broadcast_to(node.params[key], (source.channels,))
            setattr(op, name, builder.address(values[rows].astype(np.int64)))
        return
    table, base, step = _threshold_tables(node, source)
    op.steps, op.padded = table.shape[1], rows.size
    op.threshold = builder.address(table[rows].T.astype(dtype))
    op.base = builder.address((base - zero)[rows].astype(dtype))
    op.step = builder.address(step[rows].astype(dtype))


def _threshold_tables(node: Node, source: TensorType) -> tuple[IntArray, IntArray, IntArray]:
    """Thresholds ``(C, T)`` inside the interval, base and step per channel, without flips.

    ``-x >= t`` is ``not (x >= 1 - t)``, so a flipped channel counts down from the top.
    """
    channels = source.channels
    raw = node.params["thresholds"]
    table = np.broadcast_to(raw, (channels, raw.shape[1]))
    flip = np.broadcast_to(node.params.get("flip", np.zeros(1, np.int64)), (channels,)) == 1
    plain = np.clip(table, source.lo, source.hi + 1)
    flipped = 1 - np.clip(table, -source.hi, 1 - source.lo)
    step = np.where(flip, -node.integer("step"), node.integer("step"))
    base = node.integer("base") + np.where(flip, node.integer("step") * raw.shape[1], 0)
    return np.where(flip[:, None], flipped[:, ::-1], plain), base, step


def _activation_after(builder: Builder, node: Node) -> Node | None:
    """The threshold or requant that may be done inside a product: its only reader."""
    graph = builder.graph
    readers = graph.consumers(node.output)
    if len(readers) != 1 or node.output in graph.outputs:
        return None
    (reader,) = readers
    if reader.op not in ("threshold", "requant"):
        return None
    return None if storage(graph.types[reader.output])[0] is Kind.I64 else reader


def _emit_product(builder: Builder, node: Node, fused: set[str]) -> None:
    types = builder.graph.types
    product = product_of(node, types[node.inputs[0]], types[node.output])
    builder.macs += product.macs
    reader = _activation_after(builder, node)
    byte_out = reader is None or storage(types[reader.output])[0] is Kind.U8
    narrow = byte_out or (reader is not None and reader.op == "requant")
    packed: Packed | None = None
    source = builder.views[node.inputs[0]]
    if _is_depthwise(product):
        op = _depthwise_op(builder, product)
    else:
        packed = choose_kernel(product, builder.library, narrow, builder.only)
        if packed is not None and gathers_patches(product):
            source = _emit_patches(builder, product, source)
            product = as_patches(product)
            packed = choose_kernel(product, builder.library, narrow, builder.only)
        op = _wide_op(builder, product) if packed is None else COp(op=packed.op)
    builder.kernels[node.name] = Op(op.op).name.lower()
    op.kh, op.kw = product.weight.shape[2:4]
    op.sh, op.sw = product.stride
    op.dh, op.dw = product.dilation
    op.pt, op.pl = product.padding[:2]
    if packed is not None:
        source = _emit_pack(builder, product, packed, source)
        _set_panels(builder, op, product, packed, source)
    edge = node.output
    if reader is not None and op.op != Op.WIDE:
        edge = reader.output
        fused.add(reader.name)
        _fuse(builder, op, reader, product, packed)
    target = builder.views[edge] = builder.view(types[edge])
    builder.emit(op, source, target)


def _fuse(builder: Builder, op: COp, reader: Node, product: Product, packed: Packed | None) -> None:
    channels = product.result.channels
    if packed is None:
        rows = np.arange(channels)
    else:
        lanes = builder.library.lanes[packed.op]
        rows = pad_rows(np.arange(channels).reshape(product.groups, -1), packed.panels, lanes)
    rows = np.pad(rows, (0, PAD_ROWS))
    op.epilogue = Epilogue.THRESHOLD if reader.op == "threshold" else Epilogue.REQUANT
    dtype = np.dtype(np.int16) if op.narrow else np.dtype(np.int32)
    _set_activation(builder, op, reader, rows, dtype)


def _is_depthwise(product: Product) -> bool:
    return (
        product.rows == product.columns == 1
        and product.groups > 1
        and storage(product.source)[0] is Kind.U8
        and int(np.abs(product.weight).max()) < 1 << 15
        and product.magnitude(max(abs(product.source.lo), abs(product.source.hi), 255)) < INT32_TOP
    )


def _depthwise_op(builder: Builder, product: Product) -> COp:
    op = COp(op=Op.DEPTHWISE, groups=product.groups, rows=1)
    taps = product.weight[:, 0, :, :, 0]
    op.weight = builder.address(np.moveaxis(taps, 0, -1).astype(np.int16))
    op.start = builder.address(np.pad(product.bias[:, 0], (0, PAD_ROWS)).astype(np.int32))
    return op


def _wide_op(builder: Builder, product: Product) -> COp:
    op = COp(op=Op.WIDE, groups=product.groups, rows=product.rows)
    op.weight = builder.address(np.moveaxis(product.weight, 1, -1))
    op.start = builder.address(product.bias)
    return op


def _emit_pack(builder: Builder, product: Product, packed: Packed, source: View) -> View:
    """The image as the kernel reads it: bordered, and in its units."""
    if packed.pack is None:
        return source
    top, left, bottom, right = product.padding
    height, width, channels = source.shape
    shape = (height + top + bottom, width + left + right, channels)
    units = -(-channels // packed.digits)
    pixel = {
        Op.PACK_U8: channels,
        Op.PACK_I16: 2 * channels,
        Op.PACK_BITS: 8 * units,
        Op.PACK_INDEX: 2 * units,
    }[packed.pack]
    op = COp(op=packed.pack, pt=top, pl=left, pack=packed.digits, radix=packed.radix)
    op.fill = -source.zero
    if packed.pack is Op.PACK_INDEX:
        op.fill = 16 * sum(-source.zero * packed.radix**digit for digit in range(packed.digits))
    kind = Kind.I16 if packed.pack is Op.PACK_I16 else Kind.U8
    target = View(builder.buffer(shape[0] * shape[1] * pixel), kind, source.zero, shape, pixel)
    builder.emit(op, source, target)
    return target


def _emit_patches(builder: Builder, product: Product, source: View) -> View:
    """Windows gathered into one pixel each, in the order (ky, kx, channel)."""
    top, left, bottom, right = product.padding
    height, width, channels = source.shape
    if any(product.padding):
        shape = (height + top + bottom, width + left + right, channels)
        bordered = replace(
            source, buffer=builder.buffer(shape[0] * shape[1] * channels), shape=shape
        )
        op = COp(op=Op.PACK_U8, pt=top, pl=left, fill=-source.zero)
        builder.emit(op, source, bordered)
        source = bordered
    length = int(np.prod(product.weight.shape[2:]))
    out_h, out_w, _ = product.result.shape
    buffer = builder.buffer(out_h * out_w * length)
    target = View(buffer, Kind.U8, source.zero, (out_h, out_w, length), length)
    op = COp(op=Op.PATCHES, dh=product.dilation[0])
    op.kh, op.kw = product.weight.shape[2:4]
    op.sh, op.sw = product.stride
    builder.emit(op, source, target)
    return target


def _set_panels(builder: Builder, op: COp, product: Product, packed: Packed, source: View) -> None:
    op.narrow, op.wraps = packed.narrow, packed.wraps
    op.groups, op.rows = product.groups, product.rows
    op.panels, op.panel_bytes = packed.panels, packed.panel_bytes
    op.group_bytes = source.pixel // product.groups
    op.weight = builder.address(packed.weight)
    op.start = builder.address(np.pad(packed.start, (0, PAD_ROWS)))
    if packed.table is not None:
        op.table = builder.address(aligned(packed.table))
    offsets = _piece_offsets(product, packed, source)
    op.pieces = len(packed.lengths)
    op.piece_offset = builder.address(np.array(offsets, dtype=np.int32))
    op.piece_length = builder.address(np.array(packed.lengths, dtype=np.int32))
    op.piece_flush = builder.address(np.array(packed.flushes, dtype=np.int32))


def _piece_offsets(product: Product, packed: Packed, source: View) -> list[int]:
    """Byte offset of each piece from the top left of its window."""
    kernel_w = product.weight.shape[3]
    unit = {Op.DOT8: 4, Op.DOT16: 4, Op.XNOR: 8, Op.LUT: 2}[packed.op]
    segments, taps = segment_taps(product)
    line = source.shape[1] * source.pixel
    starts = [
        product.dilation[0] * (s if taps > 1 or kernel_w == 1 else s // kernel_w) * line
        + (0 if taps > 1 else product.dilation[1] * (s % kernel_w) * source.pixel)
        for s in range(segments)
    ]
    per_segment = sum(packed.lengths) // segments
    offsets, segment, done = [], 0, 0
    for length in packed.lengths:
        offsets.append(starts[segment] + done * unit)
        done += length
        if done == per_segment:
            segment, done = segment + 1, 0
    return offsets
