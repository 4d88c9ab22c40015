# SPDX-License-Identifier: Apache-2.0
"""Models of the cells of netlists, for simulation: Yosys' own, and ours where it has none."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
_FILES = {
    "ecp5": ("lattice/common_sim.vh", "lattice/ccu2c_sim.vh", "lattice/cells_sim_ecp5.v"),
    "ice40": ("ice40/cells_sim.v",),
    "xc7": ("xilinx/cells_sim.v",),
    "xcup": ("xilinx/cells_sim.v",),
}
_MULT_REGISTERS = ("INPUTA", "INPUTB", "PIPELINE", "OUTPUT")
_DEFINES = """\
`define ICE40_DEFAULT_ASSIGNMENT_V(v) = v
`define ICE40_DEFAULT_ASSIGNMENT_0 = 1'b0
`define ICE40_DEFAULT_ASSIGNMENT_1 = 1'b1
`define SB_DFF_INIT initial Q = 0;
"""


def cell_models(family: str, cells: Iterable[str]) -> str:
    """Verilog of the models of these types of cells. Synthesis' own; delays mean nothing here."""
    spec = importlib.util.find_spec("pyosys")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the cell models of the package pyosys are not there")
    folder = Path(next(iter(spec.submodule_search_locations)), "share")
    text = "".join((folder / name).read_text() for name in _FILES[family])
    text = text.replace("mem[i] <= INITVAL", "mem[i] = INITVAL")
    text = re.sub(r"\bspecify\b.*?\bendspecify\b", "", text, flags=re.DOTALL)
    text = re.sub(r"//.*", "", text)
    found = re.findall(r"^\s*(module\s+\\?([\w$]+).*?\bendmodule\b)", text, re.M | re.S)
    modules = {name: body for body, name in found}
    own = {"DP16KD": _dp16kd, "DSP48E2": _dsp48e2, "MULT18X18D": _mult18x18d}
    wanted, texts = list(dict.fromkeys(cells)), []
    for name in wanted:  # those that models are made of are found on the way
        body = own[name]() if name in own else modules[name]
        texts.append(body)
        wanted += [n for n in modules if n not in wanted and re.search(rf"^\s*{n}\b", body, re.M)]
    return _DEFINES + "\n".join(texts) + "\n"


def _dp16kd() -> str:
    """The block RAM of ECP5, whose model in Yosys is empty: its ports around our model."""
    sides, parameters, ports, inside = "AB", [], [], []
    parameters = [f"parameter [319:0] INITVAL_{k:02X} = 0" for k in range(64)]
    for name in ("DATA_WIDTH", "REGMODE", "WRITEMODE", "CSDECODE"):
        parameters += [f"parameter {name}_{side} = 0" for side in sides]
    parameters += [f"parameter {name}{s}MUX = 0" for name in ("CLK", "OCE") for s in sides]
    parameters += [f"parameter {n} = 0" for n in ("GSR", "RESETMODE", "ASYNC_RESET_RELEASE")]
    for side, low in zip(sides, "ab", strict=True):
        single = ("CLK", "CE", "OCE", "WE")
        ports += [f"input {name}{side}" for name in (*single, "RST", "CS0", "CS1", "CS2")]
        inside += [f".{name.lower()}{low}({name}{side})" for name in single]
        for bus, width, way in (("AD", 14, "input"), ("DI", 18, "input"), ("DO", 18, "output")):
            bits = [f"{bus}{side}{bit}" for bit in range(width)]
            ports += [f"{way} {bit}" for bit in bits]
            inside.append(f".{bus.lower()}{low}({{{', '.join(reversed(bits))}}})")
    ports = [re.sub(r"CS(\d)(\w)", r"CS\2\1", port) for port in ports]
    init = ", ".join(f"INITVAL_{k:02X}" for k in reversed(range(64)))
    names = [f"{n}_{s}" for n in ("DATA_WIDTH", "REGMODE") for s in sides] + ["OCEAMUX", "OCEBMUX"]
    given = ", ".join([f".INIT({{{init}}})", *(f".{name}({name})" for name in names)])
    head = f"module DP16KD #({', '.join(parameters)}) ({', '.join(ports)});\n"
    body = f"  BLOCK_RAM #({given}) i_ram ({', '.join(inside)});\nendmodule\n"
    return head + body + (HERE / "block_ram.v").read_text()


def _mult18x18d() -> str:
    """The multiplier of ECP5, whose model in Yosys is empty: its ports around our model."""
    names = [f"REG_{reg}_{what}" for reg in _MULT_REGISTERS for what in ("CLK", "CE", "RST")]
    clocks = ", ".join(f".{n}({n})" for n in names if n.endswith("CLK"))
    ports = [f"input {name}{k}" for name in ("CLK", "CE", "RST") for k in range(4)]
    ports += [f"input {name}{side}" for name in ("SIGNED", "SOURCE") for side in "AB"]
    inside = [".clk(CLK0)", ".ce(CE0)", ".rst(RST0)", ".signed_a(SIGNEDA)", ".signed_b(SIGNEDB)"]
    for bus, width, way in (("A", 18, "input"), ("B", 18, "input"), ("P", 36, "output")):
        bits = [f"{bus}{bit}" for bit in range(width)]
        ports += [f"{way} {bit}" for bit in bits]
        inside.append(f".{bus.lower()}({{{', '.join(reversed(bits))}}})")
    ports += [f"input C{bit}" for bit in range(18)]
    given = ", ".join(f'parameter {name} = "NONE"' for name in names)
    head = f"module MULT18X18D #({given}) ({', '.join(ports)});\n"
    body = f"  MULTIPLIER #({clocks}) i_mult ({', '.join(inside)});\nendmodule\n"
    return head + body + (HERE / "mult18x18d.v").read_text()


def _dsp48e2() -> str:
    """The multiplier of UltraScale+, whose model in Yosys is empty."""
    return (HERE / "dsp48e2.v").read_text()
