# SPDX-License-Identifier: Apache-2.0
"""Whole SkyNet as one streaming design: fold, simulate real frames, synthesise, place and route.

    python benchmarks/skynet.py freeze --data DATA --threshold-bits 1 --out skynet
    python benchmarks/skynet_hardware.py skynet fold --cycles 26700000
    python benchmarks/skynet_hardware.py skynet simulate
    python benchmarks/skynet_hardware.py skynet synthesise
    python benchmarks/skynet_hardware.py skynet place --clock-mhz 80

The folder holds what `freeze` wrote (the integer graph and the levels of real frames); every stage
adds its figures to ``docs/results/skynet_hardware.json`` under ``--key`` and writes the table anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from results import command, keep, kept, machine, table

from bitwright.base.figures import Resources
from bitwright.build.nextpnr import PnrOptions, place_and_route
from bitwright.build.target import Target, load_target
from bitwright.build.yosys import NETLIST, synthesise
from bitwright.hw import (
    MapOptions,
    RateGoal,
    analyse,
    folding_of,
    load_folding,
    map_graph,
    search_folding,
)
from bitwright.hw.cost import graph_resources
from bitwright.ir import INTEGER, Graph, load_graph
from bitwright.rtl.emit import emit
from bitwright.sim import Simulator, no_stalls, random_stalls

CLOCK = 100e6
HEADS = (
    "design", "input", "cycles a frame, predicted", "RTL", "values compared", "differences",
    "LUT, predicted", "Yosys", "placed", "BRAM, predicted", "Yosys", "device", "fits", "Fmax",
)  # fmt: skip


def graph_in(folder: Path) -> Graph:
    return load_graph(folder / "graph.bwg", {"integer": INTEGER})


def run_fold(args: argparse.Namespace, target: Target) -> dict[str, Any]:
    """The least hardware that keeps the interval within the device."""
    graph, start = graph_in(args.folder), time.monotonic()
    most = target.resources
    limit = Resources(
        lut=args.luts or most.lut, ff=most.ff, dsp=most.dsp, bram=args.brams or most.bram
    )
    goal = RateGoal(CLOCK / args.cycles, CLOCK, limit=None if args.unlimited else limit)
    if args.folding:
        folding = load_folding(args.folding)
    else:
        folding = search_folding(graph, goal, family=target.family)
    searched = time.monotonic() - start
    hardware = map_graph(graph, folding, MapOptions(target.family))
    (args.folder / "folding.json").write_text(json.dumps(folding_of(hardware).to_json(), indent=1))
    emit(hardware, args.folder / "rtl")
    flow, used = analyse(hardware), graph_resources(hardware, target.family)
    return {
        "device": target.name,
        "input": list(graph.types[graph.inputs[0]].shape),
        "blocks": len(hardware.nodes),
        "interval": flow.interval,
        "latency": flow.latency,
        "bottleneck": flow.bottleneck,
        "frames_a_second_at_100_mhz": round(CLOCK / flow.interval, 2),
        "predicted": {k: round(v) for k, v in used.to_json().items()},
        "seconds_search": round(searched),
        "seconds_all": round(time.monotonic() - start),
    }


def run_simulate(args: argparse.Namespace, target: Target) -> dict[str, Any]:
    """Every output of the RTL against the integer graph, on real frames."""
    graph = graph_in(args.folder)
    frames = np.load(args.folder / "frames.npz", allow_pickle=False)
    levels = frames["x"].astype(np.int64)[: args.frames]
    expected = graph.run({graph.inputs[0]: levels})
    start = time.monotonic()
    simulator = Simulator.build(args.folder / "rtl", frames=len(levels))
    built = time.monotonic() - start
    row: dict[str, Any] = {"frames": len(levels), "values": 0, "differences": 0}
    patterns = [no_stalls(), random_stalls(0.3, seed=1)] if args.stalls else [no_stalls()]
    for stalls in patterns:
        start = time.monotonic()
        beats = simulator.pack({"s_axis_0": levels})
        result = simulator.run(beats, len(levels), stalls)
        for number, edge in enumerate(graph.outputs):
            wanted, got = expected[edge].ravel(), result.levels[f"m_axis_{number}"].ravel()
            row["values"] += int(wanted.size)
            row["differences"] += int((got != wanted).sum())
        if stalls is patterns[0]:
            ends = result.frame_ends()
            row["latency"] = int(result.latency)
            if len(levels) > 1:
                row["interval"] = int(ends[-1] - ends[-2])
            row["cycles_a_second"] = round(int(ends[-1]) / (time.monotonic() - start))
        print(row, flush=True)
    return {"simulated": {**row, "seconds_build": round(built)}}


def run_synthesise(args: argparse.Namespace, target: Target) -> dict[str, Any]:
    start = time.monotonic()
    made = synthesise(args.folder / "rtl", target, args.folder / "synthesis", timeout=7200)
    used, most = made.resources, target.resources
    fits = all(getattr(used, k) <= getattr(most, k) for k in ("lut", "ff", "dsp", "bram"))
    return {
        "synthesis": {
            **used.to_json(),
            "fits": fits,
            "tool": made.tool,
            "seconds": round(time.monotonic() - start),
        }
    }


def run_place(args: argparse.Namespace, target: Target) -> dict[str, Any]:
    """With each seed of the placer; the fastest is kept, as `implement.seeds` does it."""
    start = time.monotonic()
    netlist = args.folder / "synthesis" / NETLIST
    found = {}
    for seed in map(int, args.seeds.split(",")):
        options = PnrOptions(clock_mhz=args.clock_mhz, seed=seed)
        folder = args.folder / f"placed-{seed}"
        found[seed] = place_and_route(netlist, target, folder, options, timeout=7200)
        print(f"seed {seed}: {found[seed].fmax_mhz} MHz", flush=True)
    placed = max(found.values(), key=lambda one: one.fmax_mhz or 0.0)
    return {
        "placed": {
            **placed.resources.to_json(),
            "fmax_mhz": placed.fmax_mhz,
            "seeds": {str(seed): one.fmax_mhz for seed, one in found.items()},
            "clock_mhz": args.clock_mhz,
            "tool": placed.tool,
            "seconds": round(time.monotonic() - start),
        }
    }


COMMANDS = {
    "fold": run_fold,
    "simulate": run_simulate,
    "synthesise": run_synthesise,
    "place": run_place,
}


def note(key: str, what: str, found: dict[str, Any], typed: str) -> None:
    """Add a step's figures to a row and write the table anew. A folding is another design: what was
    found of the one before is dropped.
    """
    known = kept("skynet_hardware")
    row = {} if what == "fold" else known.get(key, {})
    commands = [c for c in row.get("commands", []) if c != typed] + [typed]
    known[key] = {**row, **found, "commands": commands, "machine": machine()}
    keep("skynet_hardware", known, page)


def page(known: dict[str, Any]) -> str:
    lines = [
        "# Whole SkyNet as one streaming design",
        "",
        "Published weights in four bits, bypass and reorder included; by",
        "`benchmarks/skynet_hardware.py`. Predicted: our model. LUT, BRAM: ECP5 cells.",
        "",
    ]
    rows = []
    for key, row in sorted(known.items()):
        sim, made = row.get("simulated", {}), row.get("synthesis", {})
        placed, model = row.get("placed", {}), row.get("predicted", {})
        fits = {True: "yes", False: "no"}.get(made.get("fits"), "")
        fmax = f"{placed['fmax_mhz']:.1f} MHz" if placed.get("fmax_mhz") else ""
        if len(placed.get("seeds", ())) > 1:
            fmax += f" ({', '.join(f'{one:.1f}' for one in placed['seeds'].values())})"
        cells = [
            key, "x".join(map(str, row.get("input", ()))), row.get("interval"),
            sim.get("interval"), sim.get("values"), sim.get("differences"), model.get("lut"),
            made.get("lut"), placed.get("lut"), model.get("bram"), made.get("bram"),
            row.get("device"), fits, fmax,
        ]  # fmt: skip
        rows.append(["" if cell is None else str(cell) for cell in cells])
    lines += table(HEADS, rows)
    for key, row in sorted(known.items()):
        lines += ["", f"{key}, on {row['machine']}:", "", *(f"* `{c}`" for c in row["commands"])]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("--seeds", default="1", help="place: of the placer, 1,2,3")
    parser.add_argument("--key", default="skynet-w4a4")
    parser.add_argument("--target", default="ecp5-85k")
    parser.add_argument("--cycles", type=float, default=4e6, help="fold: largest interval")
    parser.add_argument("--luts", type=float, help="fold: fewer than the device has")
    parser.add_argument("--brams", type=float, help="fold: fewer than the device has")
    parser.add_argument("--folding", type=Path, help="fold: a folding file instead of a search")
    parser.add_argument("--unlimited", action="store_true", help="fold: however large")
    parser.add_argument("--frames", type=int, default=2)
    parser.add_argument("--stalls", action="store_true", help="simulate: with stalls as well")
    parser.add_argument("--clock-mhz", type=float, default=60.0)
    args = parser.parse_args()
    found = COMMANDS[args.what](args, load_target(args.target))
    print(found)
    note(args.key, args.what, found, command({str(args.folder): "FOLDER"}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
