# SPDX-License-Identifier: Apache-2.0
"""The programmed engine on networks of the zoo: utilisation by the model, emulator against graph.

    python benchmarks/engine.py [resnet20 densenet21 ...] [--engine e256] [--emulate] [--rtl]
        [--law N]

Networks are quantized after calibration on random images (weights are not trained, which changes
neither program nor cycles). ``--emulate`` also runs one image through the emulated program and
compares every output with `Graph.run`; ``--rtl`` runs it on the engine's RTL in Verilator (minutes)
and compares the outputs, and begin and end of every instruction with the timing model. ``--law N``
draws N random networks for the emulator's law instead. Writes docs/results/engine.json and
engine.md; rows that were not named are kept.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.version import __version__
from bitwright.engine import ENGINES, EngineConfig
from bitwright.engine.checker import check_program
from bitwright.engine.compiler import compile_graph
from bitwright.engine.estimate import by_layer, timeline, utilisation
from bitwright.engine.image import EngineImage
from bitwright.engine.timing import simulate
from bitwright.ir import Graph, random_feeds
from bitwright.rtl.emit_engine import emit_engine, fitting_dsps
from bitwright.sim import MemoryModel, ProgramJob, Simulator, StallPattern, run_program
from bitwright.sim.engines import check_cycles

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
#: 3.6 of 8 bytes a cycle, about what 16 bits of SDRAM at twice the clock give.
MEMORY = MemoryModel(latency=20, beats_per_cycle=0.45)
#: Multipliers of an ECP5-85.
DSPS = 156
_FIRST = {"form": "convolution_first"}
# Network -> (model of the zoo, shape of the image, classes, utilisation to reach on E256).
NETWORKS: dict[str, tuple[dict[str, Any], tuple[int, int, int], int | None, float | None]] = {
    "resnet20": ({"name": "resnet20"}, (32, 32, 3), 10, 0.80),
    "densenet21": ({"name": "densenet21", "options": _FIRST}, (32, 32, 3), 10, 0.85),
    "densenet37": ({"name": "densenet37", "options": _FIRST}, (32, 32, 3), 10, 0.85),
    "densenet63": ({"name": "densenet63", "options": _FIRST}, (32, 32, 3), 10, 0.85),
    "mobilenet": (
        {"name": "mobilenet_cifar", "options": {"width": 0.25}}, (32, 32, 3), 10, None,
    ),
    "skynet": ({"name": "skynet"}, (160, 320, 3), None, 0.55),
}  # fmt: skip


def quantized(name: str) -> Graph:
    """A network of the zoo in eight bits as an integer graph."""
    import torch
    from torch import nn

    from bitwright.lower import optimise
    from bitwright.models import build_model
    from bitwright.quantize import Policy, apply

    spec, shape, classes, _ = NETWORKS[name]
    torch.manual_seed(0)
    model = build_model(spec, classes, shape)
    x = torch.rand(16, shape[2], *shape[:2])
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the plain average
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    model.train()
    with torch.no_grad():
        model(x[:8])
    frozen = apply(model.eval(), Policy.uniform("int8", "uint8", "uint8"), "freeze", x[:8])
    return optimise(replace(frozen.graph, name=name))


def measure(name: str, config: EngineConfig, emulated: bool, rtl: bool) -> dict[str, Any]:
    graph = quantized(name)
    start = time.perf_counter()
    image = compile_graph(graph, config)
    seconds = time.perf_counter() - start
    check_program(image.program, config, image.words)
    found, macs = timeline(image.program, config), sum(image.macs.values())
    exact = int(simulate(image.program, config, MEMORY, image.words * config.lanes).cycles[0])
    layers = by_layer(found, image.layers, image.macs)
    waits: dict[str, float] = {}
    for layer in layers:
        for unit, cycles in layer.waiting.items():
            waits[unit.name.lower()] = waits.get(unit.name.lower(), 0.0) + cycles
    row: dict[str, Any] = {
        "macs": macs, "instructions": len(image.program), "cycles": found.cycles,
        "busy": round(sum(layer.busy for layer in layers)),
        "waits": {unit: round(cycles) for unit, cycles in waits.items()},
        "utilisation": round(utilisation(exact, macs, config), 4), "exact": exact,
        "image_bytes": image.words * config.word_bytes, "compile_s": round(seconds, 1),
        "compared": 0, "differences": 0,
    }  # fmt: skip
    if emulated:
        feeds = random_feeds(graph, 1, np.random.default_rng(0))
        expected, got = graph.run(feeds), image.run(feeds)
        row["compared"] = sum(levels.size for levels in expected.values())
        row["differences"] = sum(int((expected[e] != got[e]).sum()) for e in expected)
    if rtl:
        row["rtl"] = on_rtl(graph, image)
    return row


def on_rtl(graph: Graph, image: EngineImage) -> dict[str, int]:
    """One image through the simulated engine: cycles, values compared and how many differ.

    Raises:
        MismatchError: an instruction begins or ends in another cycle than predicted.
    """
    config = image.config
    with tempfile.TemporaryDirectory() as folder:
        emit_engine(config, Path(folder) / "rtl", dsps=fitting_dsps(config, DSPS))
        simulator = Simulator.build(Path(folder) / "rtl", cycles=10**9)
        feeds = random_feeds(graph, 1, np.random.default_rng(0))
        frame, stalls = (
            {e: levels[0] for e, levels in feeds.items()},
            StallPattern("", memory=MEMORY),
        )
        size = image.words * config.word_bytes
        job = ProgramJob(image.data.tobytes(), size=size, writes=[image.writes(frame)])
        (run,) = run_program(simulator, job, stalls)
    expected, got = graph.run(feeds), image.read(run.memory)
    timing = simulate(image.program, config, MEMORY, size, seed=stalls.seed)
    return {
        "cycles": run.cycles,
        "instructions": check_cycles(image.program, run, timing, 0),
        "compared": sum(levels.size for levels in expected.values()),
        "differences": sum(int((levels[0] != got[e]).sum()) for e, levels in expected.items()),
    }


def law(count: int) -> dict[str, int]:
    sys.path.insert(0, str(ROOT))
    from tests.pure.test_engine_law import law as hold

    return dict(hold(count))


def _simulated(row: dict[str, Any]) -> str:
    if "rtl" not in row:
        return ""
    found = row["rtl"]
    return f"{found['cycles']:,}; {found['compared']:,}, {found['differences']}"


def write_table(rows: dict[str, Any]) -> None:
    lines = [
        "# The programmed engine on networks of the zoo",
        "",
        "Predicted by `benchmarks/engine.py`. Cycles are those of `bitwright.engine.timing`, which "
        "tests hold to the simulated RTL, instruction by instruction, with a memory of 0.45 words "
        "a cycle and a latency of 20; estimate, busy and waits are of the compiler's own max-plus "
        "model (`engine.estimate`). Batch 1, eight bits, convolution-first DenseNets at 32 x 32, "
        "SkyNet at 160 x 320. Utilisation: multiply-accumulates of convolutions and dense layers "
        "by cycles x products a cycle; loads, additions, pools and fill all count as cycles. "
        "Compared: values of the emulated program beside `Graph.run` (0: not run). Simulated: one "
        "image on the engine's RTL in Verilator, its outputs beside `Graph.run`; begin and end of "
        "every instruction were compared with the model, too, or there is no row.",
        "",
        "| network | engine | MMAC | cycles | estimate | busy | X waits for | utilisation "
        "| wanted | instructions | compared, differ | simulated RTL: cycles; compared, differ |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key, row in sorted(rows.items()):
        name, engine = key.split("@")
        wanted = NETWORKS[name][3] if engine == "e256" else None
        waits = ", ".join(f"{u} {c:,}" for u, c in row["waits"].items() if c)
        lines.append(
            f"| {name} | {engine} | {row['macs'] / 1e6:.1f} | {row['exact']:,} "
            f"| {row['cycles']:,} | {row['busy']:,} "
            f"| {waits} | {100 * row['utilisation']:.1f} % | "
            f"{'' if wanted is None else f'{100 * wanted:.0f} %'} | {row['instructions']:,} | "
            f"{row['compared']}, {row['differences']} | {_simulated(row)} |"
        )
    lines += [
        "",
        f"Bitwright {__version__}, numpy {np.__version__}, Python {platform.python_version()}; "
        "cycles do not depend on the machine.",
    ]
    (RESULTS / "engine.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=[*NETWORKS])
    parser.add_argument("--engine", default="e256", choices=[*ENGINES])
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--rtl", action="store_true")
    parser.add_argument("--law", type=int, default=0)
    wanted = parser.parse_args()
    if wanted.law:
        print(law(wanted.law))
        return
    path = RESULTS / "engine.json"
    rows = json.loads(path.read_text()) if path.is_file() else {}
    for name in wanted.networks:
        row = measure(name, ENGINES[wanted.engine], wanted.emulate, wanted.rtl)
        key = f"{name}@{wanted.engine}"
        old = rows.get(key, {})
        if "rtl" in old and old["exact"] == row["exact"]:  # the same program
            row.setdefault("rtl", old["rtl"])
        rows[key] = row
        print(name, row, flush=True)
        path.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
        write_table(rows)


if __name__ == "__main__":
    main()
