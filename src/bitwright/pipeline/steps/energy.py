# SPDX-License-Identifier: Apache-2.0
"""Counting what one inference does, for the energy estimate."""

from __future__ import annotations

from math import prod

from bitwright.build.energy import CompareWork, EnergyEstimate, MacWork, Work, estimate_energy
from bitwright.build.target import Target
from bitwright.formats import parse_format
from bitwright.hw.blocks import Block, blocks_of
from bitwright.ir import Graph, bits_for_interval


def energy_of(
    hardware: Graph, target: Target, *, interval: int, clock_mhz: float
) -> EnergyEstimate:
    """Energy of one inference in steady state: an estimate.

    Args:
        interval: cycles between two images.
        clock_mhz: of the design.
    """
    return estimate_energy(
        work_of(hardware),
        interval_cycles=interval,
        clock_mhz=clock_mhz,
        static_watts=target.power.static_watts,
        static_source=target.power.source,
    )


def work_of(hardware: Graph) -> Work:
    """Operations and memory traffic of one image, block by block."""
    total = Work()
    for block in blocks_of(hardware).values():
        if block.node.op not in _FREE:
            total = total + _COUNTERS.get(block.node.op, _other)(block)
    return total


def _matvec(block: Block) -> Work:
    """One multiply-accumulate a weight and window; every weight is read once for each."""
    weight = block.node.params["weight"]
    vectors = prod(block.output_type.shape[:-1])
    bits = parse_format(block.node.string("weight_format")).bits
    count = vectors * int(weight.size)
    acc = block.output_type.wire_bits
    work = MacWork(count, block.input_type.wire_bits, bits, acc)
    return Work(macs=(work,), memory_bits=count * bits)


def _threshold(block: Block) -> Work:
    """A binary search: one comparison, and one threshold read, a bit of the result."""
    thresholds = block.node.params["thresholds"]
    stages = int(thresholds.shape[1]).bit_length()
    bits = bits_for_interval(int(thresholds.min()), int(thresholds.max()))
    count = block.output_type.size * stages
    return Work(
        compares=(CompareWork(count, block.input_type.wire_bits),), memory_bits=count * bits
    )


def _requant(block: Block) -> Work:
    """One product and one sum an element."""
    multiplier, offset = block.node.params["multiplier"], block.node.params["offset"]
    bits = bits_for_interval(int(multiplier.min()), int(multiplier.max()))
    width = block.input_type.wire_bits + bits
    traffic = bits + bits_for_interval(int(offset.min()), int(offset.max()))
    size = block.output_type.size
    work = MacWork(size, block.input_type.wire_bits, bits, width)
    return Work(macs=(work,), memory_bits=size * traffic)


def _compare_all(block: Block) -> Work:
    """Max pool and argmax: one comparison an input element."""
    return Work(compares=(CompareWork(block.input_type.size, block.input_type.wire_bits),))


def _buffer(block: Block) -> Work:
    """FIFO and window: every element is written once; read as often as it is given out."""
    elements = block.input_type.size + block.output_type.size
    return Work(memory_bits=elements * block.input_type.wire_bits)


def _sums(block: Block) -> Work:
    """Sum pool and addition: one addition an input element and further operand.

    An addition is counted as a comparison of as many bits as the sum has: both are a carry chain.
    """
    return Work(compares=(CompareWork(block.input_type.size, block.output_type.wire_bits),))


def _lookup(block: Block) -> Work:
    """One table entry is read an element."""
    return Work(memory_bits=block.output_type.size * block.output_type.wire_bits)


def _other(block: Block) -> Work:
    """A block of the user's own: one addition of its widest number for each element it takes, or
    gives if that is more.
    """
    elements = max(sum(kind.size for kind in block.input_types), block.output_type.size)
    bits = max(kind.wire_bits for kind in (*block.input_types, block.output_type))
    return Work(compares=(CompareWork(elements, bits),))


#: Wires and registers only.
_FREE = ("concat", "dwc", "flatten", "fork", "pad")
_COUNTERS = {
    "matvec": _matvec,
    "depthwise": _matvec,
    "threshold": _threshold,
    "requant": _requant,
    "requant_float": _requant,
    "pool_max": _compare_all,
    "top_k": _compare_all,
    "fifo": _buffer,
    "window": _buffer,
    "upsample": _buffer,
    "pool_sum": _sums,
    "add": _sums,
    "lookup": _lookup,
}
