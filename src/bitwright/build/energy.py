# SPDX-License-Identifier: Apache-2.0
"""An estimate of the energy of one inference: operations counted, times published costs of each.

It is a model, not a measurement: order of magnitude, good for comparing two designs. The costs
and where they come from are in ``energy.toml``; the static power is the target's, and its source.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import Field

from bitwright.base.described import Strict
from bitwright.base.figures import Figure, Source

_PJ = 1e-12


class _Arithmetic(Strict):
    source: str
    add_pj_per_bit: float = Field(gt=0)
    multiply_pj_per_bit2: float = Field(gt=0)


class _Memory(Strict):
    source: str
    access_pj_per_bit: float = Field(gt=0)


class _Fabric(Strict):
    source: str
    logic_factor: float = Field(gt=0)
    memory_factor: float = Field(gt=0)


class EnergyCosts(Strict):
    """Costs of elementary operations with their sources."""

    arithmetic: _Arithmetic
    memory: _Memory
    fabric: _Fabric


@dataclass(frozen=True)
class MacWork:
    """Multiply-accumulates of one kind in one inference.

    Attributes:
        count: how many.
        a_bits, w_bits: widths of the two factors; 1 by 1 is an XNOR.
        acc_bits: width of the accumulator.
    """

    count: int
    a_bits: int
    w_bits: int
    acc_bits: int


@dataclass(frozen=True)
class CompareWork:
    """Comparisons with thresholds in one inference, of numbers of ``bits`` bits."""

    count: int
    bits: int


@dataclass(frozen=True)
class Work:
    """Everything counted for one inference; additive.

    Attributes:
        macs: multiply-accumulates by kind.
        compares: comparisons by width.
        memory_bits: bits read from or written to weight, threshold, window and FIFO memories.
    """

    macs: tuple[MacWork, ...] = ()
    compares: tuple[CompareWork, ...] = ()
    memory_bits: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.macs + other.macs,
            self.compares + other.compares,
            self.memory_bits + other.memory_bits,
        )


@dataclass(frozen=True)
class EnergyEstimate:
    """Joules of one inference, by cause; an estimate.

    Attributes:
        arithmetic, memory: dynamic energy.
        static: static power times the time that one inference occupies the device.
        sources: where the costs come from, one sentence.
    """

    arithmetic: float
    memory: float
    static: float
    sources: str

    @property
    def total(self) -> float:
        return self.arithmetic + self.memory + self.static

    def figure(self) -> Figure:
        """The total in microjoules, labelled as a model's."""
        return Figure(self.total * 1e6, "µJ", Source.MODEL)

    def to_json(self) -> dict[str, object]:
        return {
            "total": self.figure().to_json(),
            "arithmetic_uj": self.arithmetic * 1e6,
            "memory_uj": self.memory * 1e6,
            "static_uj": self.static * 1e6,
            "sources": self.sources,
        }


@cache
def energy_costs() -> EnergyCosts:
    """The committed costs."""
    text = Path(__file__).with_name("energy.toml").read_text(encoding="utf-8")
    return EnergyCosts.model_validate(tomllib.loads(text))


def estimate_energy(
    work: Work,
    *,
    interval_cycles: float,
    clock_mhz: float,
    static_watts: float,
    static_source: str,
    costs: EnergyCosts | None = None,
) -> EnergyEstimate:
    """Energy of one inference in steady state.

    A product of ``a`` by ``w`` bits costs ``multiply * a * w``, an addition or comparison of
    ``n`` bits ``add * n``; both times the factor of the programmable fabric.

    Args:
        work: counted operations of one inference.
        interval_cycles: cycles between two inferences.
        clock_mhz: of the design.
        static_watts: power of the idle device.
        static_source: where that comes from.
        costs: default: the committed ones.
    """
    use = costs or energy_costs()
    multiply, add = use.arithmetic.multiply_pj_per_bit2, use.arithmetic.add_pj_per_bit
    logic = sum(m.count * (multiply * m.a_bits * m.w_bits + add * m.acc_bits) for m in work.macs)
    logic += sum(c.count * add * c.bits for c in work.compares)
    memory = work.memory_bits * use.memory.access_pj_per_bit
    seconds = interval_cycles / (clock_mhz * 1e6)
    return EnergyEstimate(
        arithmetic=logic * use.fabric.logic_factor * _PJ,
        memory=memory * use.fabric.memory_factor * _PJ,
        static=static_watts * seconds,
        sources=(
            f"estimate; operations: {use.arithmetic.source}; memory: {use.memory.source}; "
            f"fabric: {use.fabric.source}; static power: {static_source}"
        ),
    )
