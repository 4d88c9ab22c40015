# SPDX-License-Identifier: Apache-2.0
"""The programmed engine on networks of the zoo: utilisation by the model, emulator against graph.

    python benchmarks/engine.py [resnet20 densenet21 ...] [--engine e256] [--bits 8]
        [--emulate] [--rtl] [--law N]

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.version import __version__
from bitwright.engine import ENGINES, EngineConfig
from bitwright.engine.checker import check_program
from bitwright.engine.compiler import compile_graph
from bitwright.engine.config import Constants
from bitwright.engine.cost import fitting_dsps
from bitwright.engine.estimate import by_layer, timeline, utilisation
from bitwright.engine.image import EngineImage
from bitwright.engine.sdram import SdramMemory
from bitwright.engine.timing import simulate
from bitwright.ir import Graph, random_feeds
from bitwright.rtl.emit_engine import emit_engine
from bitwright.sim import MemoryModel, ProgramJob, Simulator, StallPattern, run_program
from bitwright.sim.engines import check_cycles

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"


@dataclass(frozen=True)
class System:
    """An engine with its memory and clock.

    Attributes:
        memory: as the test bench plays it, or the exact model of a board's; clock_mhz: assumed.
    """

    config: EngineConfig
    memory: MemoryModel | SdramMemory
    clock_mhz: float


#: 3.6 of 8 bytes a cycle is about what 16 bits of SDRAM at twice the clock give; the ZU9EG's DDR4
#: gives a core at 300 MHz more than a word of 16 bytes a cycle.
_SDRAM = MemoryModel(latency=20, beats_per_cycle=0.45)
SYSTEMS = {
    "e256": System(ENGINES["e256"], _SDRAM, 62.5),
    "e256-int8": System(ENGINES["e256-int8"], _SDRAM, 62.5),
    "e256-int8-16k": System(ENGINES["e256-int8-16k"], _SDRAM, 62.5),
    "e256-2": System(ENGINES["e256-2"], _SDRAM, 62.5),
    "ulx3s": System(ENGINES["e256-int8"], SdramMemory(mhz=62.5), 62.5),
    "ulx3s-16k": System(ENGINES["e256-int8-16k"], SdramMemory(mhz=62.5), 62.5),
    "e512": System(ENGINES["e512"], _SDRAM, 62.5),
    "e1024": System(ENGINES["e1024"], _SDRAM, 62.5),
    "zu9eg": System(
        replace(ENGINES["e2048"], constants=Constants(bytes_per_cycle=20.0)),
        MemoryModel(latency=60), 300.0,
    ),
}  # fmt: skip
#: Utilisation to reach in 4 bits with 1 024 products of them a cycle.
_FOUR = {"densenet21": 0.75, "densenet37": 0.70, "densenet63": 0.60}
#: Milliseconds of the published DPU (one B4096 at 300 MHz on the ZU9EG).
_DPU_MS = {"densenet21": 0.69, "densenet37": 1.11, "densenet63": 1.78}
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


def quantized(name: str, bits: int = 8) -> Graph:
    """A network of the zoo in so many bits as an integer graph; its input has eight."""
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
    frozen = apply(
        model.eval(), Policy.uniform(f"int{bits}", f"uint{bits}", "uint8"), "freeze", x[:8]
    )
    return optimise(replace(frozen.graph, name=name))


def measure(name: str, system: System, bits: int, emulated: bool, rtl: bool) -> dict[str, Any]:
    config, memory = system.config, system.memory
    if rtl and not isinstance(memory, MemoryModel):
        raise SystemExit("the test bench plays no SDRAM: tests/verilator/test_engine_board.py")
    graph = quantized(name, bits)
    start = time.perf_counter()
    image = compile_graph(graph, config)
    seconds = time.perf_counter() - start
    check_program(image.program, config, image.words)
    found, macs = timeline(image.program, config), sum(image.macs.values())
    exact = int(simulate(image.program, config, memory, image.words * config.lanes).cycles[0])
    layers = by_layer(found, image.layers, image.macs)
    waits: dict[str, float] = {}
    for layer in layers:
        for unit, cycles in layer.waiting.items():
            waits[unit.name.lower()] = waits.get(unit.name.lower(), 0.0) + cycles
    row: dict[str, Any] = {
        "macs": macs, "instructions": len(image.program), "cycles": found.cycles,
        "busy": round(sum(layer.busy for layer in layers)),
        "waits": {unit: round(cycles) for unit, cycles in waits.items()},
        "utilisation": round(utilisation(exact, macs, config) * bits / 8, 4), "exact": exact,
        "ms": round(exact / system.clock_mhz / 1e3, 3), "bits": bits,
        "image_bytes": image.words * config.word_bytes, "compile_s": round(seconds, 1),
        "compared": 0, "differences": 0,
    }  # fmt: skip
    if emulated:
        feeds = random_feeds(graph, 1, np.random.default_rng(0))
        expected, got = graph.run(feeds), image.run(feeds)
        row["compared"] = sum(levels.size for levels in expected.values())
        row["differences"] = sum(int((expected[e] != got[e]).sum()) for e in expected)
    if rtl and isinstance(memory, MemoryModel):
        row["rtl"] = on_rtl(graph, image, memory)
    return row


def on_rtl(graph: Graph, image: EngineImage, memory: MemoryModel) -> dict[str, int]:
    """One image through the simulated engine: cycles, values compared and how many differ.

    Raises:
        MismatchError: an instruction begins or ends in another cycle than predicted.
    """
    config = image.config
    with tempfile.TemporaryDirectory() as folder:
        emit_engine(config, Path(folder) / "rtl", dsps=fitting_dsps(config, DSPS))
        simulator = Simulator.build(Path(folder) / "rtl")
        feeds = random_feeds(graph, 1, np.random.default_rng(0))
        frame, stalls = (
            {e: levels[0] for e, levels in feeds.items()},
            StallPattern("", memory=memory),
        )
        size = image.words * config.word_bytes
        job = ProgramJob(image.data.tobytes(), size=size, writes=[image.writes(frame)])
        (run,) = run_program(simulator, job, stalls)
    expected, got = graph.run(feeds), image.read(run.memory)
    timing = simulate(image.program, config, memory, size, seed=stalls.seed)
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
        return "not run"
    found = row["rtl"]
    return f"{found['cycles']:,}; {found['compared']:,}, {found['differences']} differ"


def write_table(rows: dict[str, Any]) -> None:
    lines = [
        "# The programmed engine on networks of the zoo",
        "",
        "By `benchmarks/engine.py`. Cycles are those of `bitwright.engine.timing`, which tests "
        "hold to the simulated RTL, instruction by instruction. e256 (and e256-2, with two post "
        "lanes a pixel), e512 (8x8x8, so 1 024 products of 4 bits a cycle), e1024: a memory of "
        "0.45 words of 8 bytes a cycle and a latency of 20, "
        "62.5 MHz; ulx3s: E256 of eight bits (e256-int8), placed and routed at 67.9 MHz on that "
        "board, with its SDRAM by the controller's exact model, as `bitwright board` shows the "
        "cycles; 16k: with half its features (16 384 words), routed at 69.6 MHz; zu9eg: 8x16x16 "
        "with two post lanes a pixel, a word of 16 bytes a cycle, latency 60, 300 MHz, beside the "
        "published DPU's B4096 on that device "
        "(0.69, 1.11, 1.78 ms). Clocks are assumed here. Batch 1, eight bits where nothing else is "
        "said, convolution-first DenseNets at 32 x 32, SkyNet at 160 x 320. Utilisation: "
        "multiply-accumulates of convolutions and dense layers by what the array could do in that "
        "time, of 4 bits twice as many; loads, additions, pools and fill all count as cycles. "
        "What X waits for is the estimate's, so with X busy it adds up to that, not to the cycles. "
        "Emulated: values of the emulated program beside `Graph.run`, and how many differ. "
        "Simulated: one image on the engine's RTL in Verilator, its outputs beside `Graph.run`; "
        "begin and end of every instruction were compared with the model, too, or there is no row.",
        "",
        "| network | engine | MMAC | cycles | estimate | ms | frames a second | against the DPU "
        "| X busy | X waits for, estimated | utilisation | wanted | instructions | emulated "
        "| simulated: cycles; values |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key, row in sorted(rows.items(), key=lambda item: item[0].split("@")[::-1]):
        name, engine = key.split("@")
        wanted = NETWORKS[name][3] if engine.startswith(("e256", "ulx3s")) else None
        if engine == "e512, 4 bits":
            wanted = _FOUR.get(name)
        waits = ", ".join(f"{u} {c:,}" for u, c in row["waits"].items() if c)
        faster = (
            f"{_DPU_MS[name] / row['ms']:.1f} x" if engine == "zu9eg" and name in _DPU_MS else ""
        )
        lines.append(
            f"| {name} | {engine} | {row['macs'] / 1e6:.1f} | {row['exact']:,} "
            f"| {row['cycles']:,} | {row['ms']:.2f} | {1000 / row['ms']:,.1f} | {faster} "
            f"| {row['busy']:,} "
            f"| {waits} | {100 * row['utilisation']:.1f} % | "
            f"{'' if wanted is None else f'{100 * wanted:.0f} %'} | {row['instructions']:,} | "
            f"{_emulated(row)} | {_simulated(row)} |"
        )
    lines += [
        "",
        f"Bitwright {__version__}, numpy {np.__version__}, Python {platform.python_version()}; "
        "cycles do not depend on the machine.",
    ]
    (RESULTS / "engine.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _emulated(row: dict[str, Any]) -> str:
    return f"{row['compared']:,}, {row['differences']} differ" if row["compared"] else "not run"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=[*NETWORKS])
    parser.add_argument("--engine", default="e256", choices=[*SYSTEMS])
    parser.add_argument("--bits", type=int, default=8, choices=[4, 8])
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
        system, bits = SYSTEMS[wanted.engine], wanted.bits
        row = measure(name, system, bits, wanted.emulate, wanted.rtl)
        key = f"{name}@{wanted.engine}" + (f", {bits} bits" if bits != 8 else "")
        old = rows.get(key, {})
        if old.get("exact") == row["exact"]:  # the same program: what was compared stays so
            if "rtl" in old:
                row.setdefault("rtl", old["rtl"])
            if not row["compared"]:
                row |= {k: old[k] for k in ("compared", "differences")}
        rows[key] = row
        print(name, row, flush=True)
        path.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
        write_table(rows)


if __name__ == "__main__":
    main()
