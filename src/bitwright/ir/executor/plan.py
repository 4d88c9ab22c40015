# SPDX-License-Identifier: Apache-2.0
"""A graph as a native plan: an array of C structures that one call executes.

Thresholds and requantizations that follow a product alone are done inside it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bitwright.ir.executor.activations import (
    REQUANTS,
    activation_after,
    fuse,
    set_activation,
    takes_int16,
)
from bitwright.ir.executor.builder import Builder, NativePlan, View, finish
from bitwright.ir.executor.compiler import Library
from bitwright.ir.executor.joins import JOINS, of_bytes
from bitwright.ir.executor.layout import PAD_ROWS, COp, Kind, Op, storage
from bitwright.ir.executor.packing import Packed, choose_kernel, pad_rows
from bitwright.ir.executor.products import (
    INT32_TOP,
    Product,
    as_patches,
    gathers_patches,
    product_of,
    segment_taps,
)
from bitwright.ir.graph import Graph
from bitwright.ir.node import IntArray, Node

_MAX_SHIFT = 62


def supported(graph: Graph) -> str | None:
    """None, or why a graph cannot run natively (it then runs on numpy)."""
    known = {"conv", "dense", "threshold", *REQUANTS, "max_pool", "flatten", "top_k", *JOINS}
    for node in graph.nodes:
        if node.op not in known:
            return f"{node.name}: no native kernel for {node.op}"
        if node.op in REQUANTS and node.integer("shift") > _MAX_SHIFT:
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
    if node.op in JOINS:
        JOINS[node.op](builder, node, fused)
        return
    if node.op in ("threshold", *REQUANTS) and source.kind is Kind.U8:
        of_bytes(builder, node, fused)
        return
    target = builder.view(types[node.output])
    builder.views[node.output] = target
    if node.op == "max_pool":
        op = COp(op=Op.POOL)
        op.kh, op.kw = node.ints("kernel")
        op.sh, op.sw = node.ints("stride")
        op.pt, op.pl = node.ints("padding")[:2]
    elif node.op == "top_k":
        op = COp(op=Op.TOP_K)
    else:
        op = COp(op=Op.THRESHOLD if node.op == "threshold" else Op.REQUANT)
        channels = types[node.inputs[0]].channels
        rows = np.arange(channels + PAD_ROWS) % channels
        set_activation(builder, op, node, rows, np.dtype(np.int64))
    builder.emit(op, source, target)


def _emit_product(builder: Builder, node: Node, fused: set[str]) -> None:
    types = builder.graph.types
    product = product_of(node, types[node.inputs[0]], types[node.output])
    builder.macs += product.macs
    reader = activation_after(builder, node)
    narrow = takes_int16(builder, reader)
    packed: Packed | None = None
    source = builder.views[node.inputs[0]]
    if _is_depthwise(product):
        op = _depthwise_op(builder, product, narrow)
    else:
        packed = choose_kernel(product, builder.native, narrow, builder.only)
        if packed is not None and gathers_patches(product):
            source = _emit_patches(builder, product, source)
            product = as_patches(product)
            packed = choose_kernel(product, builder.native, narrow, builder.only)
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
        fuse(builder, op, reader, _padded_rows(builder, product, packed))
    target = builder.views[edge] = builder.view(types[edge])
    builder.emit(op, source, target)


def _is_depthwise(product: Product) -> bool:
    return (
        product.rows == product.columns == 1
        and product.groups > 1
        and storage(product.source)[0] is Kind.U8
        and int(np.abs(product.weight).max()) < 1 << 15
        and product.magnitude(max(abs(product.source.lo), abs(product.source.hi), 255)) < INT32_TOP
    )


def _padded_rows(builder: Builder, product: Product, packed: Packed | None) -> IntArray:
    """Channel of each row of the step's tables."""
    channels = np.arange(product.result.channels)
    if packed is None:
        return channels
    lanes = builder.native.lanes[packed.op]
    return pad_rows(channels.reshape(product.groups, -1), packed.panels, lanes)


_INT16_TOP = (1 << 15) - 1


def _depthwise_op(builder: Builder, product: Product, narrow: bool) -> COp:
    op = COp(op=Op.DEPTHWISE, groups=product.groups, rows=1)
    taps = np.moveaxis(product.weight[:, 0, :, :, 0], 0, -1).reshape(-1).astype(np.int16)
    op.weight = builder.address(np.pad(taps, (0, PAD_ROWS)))  # whole vectors are read
    start = np.pad(product.bias[:, 0], (0, PAD_ROWS))
    op.start = builder.address(start.astype(np.int32))
    peak = max(abs(product.source.lo), abs(product.source.hi))
    op.narrow = narrow and product.magnitude(peak) < _INT16_TOP
    if op.narrow:
        op.table = builder.address(start.astype(np.int16))
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
        op.table = builder.address(packed.table)
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
