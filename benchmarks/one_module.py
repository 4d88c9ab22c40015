# SPDX-License-Identifier: Apache-2.0
"""A design folder whose top is one module of the library, for benchmarks that synthesise it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from bitwright.rtl import LIBRARY, needed_modules


def write_module(
    folder: Path,
    module: str,
    parameters: Mapping[str, int],
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
) -> None:
    """Write the folder: the module with these parameters, and what it needs.

    Args:
        inputs, outputs: widths of its ports, but for the clock and the reset.
    """
    folder.mkdir()
    names = needed_modules({module})
    for name in names:
        (folder / f"{name}.sv").write_bytes((LIBRARY / f"{name}.sv").read_bytes())
    given = {"clk_i": 1, "rst_ni": 1, **inputs}
    ports = [f"input logic [{w - 1}:0] {n}" for n, w in given.items()]
    ports += [f"output logic [{w - 1}:0] {n}" for n, w in outputs.items()]
    values = ", ".join(f".{name}({value})" for name, value in parameters.items())
    text = f"module one ({', '.join(ports)});\n  {module} #({values}) i_one (.*);\nendmodule\n"
    (folder / "one.sv").write_text(text)
    table = {
        "top": "one", "clock": "clk_i", "reset": "rst_ni", "inputs": [], "outputs": [],
        "files": [*(f"{name}.sv" for name in names), "one.sv"], "memories": [],
    }  # fmt: skip
    (folder / "design.json").write_text(json.dumps(table))
