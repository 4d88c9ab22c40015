# SPDX-License-Identifier: Apache-2.0
"""The clock of a board's design: a PLL setting and the module that makes it, family by family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, floor

from bitwright.base.errors import TargetError
from bitwright.build.target import Board

#: Of Fmax: what a bitstream is tried at where the clock that was aimed at is missed.
PLL_MARGIN = 0.97
_TINY = 1e-6
_APART = 1e-3  # settings closer than that are one


@dataclass(frozen=True)
class Clock:
    """A PLL setting: ``mhz`` is the oscillator's ``input / ref_div * vco_mul``, over ``out_div``.

    ``ref_div`` 0 means no PLL.
    """

    mhz: float
    ref_div: int
    vco_mul: int
    out_div: int


@dataclass(frozen=True)
class _Pll:
    """What a family's PLL can do, in MHz; every divider starts at 1.

    Attributes:
        module: file of the module in ``shell/prim``, which has its name.
        detector: of the phase detector.
        oscillator: of the VCO.
        output: of what it makes.
        most_ref, most_mul: largest divider of the input and of the loop.
        out_divs: dividers of the output.
        extra: parameters of the module besides the dividers.
        source: where the limits are from.
    """

    module: str
    detector: tuple[float, float]
    oscillator: tuple[float, float]
    output: tuple[float, float]
    most_ref: int
    most_mul: int
    out_divs: Iterable[int]
    extra: Callable[[Clock, Board], Mapping[str, int]]
    source: str


#: Upper ends of the ranges of the phase detector (MHz), for FILTER_RANGE 1 to 5; above them it is
#: 6. As icepll of Project IceStorm has them.
_ICE40_FILTER = (17.0, 26.0, 44.0, 66.0, 101.0)


def _ice40_extra(clock: Clock, board: Board) -> Mapping[str, int]:
    detector = board.clock_mhz / max(1, clock.ref_div)
    filter_range = 1 + sum(detector >= end for end in _ICE40_FILTER)
    return {"Pad": int(board.clock_on_pll_pad), "Filter": filter_range}


_PLLS: Mapping[str, _Pll] = {
    "ecp5": _Pll(
        module="clock_ecp5",
        detector=(10.0, 400.0),
        oscillator=(400.0, 800.0),
        output=(3.125, 400.0),
        most_ref=128,
        most_mul=128,
        out_divs=range(1, 129),
        extra=lambda clock, board: {},
        # Oscillator, output and dividers: also so in LiteX (cores/clock/lattice_ecp5.py) and in
        # Project F's "ECP5 FPGA Clock Generation", which quotes the data sheet's table. The
        # detector: on the safe side; ecppll of Project Trellis lets it go down to 3.125 MHz.
        source="ECP5 and ECP5-5G Family Data Sheet FPGA-DS-02012, sysCLOCK PLL timing",
    ),
    "ice40": _Pll(
        module="clock_ice40",
        detector=(10.0, 133.0),
        oscillator=(533.0, 1066.0),
        output=(16.0, 275.0),
        most_ref=16,
        most_mul=128,  # of the simple feedback path; the guide's 64 are of the others (icepll)
        out_divs=tuple(1 << k for k in range(1, 7)),
        extra=_ice40_extra,
        # All of them as in icepll of Project IceStorm (icepll.cc: limit_pfd, limit_vco, limit_out,
        # DIVR 0 to 15, DIVQ 1 to 6).
        source="iCE40 sysCLOCK PLL Design and User Guide FPGA-TN-02052; data sheet FPGA-DS-02029",
    ),
}


def choose_clock(input_mhz: float, wanted_mhz: float, family: str = "ecp5") -> Clock:
    """The setting of a family's PLL with the highest frequency that is not above the wanted one.

    The input itself counts as one.

    Raises:
        TargetError: no setting is at or below the wanted frequency, or the family has no PLL here.
    """
    pll = _pll(family)
    best = Clock(input_mhz, 0, 1, 1) if input_mhz < wanted_mhz + _TINY else None
    for ref_div in range(1, min(pll.most_ref, floor(input_mhz / pll.detector[0] + _TINY)) + 1):
        detector = input_mhz / ref_div
        if detector > pll.detector[1]:
            continue
        low, high = (limit / detector for limit in pll.oscillator)
        for vco_mul in range(ceil(low - _TINY), min(pll.most_mul, floor(high + _TINY)) + 1):
            mhz, out_div = _divided(detector * vco_mul, wanted_mhz, pll)
            if mhz > (best.mhz if best else 0.0) + _TINY:
                best = Clock(mhz, ref_div, vco_mul, out_div)
    if best is None:
        least, most = pll.output
        raise TargetError(
            f"no PLL setting makes {wanted_mhz:g} MHz or a little less from {input_mhz:g} MHz",
            hint=f"ask for a clock of {least:g} to {most:g} MHz",
        )
    return best


def clock_below(input_mhz: float, fmax_mhz: float, rate_mhz: float | None, family: str) -> Clock:
    """What a bitstream is tried at where the clock that was aimed at is missed: some way below the
    one that was reached, but no slower than one that keeps a rate where that was reached.

    Raises:
        TargetError: as `choose_clock`.
    """
    margin = fmax_mhz * PLL_MARGIN
    if rate_mhz is None or not margin < rate_mhz <= fmax_mhz:
        return choose_clock(input_mhz, margin, family)
    return least_clock(input_mhz, rate_mhz, fmax_mhz, family)


def least_clock(input_mhz: float, needed_mhz: float, most_mhz: float, family: str) -> Clock:
    """The slowest setting that is not below a frequency, and not above another; where there is none
    between them, as `choose_clock` for the other.

    Raises:
        TargetError: as `choose_clock`.
    """
    found = choose_clock(input_mhz, most_mhz, family)
    while found.mhz - _APART >= max(needed_mhz, _pll(family).output[0]):
        slower = choose_clock(input_mhz, found.mhz - _APART, family)
        if slower.mhz < needed_mhz - _TINY:
            break
        found = slower
    return found


def _divided(oscillator: float, wanted: float, pll: _Pll) -> tuple[float, int]:
    """The highest output at or below the wanted frequency, and its divider; (0, 0) without one."""
    least, most = pll.output
    fitting = (
        (oscillator / divider, divider)
        for divider in pll.out_divs
        if least - _TINY <= oscillator / divider <= min(most, wanted) + _TINY
    )
    return max(fitting, default=(0.0, 0))


def clock_module(family: str) -> str:
    """Name of the module that makes the clock; its file is ``shell/prim/NAME.sv``.

    Raises:
        TargetError: there is none for the family.
    """
    return _pll(family).module


def clock_instance(family: str, clock: Clock, board: Board) -> str:
    """The instance of that module, ``clk`` to ``core_clk`` and ``locked``, as SystemVerilog."""
    pll = _pll(family)
    parameters = {
        "Use": int(clock.ref_div > 0),
        "RefDiv": max(1, clock.ref_div),
        "VcoMul": clock.vco_mul,
        "OutDiv": clock.out_div,
        **pll.extra(clock, board),
    }
    text = ", ".join(f".{name}({value})" for name, value in parameters.items())
    return f"""  {pll.module} #(
    {text}
  ) i_clock (
    .clk_i(clk), .clk_o(core_clk), .locked_o(locked)
  );"""


def _pll(family: str) -> _Pll:
    if family not in _PLLS:
        raise TargetError(
            f"there is no clock module for the family {family}",
            hint=f"families of boards are {', '.join(_PLLS)}",
        )
    return _PLLS[family]
