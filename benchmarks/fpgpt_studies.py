# SPDX-License-Identifier: Apache-2.0
"""FPGPT's studies (Vink 2023, chapter 5) by its models, on networks of the zoo.

    python benchmarks/fpgpt_studies.py [hours ours penalty ideal spread errors blocks]

``hours``: hours an epoch on ImageNet and GOPS, with the multipliers of one die of a U250 and of the
whole card; ``ours``: our engine beside it; ``penalty``: kernels against the accepted penalty,
GoogLeNet; ``ideal``: boards of the future, AlexNet; ``spread``: all kernels of one convolution;
``errors``: model beside simulator, ResNet-20; ``blocks``: memory blocks by the model beside those
that Yosys takes for the same memories, and kernels within a few of them. Writes
docs/results/fpgpt.json and fpgpt.md; parts that were not named are kept.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from one_module import write_module

from bitwright.base.version import __version__
from bitwright.build.target import load_target
from bitwright.build.yosys import synthesise
from bitwright.engine import ENGINES
from bitwright.engine.config import Constants
from bitwright.engine.estimate import timeline
from bitwright.engine.training import training_programs
from bitwright.low_precision.costs.counting import count_network
from bitwright.models.factory import build_model
from bitwright.papers.fpga_training.devices import Board, load_board
from bitwright.papers.fpga_training.fpgpt import studies
from bitwright.papers.fpga_training.fpgpt.kernel import FLOAT32, Kernel, fixed_point, kernel_for
from bitwright.papers.fpga_training.jobs import ConvolutionJob, convolution_jobs
from bitwright.quantize.spec import Product

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
IMAGES, BATCH = 1_200_000, 256
#: Hours an epoch that the document prints (table 5.6).
PRINTED = {"alexnet": 38.0, "googlenet": 212.42, "squeezenet": 143.35}
BYTES = fixed_point(8)
LIMITS = (0.0, 0.05, 0.2)
FEW_BLOCKS = 300  # of 1 344: the document's example


def jobs_of(name: str, side: int = 224, batch: int = BATCH) -> list[ConvolutionJob]:
    classes = 1000 if side == 224 else 10
    model = build_model(name, classes, (side, side, 3))
    return list(convolution_jobs(count_network(model, (3, side, side), batch, name)))


def boards() -> dict[str, Board]:
    die = load_board("u250")
    return {"one die": die, "the card": die.model_copy(update={"slrs": 1})}


def hours() -> list[dict[str, Any]]:
    rows = []
    for network, printed in PRINTED.items():
        jobs = jobs_of(f"{network}_imagenet")
        for place, board in boards().items():
            found = studies.throughput(jobs, board, FLOAT32)
            row = {
                "network": network, "on": place, "printed hours": printed,
                "hours": round(found.hours(IMAGES, BATCH), 1), "peak GOPS": round(found.peak, 1),
                "conv GOPS": round(found.mean, 2), "host im2col GOPS": round(found.with_host, 2),
                "peak GOPS/W": round(found.peak_per_watt, 2),
                "peak GOPS/DSP": round(found.peak_per_dsp, 4),
            }  # fmt: skip
            print(row, flush=True)
            rows.append(row)
    return rows


def ours() -> list[dict[str, Any]]:
    """The programmed engine beside FPGPT in 8 bits, each on one die at 100 MHz."""
    config = replace(ENGINES["e2048"], constants=Constants(bytes_per_cycle=20.0))
    images, rows = 8, []
    for network, printed in PRINTED.items():
        model = build_model(f"{network}_imagenet", 1000, (224, 224, 3))
        layers = count_network(model, (3, 224, 224), images, network).layers
        known: dict[tuple[object, ...], int] = {}
        cycles = macs = 0
        for work in (layer for layer in layers if layer.kind == "conv"):
            for name in work.products:
                key = (work.shape, name)
                if key not in known:
                    shift = None if name == "grad_weight" else 8
                    parts = training_programs(work, Product(name), config, shift)
                    known[key] = sum(timeline(p.program.program, config).cycles for p in parts)
                cycles, macs = cycles + known[key], macs + work.product(name).macs
        theirs = studies.throughput(jobs_of(f"{network}_imagenet"), boards()["one die"], BYTES)
        row = {
            "network": network, "printed hours, float32": printed,
            "FPGPT, 8 bits, hours": round(theirs.hours(IMAGES, BATCH), 1),
            "our engine, 8 bits, hours": round(cycles / images * IMAGES / 1e8 / 3600, 1),
            "our utilisation %": round(100 * macs / cycles / config.products, 1),
        }  # fmt: skip
        print(row, flush=True)
        rows.append(row)
    return rows


def penalty() -> list[dict[str, Any]]:
    jobs, rows = jobs_of("googlenet_imagenet"), []
    for place, board in boards().items():
        for limit in LIMITS:
            start = time.process_time()
            (found,) = studies.penalties(jobs, board, FLOAT32, [limit])
            row = {
                "on": place, "convolutions": len(jobs), "accepted %": round(100 * limit, 1),
                "kernels": found.kernels, "cycles": found.cycles,
                "lost %": round(100 * found.penalty, 2),
                "processor seconds": round(time.process_time() - start, 1),
            }  # fmt: skip
            print(row, flush=True)
            rows.append(row)
    return rows


def ideal() -> list[dict[str, Any]]:
    jobs, die = jobs_of("alexnet_imagenet"), load_board("u250")
    single = studies.ideal_boards(jobs, die, FLOAT32, [1], [2, 4, 8], [1])
    single += studies.ideal_boards(jobs, die, FLOAT32, [1], [1], [2, 4, 8])
    points = studies.ideal_boards(jobs, die, FLOAT32, [1, 2, 4], [1, 4], [1, 4])
    points += [p for p in single if p not in points]
    best = studies.pareto(points)
    return [
        {"bandwidth x": p.bandwidth, "DSP x": p.dsp, "memory x": p.memory,
         "conv GOPS": round(p.gops, 1), "Pareto": "yes" if p in best else ""}
        for p in sorted(points, key=lambda p: p.gops)
    ]  # fmt: skip


def spread() -> list[dict[str, Any]]:
    rows = []
    for job in jobs_of("googlenet_imagenet"):
        if "5.one.0" in job.layer or job.layer.endswith("three.1.0"):
            for place, board in boards().items():
                found = studies.latencies(job, board, FLOAT32)
                top = found.best(50)
                rows.append(
                    {"layer": job.layer, "product": job.product.value, "on": place,
                     "kernels": len(found.cycles), "fastest": int(found.cycles[0]),
                     "slowest": int(found.cycles[-1]),
                     "elements of the 50 fastest": f"{top.elements.min()} to {top.elements.max()}"}
                )  # fmt: skip
            if len(rows) >= 6:
                break
    return rows


def small_kernels() -> tuple[list[ConvolutionJob], list[Kernel]]:
    """As the document's validation: few small kernels for all convolutions."""
    rng = np.random.default_rng(0)
    jobs = jobs_of("resnet20", 32, 16)
    return jobs, [
        kernel_for(job, *(int(n) for n in rng.integers(1, 12, 2)), FLOAT32, 512) for job in jobs
    ]


@cache
def yosys_blocks(words: int, bits: int) -> int:
    """Blocks of 18 Kbit of an UltraScale+ for a memory with a port to write and one to read."""
    depth = max(1, (words - 1).bit_length())
    inputs = {"wr_en_i": 1, "wr_addr_i": depth, "wr_data_i": bits, "rd_en_i": 1, "rd_addr_i": depth}
    parameters = {"Width": bits, "Depth": words, "Style": 1}
    with tempfile.TemporaryDirectory() as folder:
        rtl = Path(folder, "rtl")
        write_module(rtl, "mem_ram", parameters, inputs, {"rd_data_o": bits})
        made = synthesise(rtl, load_target("xczu9eg"), Path(folder, "out"), timeout=600.0)
    return round(made.resources.bram)


def blocks() -> list[dict[str, Any]]:
    jobs, kernels = small_kernels()
    die = load_board("u250")
    errors = studies.memory_errors(kernels, die.bram, yosys_blocks)
    shares = [studies.within_blocks(job, die, FLOAT32, FEW_BLOCKS) for job in jobs]
    return [
        {"memory": name, "kernels": len(found.values), "mean %": round(100 * found.mean, 2),
         "deviation %": round(100 * found.deviation, 2), "largest %": round(100 * found.largest, 2),
         "smallest %": round(100 * found.smallest, 2),
         f"kernels within {FEW_BLOCKS} blocks, of those that fit a die": f"{min(shares):.0%} to "
         f"{max(shares):.0%}, mean {np.mean(shares):.0%}"}
        for name, found in errors.items()
    ]  # fmt: skip


def errors() -> list[dict[str, Any]]:
    jobs, kernels = small_kernels()
    return [
        {"product": name, "convolutions": len(found.values), "mean %": round(100 * found.mean, 2),
         "deviation %": round(100 * found.deviation, 2), "largest %": round(100 * found.largest, 2),
         "smallest %": round(100 * found.smallest, 3),
         "histogram": " ".join(map(str, found.histogram(8)[0]))}
        for name, found in studies.model_errors(jobs, kernels).items()
    ]  # fmt: skip


PARTS = {
    "hours": ("Hours an epoch (1.2 M images, batch 256, convolutions alone) and GOPS", hours),
    "ours": (
        "Our engine (e2048: 2 048 products a cycle; a memory of a word a cycle; results in 8 bits; "
        "estimated cycles, batches of 8) beside FPGPT's 1 024 elements of 8 bits",
        ours,
    ),
    "penalty": ("Kernels against the accepted penalty, GoogLeNet", penalty),
    "ideal": ("Boards of the future, AlexNet, from one die", ideal),
    "spread": ("All kernels of a convolution of GoogLeNet that fit", spread),
    "errors": (
        "The model's cycles beside the simulator's, ResNet-20, kernels up to 11 x 11",
        errors,
    ),
    "blocks": (
        "Memory blocks of 18 Kbit by the model beside those that Yosys takes (UltraScale+), the "
        "same kernels. Of INP the model counts ports, too: Z words a cycle, which one memory of "
        "two ports does not give",
        blocks,
    ),
}


def write(rows: dict[str, Any]) -> None:
    lines = [
        "# FPGPT by its models", "",
        "By `benchmarks/fpgpt_studies.py`: the studies of Vink 2023, chapter 5, float32, 100 MHz, "
        "each convolution on its best kernel unless kernels are shared. Two operations a "
        "multiply-accumulate. Host im2col: windows laid out by the host at 10^9 words a second, an "
        "assumption. 30 W.", "",
    ]  # fmt: skip
    for part, (title, _) in PARTS.items():
        if part not in rows:
            continue
        names = [*rows[part][0]]
        lines += [f"## {title}", "", f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
        lines += [f"| {' | '.join(_text(row[name]) for name in names)} |" for row in rows[part]]
        lines.append("")
    lines.append(
        f"Bitwright {__version__}, numpy {np.__version__}, Python {platform.python_version()}; all "
        "but processor seconds do not depend on the machine."
    )
    (RESULTS / "fpgpt.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=[*PARTS])
    path = RESULTS / "fpgpt.json"
    rows = json.loads(path.read_text()) if path.is_file() else {}
    for part in parser.parse_args().parts:
        rows[part] = PARTS[part][1]()
        path.write_text(json.dumps(rows, indent=1) + "\n")
        write(rows)


if __name__ == "__main__":
    main()
