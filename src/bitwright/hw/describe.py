# SPDX-License-Identifier: Apache-2.0
"""The per-layer table of a hardware graph: what a report prints."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from bitwright.base.figures import Resources
from bitwright.formats import parse_format
from bitwright.hw.blocks import Block, Depthwise, Flatten, MatVec, ParallelWindow, blocks_of
from bitwright.hw.cost import block_resources
from bitwright.hw.dataflow import block_intervals
from bitwright.hw.names import instance_names
from bitwright.hw.weight_image import memory_plan
from bitwright.ir import Graph, TensorType


@dataclass(frozen=True)
class LayerRow:
    """One block of the design; numbers that have no meaning for it are None.

    Attributes:
        layer, source: node of the hardware graph, and the user's layer it came from.
        op: operation of the hardware dialect; of a parallel window ``window_parallel``.
        instance: instance in the generated RTL.
        input, output: formats and shapes in words.
        weight_bits, weight_format: of one weight.
        parameters: weights, biases and thresholds.
        macs: multiply-accumulates of a frame.
        accumulator_bits: exact width of the sums.
        pe, simd: elements a cycle.
        depth: of a FIFO.
        cycles: interval of the block alone.
        predicted: resources by the model.
        read_bytes: of external weights, for a frame.
    """

    layer: str
    source: str
    op: str
    instance: str
    input: str
    output: str
    input_bits: int
    output_bits: int
    weight_format: str | None
    weight_bits: int | None
    parameters: int
    macs: int | None
    accumulator_bits: int | None
    pe: int | None
    simd: int | None
    depth: int | None
    cycles: int
    predicted: Resources
    read_bytes: int | None = None

    def to_json(self) -> dict[str, object]:
        table = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**table, "predicted": self.predicted.to_json()}


def describe(graph: Graph, family: str) -> list[LayerRow]:
    """One row per block, in topological order, without renamings.

    Raises:
        TargetError: there is no cost model for the family.
    """
    cycles = block_intervals(graph)
    names = instance_names(graph)
    plan = memory_plan(graph)
    read = {} if plan is None else {r.node: r.bytes_per_frame for r in plan.regions}
    return [
        replace(_row(block, names[name], cycles[name], family), read_bytes=read.get(name))
        for name, block in blocks_of(graph).items()
        if not isinstance(block, Flatten)
    ]


def _row(block: Block, instance: str, cycles: int, family: str) -> LayerRow:
    node = block.node
    matrix = block if isinstance(block, MatVec | Depthwise) else None
    kind = None if matrix is None else parse_format(node.string("weight_format"))
    return LayerRow(
        layer=node.name,
        source=node.source,
        op="window_parallel" if isinstance(block, ParallelWindow) else node.op,
        instance=instance,
        input=type_words(block.input_type),
        output=type_words(block.output_type),
        input_bits=block.input_type.wire_bits,
        output_bits=block.output_type.wire_bits,
        weight_format=None if kind is None else kind.name,
        weight_bits=None if kind is None else kind.bits,
        parameters=sum(int(value.size) for value in node.params.values()),
        macs=None if matrix is None else matrix.macs,
        accumulator_bits=None if matrix is None else block.output_type.wire_bits,
        pe=_integer(block, "pe"),
        simd=_integer(block, "simd"),
        depth=_integer(block, "depth"),
        cycles=cycles,
        predicted=block_resources(block, family),
    )


def type_words(kind: TensorType) -> str:
    """Format and shape of a stream: ``uint4[8,8,1]``; raw integers by their width."""
    name = f"int{kind.wire_bits}" if kind.format is None else kind.format.name
    return f"{name}[{','.join(map(str, kind.shape))}]"


def _integer(block: Block, attr: str) -> int | None:
    value = block.node.attrs.get(attr)
    return value if isinstance(value, int) else None
