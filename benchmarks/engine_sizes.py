# SPDX-License-Identifier: Apache-2.0
"""LUTs, flip-flops, multipliers and block RAMs of engines on an ECP5, by synthesis, and the model
of `bitwright.engine.cost` beside them.

    python benchmarks/engine_sizes.py            # all that are not there yet
    python benchmarks/engine_sizes.py 2x8x8-4    # these
    python benchmarks/engine_sizes.py --show     # the table, from what is there

Writes docs/results/engine_sizes.json: of the engine alone, part by part.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bitwright.base.figures import Resources
from bitwright.build.target import load_target
from bitwright.build.yosys import instance_resources, synthesise
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.rtl.emit_engine import emit_engine

_OUT = Path(__file__).parents[1] / "docs" / "results" / "engine_sizes.json"
_TIMEOUT = 7200.0
_SMALL = EngineConfig(pixels=2, feature_words=1024, weight_rows=64, parameter_rows=32)
_DATAPATH = "i_units.i_execute.i_datapath"
#: Parts by their names here: those of the datapath, and the rest.
_PARTS = ("i_array", "i_finish", "i_operands")

#: Name -> configuration, and lanes that are multipliers.
CASES: dict[str, tuple[EngineConfig, int]] = {
    "2x8x8-8": (_SMALL, 8),
    "2x8x8-4": (_SMALL, 4),
    "2x8x8-0": (_SMALL, 0),
    "2x8x8-4, two post lanes": (replace(_SMALL, post_lanes=2), 4),
    "4x8x8-8": (replace(_SMALL, pixels=4), 8),
    "4x8x8-2, 4096 words": (replace(_SMALL, pixels=4, feature_words=4096, weight_rows=256), 2),
    "2x16x16-8": (replace(_SMALL, lanes=16, outputs=16), 8),
    "e128-8": (ENGINES["e128"], 8),
    "e256-4": (ENGINES["e256"], 4),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--target", default="ecp5-85k")
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    known = json.loads(_OUT.read_text()) if _OUT.is_file() else {}
    if not given.show:
        for name in given.names or [name for name in CASES if name not in known]:
            known[name] = measure(*CASES[name], given.target)
            _OUT.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
    show(known)


def measure(config: EngineConfig, dsps: int, target: str) -> dict[str, Any]:
    """Synthesise an engine; what it takes, whole and part by part."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        emit_engine(config, out / "rtl", dsps=dsps)
        made = synthesise(out / "rtl", load_target(target), out / "yosys", timeout=_TIMEOUT)
        inside = instance_resources(made.netlist, "ecp5", _DATAPATH)
    parts = {name.removeprefix("i_"): _row(inside[name]) for name in _PARTS}
    return {
        "config": asdict(config) | {"constants": {}},
        "dsps": dsps,
        "tool": made.tool,
        "whole": _row(made.resources),
        "parts": parts,
    }


def _row(used: Resources) -> dict[str, int]:
    return {name: round(getattr(used, name)) for name in ("lut", "ff", "dsp", "bram")}


def show(known: dict[str, Any]) -> None:
    for name, row in known.items():
        print(f"{name:28} {row['whole']} {row['parts']}", flush=True)


if __name__ == "__main__":
    main()
