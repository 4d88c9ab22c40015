# SPDX-License-Identifier: Apache-2.0
"""Weights from outside: matrix units that stream their weights from a memory on an AXI4 port.

A unit with ``mem_mode`` external takes one weight word a step (PE * SIMD weights), all words of
its matrix for every vector: nothing is kept on the chip, so every weight is read once a vector
(reuse 1). All units share one read port. What they can ask for together when all of them step
every cycle must not exceed what the port gives; then none ever waits and the predicted interval
holds. Folding (PE, SIMD) is what sets the demand. `hw.weight_image` says where the weights lie.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil

from bitwright.base.errors import RecipeError, TargetError
from bitwright.hw.blocks import MatVec, blocks_of
from bitwright.hw.blocks.matvec import EXTERNAL
from bitwright.hw.folding import Folding
from bitwright.hw.memory import packing, ram_style
from bitwright.ir import Attr, Graph, rebuild

BURST = 16  # memory words
PAGE = 4096  # bytes; no burst crosses a multiple (AXI4, A3.4.1)
EPOCH_BITS = 2  # of a read's identifier; see `axi_arbiter`
_EPSILON = 1e-9


@dataclass(frozen=True)
class WeightMemory:
    """The memory behind the weight port.

    Attributes:
        data_bits: width of the AXI4 port: 32, 64, 128, 256, 512 or 1024.
        address_bits: width of addresses.
        latency: cycles from a request to its data that the units' buffers cover.
        beats_per_cycle: bandwidth, as a share of the port's own (data_bits a cycle).
    """

    data_bits: int = 64
    address_bits: int = 32
    latency: int = 64
    beats_per_cycle: float = 1.0

    def __post_init__(self) -> None:
        if self.data_bits not in (32, 64, 128, 256, 512, 1024):
            raise RecipeError(
                f"a weight port of {self.data_bits} bits does not exist in AXI4 here",
                where="weight memory",
                hint="use 32, 64, 128, 256, 512 or 1024",
            )
        if not 12 < self.address_bits <= 64 or self.latency < 0:
            raise RecipeError(
                f"address_bits must be 13 .. 64 and latency 0 or more: {self}",
                where="weight memory",
            )
        if not 0 < self.beats_per_cycle <= 1:
            raise RecipeError(
                f"the bandwidth must be above 0 and at most the port's own, got "
                f"{self.beats_per_cycle:g} of it",
                where="weight memory",
            )

    @staticmethod
    def with_bandwidth(
        gbytes_per_s: float, clock_hz: float, data_bits: int = 64, latency: int = 64
    ) -> WeightMemory:
        """A memory that gives so many GB/s (1e9 bytes) to a port at this clock, at most its own."""
        own = data_bits / 8 * clock_hz / 1e9
        share = min(1.0, gbytes_per_s / own)
        return WeightMemory(data_bits, latency=latency, beats_per_cycle=share)


@dataclass(frozen=True)
class Outside:
    """Which matrix units have their weights outside, and in what memory."""

    nodes: tuple[str, ...]
    memory: WeightMemory = field(default_factory=WeightMemory)

    def move(self, hardware: Graph) -> Graph:
        """A hardware graph with the weights of these units outside.

        Raises:
            RecipeError: a name is none of a matrix unit; says which there are.
        """
        units = {node.name for node in hardware if node.op == "matvec"}
        stray = sorted(set(self.nodes) - units)
        if stray:
            raise RecipeError(
                f"{', '.join(map(repr, stray))} cannot have weights outside: no matrix unit of "
                "that name",
                where="external weights",
                hint=f"matrix units are {', '.join(n.name for n in hardware if n.name in units)}",
            )
        attrs: dict[str, Attr] = {"mem_mode": EXTERNAL, "port_bits": self.memory.data_bits}
        return rebuild(
            hardware,
            tuple(
                replace(node, attrs={**node.attrs, **attrs}) if node.name in self.nodes else node
                for node in hardware
            ),
        )


def burst_bytes(burst: int, data_bits: int) -> int:
    """Bytes of a burst of so many memory words; bursts start on multiples of it.

    Raises:
        RecipeError: some burst would cross a page, or be longer than AXI4 allows.
    """
    size = burst * data_bits // 8
    if not 1 <= burst <= 256 or burst & (burst - 1) or size > PAGE:
        raise RecipeError(
            f"bursts of {burst} words of {data_bits} bits would cross {PAGE} bytes",
            where="weight memory",
            hint=f"a burst is a power of two of at most 256 words and {PAGE} bytes",
        )
    return size


def demand_of(block: MatVec, data_bits: int) -> float:
    """Memory words a cycle that a unit takes while it steps every cycle."""
    beats, words = packing(block.word_bits, block.depth, data_bits)
    return beats / words


def place_weights(hardware: Graph, memory: WeightMemory, family: str) -> Graph:
    """Tell every unit with external weights the port it reads from, and size its buffer.

    The buffer holds what arrives during a burst of its own, one of every other unit, and the
    latency of the memory.

    Raises:
        TargetError: together the units can ask for more than the memory gives.
    """
    units = [b for b in blocks_of(hardware).values() if isinstance(b, MatVec) and b.external]
    if not units:
        return hardware
    _check_demand(hardware, units, memory)
    nodes = []
    names = {unit.name: unit for unit in units}
    for node in hardware:
        unit = names.get(node.name)
        if unit is None:
            nodes.append(node)
            continue
        cover = ceil(memory.latency * demand_of(unit, memory.data_bits))
        prefetch = 2 ** (BURST * (len(units) + 1) + cover - 1).bit_length()
        style = node.string("ram_style")
        attrs = {
            **node.attrs,
            "port_bits": memory.data_bits,
            "port_address_bits": memory.address_bits,
            "port_share": (memory.beats_per_cycle,),
            "prefetch": prefetch,
            "ram_style": ram_style(family, prefetch, memory.data_bits, style),
        }
        nodes.append(replace(node, attrs=attrs))
    return rebuild(hardware, tuple(nodes))


def check_modes(hardware: Graph, folding: Folding) -> None:
    """A folding may put weights outside only where there is a matrix unit.

    Raises:
        RecipeError: an entry of its own for another block says otherwise.
    """
    for node in hardware:
        own = folding.nodes.get(node.name)
        if own is not None and own.mem_mode == EXTERNAL and node.op != "matvec":
            raise RecipeError(
                f"a {node.op} block cannot have its weights outside",
                where=f"folding, {node.name}",
                hint="mem_mode external is for matrix units; leave it out here",
            )


def _check_demand(hardware: Graph, units: list[MatVec], memory: WeightMemory) -> None:
    wanted = {unit.name: demand_of(unit, memory.data_bits) for unit in units}
    total = sum(wanted.values())
    if total <= memory.beats_per_cycle + _EPSILON:
        return
    listed = ", ".join(f"{name} {d * memory.data_bits / 8:g}" for name, d in wanted.items())
    has = memory.beats_per_cycle * memory.data_bits / 8
    raise TargetError(
        f"the weights from outside need {total * memory.data_bits / 8:g} bytes a cycle "
        f"({listed}), the memory gives {has:g}",
        where=f"weight memory of {hardware.name}",
        hint="lower PE or SIMD of these units (a lower rate), keep some weights internal, or use "
        "a wider port or a faster memory",
    )
