# SPDX-License-Identifier: Apache-2.0
"""Training on the programmed engine: cycles of the three products of every layer of a network.

    python benchmarks/engine_training.py [resnet20 alexnet example] [--engine e256] [--batch 64]
        [--emulate N]

Cycles are those of `bitwright.engine.timing`, which tests hold to the RTL instruction by
instruction. Results of forward products and input gradients leave in 8 bits, or (raw) as exact
sums of 32; weight gradients always raw. ``--emulate N`` also runs every product of a batch of N
images in 8 bits through the emulator and compares it with torch's. Writes
docs/results/engine_training.json and engine_training.md; rows that were not named are kept.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bitwright.base.version import __version__
from bitwright.engine import ENGINES, EngineConfig
from bitwright.engine.training.products import multiply, product_cycles
from bitwright.low_precision.costs.counting import count_network
from bitwright.low_precision.costs.network import LayerWork, Network
from bitwright.models.factory import build_model
from bitwright.quantize.spec import Product
from bitwright.sim import MemoryModel

if TYPE_CHECKING:
    from tests.engine_training import Operands

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
#: The memory of `benchmarks/engine.py`: what 16 bits of SDRAM at twice the clock give; and a word a
#: cycle, the most that the engine's port takes.
MEMORIES = {
    "0.45 words a cycle": MemoryModel(latency=20, beats_per_cycle=0.45),
    "a word a cycle": MemoryModel(latency=20),
}
#: Utilisation to reach on E256 with ResNet-20, batch 64.
WANTED = {"forward": 0.80, "grad_input": 0.75, "grad_weight": 0.70}
#: The layer of FPGPT's worked example: 12 582 912 cycles there on 256 elements (forward).
EXAMPLE = LayerWork(
    "3x3, 16 -> 16, 32x32", "conv", (256, 16, 32, 32), (16, 16, 3, 3), (256, 16, 32, 32),
    padding=(1, 1),
)  # fmt: skip
_SHIFT = 8  # any: it changes no cycle


def network_of(name: str, batch: int) -> Network:
    if name == "example":
        return Network(name, 256, (EXAMPLE,), 0)
    return count_network(build_model(name, 10, (32, 32, 3)), (3, 32, 32), batch, name)


def operands(work: LayerWork, seed: int) -> Operands:
    """Drawn operands of 8 bits of each product, and torch's result."""
    sys.path.insert(0, str(ROOT))
    from tests.engine_training import operands as drawn

    return drawn(work, np.random.default_rng(seed), (8, 8))


def by_shape(network: Network) -> list[list[LayerWork]]:
    """Layers of one shape have the same programs."""
    shapes: dict[tuple[object, ...], list[LayerWork]] = {}
    for work in network.layers:
        shapes.setdefault((*work.shape, work.products), []).append(work)
    return list(shapes.values())


def differences(work: LayerWork, config: EngineConfig, images: int) -> tuple[int, int]:
    """Values of the three products in 8 bits by the emulator, and how many are not torch's."""
    one = replace(work, input=(images, *work.input[1:]), output=(images, *work.output[1:]))
    compared = wrong = 0
    for product, (left, right, want) in operands(one, 0).items():
        if product.value in work.products:
            got = multiply(one, product, left, right, config)
            compared += got.size
            wrong += int((got != want).sum())
    return compared, wrong


def measure(name: str, engine: str, batch: int, images: int) -> dict[str, Any]:
    config, network = ENGINES[engine], network_of(name, batch)
    totals: dict[str, Any] = {}
    layers: list[dict[str, Any]] = []
    compared = wrong = 0
    for same in by_shape(network):
        work = same[0]
        row: dict[str, Any] = {"layer": work.layer, "times": len(same)}
        for given in work.products:
            product = Product(given)
            for memory_name, memory in MEMORIES.items():
                for raw in (False, True):
                    if given == "grad_weight" and not raw:
                        continue
                    found = product_cycles(work, product, config, memory, None if raw else _SHIFT)
                    key = f"{given}, {'raw' if raw else '8 bits'}, {memory_name}"
                    row[key] = found
                    total = totals.setdefault(key, {"cycles": 0, "macs": 0})
                    total["cycles"] += found * len(same)
                    total["macs"] += work.product(given).macs * len(same)
        if images:
            more, differ = differences(work, config, images)
            compared, wrong = compared + more, wrong + differ
        layers.append(row)
        print(name, row, flush=True)
    for total in totals.values():
        total["utilisation"] = round(total["macs"] / total["cycles"] / config.products, 4)
    return {
        "engine": engine, "batch": network.batch, "totals": totals, "layers": layers,
        "compared": compared, "differences": wrong, "images": images,
    }  # fmt: skip


def write_table(rows: dict[str, Any]) -> None:
    lines = [
        "# Training on the programmed engine",
        "",
        "By `benchmarks/engine_training.py`. One training step of a batch: all forward products, "
        "input gradients and weight gradients of a network's layers in 8 bits, as programs of the "
        "engine's existing instructions. Cycles by `bitwright.engine.timing`, which tests hold to "
        "the RTL. Results: exact sums of 32 bits (raw), or rounded to 8 bits on their way out; "
        "raw ones wait for the features' port, which gives a STORE a word every other cycle. "
        "Utilisation: multiply-accumulates, none of a zero that a stride puts in, by what the "
        "array could do in that time. Memory: latency of 20. Compared: values of the three "
        "products of smaller batches by the emulator beside torch's, and how many differ.",
        "",
        "| network | engine | batch | product | results | memory | MMAC | cycles | utilisation "
        "| wanted | compared |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key, row in sorted(rows.items()):
        name = key.split("@")[0]
        for case, total in row["totals"].items():
            product, results, memory = case.split(", ")
            wanted = WANTED[product] if name == "resnet20" and row["engine"] == "e256" else None
            compared = f"{row['compared']:,} (batch {row['images']}), {row['differences']} differ"
            lines.append(
                f"| {name} | {row['engine']} | {row['batch']} | {product} | {results} | {memory} "
                f"| {total['macs'] / 1e6:,.1f} | {total['cycles']:,} "
                f"| {100 * total['utilisation']:.1f} % "
                f"| {'' if wanted is None else f'{100 * wanted:.0f} %'} "
                f"| {compared if row['images'] else 'not run'} |"
            )
    lines += [
        "",
        "`example` is the layer of FPGPT's worked example (3 x 3, 16 -> 16 channels, 32 x 32, "
        "batch 256): 12 582 912 cycles forward and 8 520 704 for the weight gradient there, on 256 "
        "and 72 elements; at most 2.6 million were wanted here.",
        "",
        f"Bitwright {__version__}, numpy {np.__version__}, torch {torch.__version__}, Python "
        f"{platform.python_version()}; cycles do not depend on the machine.",
    ]
    (RESULTS / "engine_training.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=["example", "resnet20", "alexnet"])
    parser.add_argument("--engine", default="e256", choices=[*ENGINES])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--emulate", type=int, default=0, metavar="N")
    wanted = parser.parse_args()
    path = RESULTS / "engine_training.json"
    rows = json.loads(path.read_text()) if path.is_file() else {}
    for name in wanted.networks:
        rows[f"{name}@{wanted.engine}"] = measure(name, wanted.engine, wanted.batch, wanted.emulate)
        path.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
        write_table(rows)


if __name__ == "__main__":
    main()
