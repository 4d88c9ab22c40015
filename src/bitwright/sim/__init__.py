# SPDX-License-Identifier: Apache-2.0
"""Simulation: a Verilator harness, stall patterns, cycle stamps, and the first difference."""

from __future__ import annotations

from bitwright.sim.beats import StreamSpec, pack, unpack
from bitwright.sim.bench import write_module_bench
from bitwright.sim.compare import Difference, compare
from bitwright.sim.memory import MemoryModel, MemoryPort
from bitwright.sim.parts import PartsResult, PartsSimulator
from bitwright.sim.programs import ProgramJob, ProgramRun, run_program
from bitwright.sim.simulator import RunLimits, SimResult, Simulator
from bitwright.sim.spec import Design, Port, load_design
from bitwright.sim.stalls import (
    StallPattern,
    burst_stalls,
    no_stalls,
    output_stalls,
    random_stalls,
    standard_stalls,
)
from bitwright.sim.taps import Tap, Tapped, TapRun, run_tapped
from bitwright.sim.toolchain import lint

__all__ = [
    "Design",
    "Difference",
    "MemoryModel",
    "MemoryPort",
    "PartsResult",
    "PartsSimulator",
    "Port",
    "ProgramJob",
    "ProgramRun",
    "RunLimits",
    "SimResult",
    "Simulator",
    "StallPattern",
    "StreamSpec",
    "Tap",
    "TapRun",
    "Tapped",
    "burst_stalls",
    "compare",
    "lint",
    "load_design",
    "no_stalls",
    "output_stalls",
    "pack",
    "random_stalls",
    "run_program",
    "run_tapped",
    "standard_stalls",
    "unpack",
    "write_module_bench",
]
