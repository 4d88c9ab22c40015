# SPDX-License-Identifier: Apache-2.0
"""Tops around library modules at given parameter points, for synthesis."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.verilator.lib_cases import Case

from bitwright.rtl import LIBRARY, needed_modules


def _literal(value: int | str, memories: str) -> str:
    if isinstance(value, str) and value.endswith((".mem", "_")):
        return f'"{memories}/{value}"'
    return str(value)


def _streams(name: str, width: int, forward: str, backward: str) -> list[tuple[str, int, str]]:
    """(direction, width, name) of the signals of one stream."""
    if "axis" in name:
        names = [f"{name}_tdata", f"{name}_tvalid", f"{name}_tready"]
        last = [(forward, 1, f"{name}_tlast")]
    else:
        f, b = ("i", "o") if forward == "input" else ("o", "i")
        names, last = [f"{name}_data_{f}", f"{name}_valid_{f}", f"{name}_ready_{b}"], []
    data, valid, ready = names
    return [(forward, width, data), (forward, 1, valid), (backward, 1, ready), *last]


def _ports(case: Case) -> list[tuple[str, int, str]]:
    ports = [("input", 1, "clk_i"), ("input", 1, "rst_ni")]
    for name, port in case.inputs.items():
        ports += _streams(name, port.width, "input", "output")
    for name, port in case.outputs.items():
        ports += _streams(name, port.width, "output", "input")
    if case.module == "axis_in":
        ports.append(("output", 1, "frame_error_o"))
    return ports


def wrapper(case: Case) -> str:
    """Module ``wrap_<case>`` with the block's ports."""
    ports = ", ".join(f"{way} logic [{width - 1}:0] {name}" for way, width, name in _ports(case))
    parameters = ", ".join(f".{k}({_literal(v, case.name)})" for k, v in case.parameters.items())
    block = f"{case.module} #({parameters}) i_block (.*);"
    return f"module wrap_{case.name} ({ports});\n  {block}\nendmodule\n"


def top(cases: Iterable[Case]) -> str:
    """Module ``wrap``: all wrappers side by side."""
    ports, instances = ["input logic clk_i", "input logic rst_ni"], []
    for case in cases:
        own = [p for p in _ports(case) if p[2] not in ("clk_i", "rst_ni")]
        ports += [f"{way} logic [{width - 1}:0] {case.name}_{name}" for way, width, name in own]
        links = ", ".join(f".{name}({case.name}_{name})" for _, _, name in own)
        instances.append(f"  wrap_{case.name} i_{case.name} (.clk_i, .rst_ni, {links});\n")
    return f"module wrap ({', '.join(ports)});\n{''.join(instances)}endmodule\n"


def write_synthesis(cases: list[Case], folder: Path) -> list[str]:
    """Write sources and memory images; the sources' paths below the folder, tops last."""
    (folder / "lib").mkdir()
    files = [f"lib/{name}.sv" for name in needed_modules({case.module for case in cases})]
    for name in files:
        shutil.copy(LIBRARY / Path(name).name, folder / name)
    for case in cases:
        (folder / case.name).mkdir()
        for name, text in case.memories.items():
            (folder / case.name / name).write_text(text)
    (folder / "wrap.sv").write_text("".join(map(wrapper, cases)) + top(cases))
    return [*files, "wrap.sv"]
