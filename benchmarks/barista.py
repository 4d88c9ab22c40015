# SPDX-License-Identifier: Apache-2.0
"""Barista's kernels (Vink 2023, chapter 4) by its model, beside what is printed.

    python benchmarks/barista.py

ResNet-20: the one kernel with which a training step takes least time. AlexNet, forward: of each
layer the best kernel, and operations a joule on the printed one (table 4.1); where each layer runs
best, with the printed figures of the CPU. Card memory at 30 GByte/s, and at the 30 Gbit/s that are
printed. Writes docs/results/barista.json and barista.md.
"""

from __future__ import annotations

from typing import Any

from results import command, keep, machine, table

from bitwright.low_precision.costs.counting import count_network
from bitwright.models.factory import build_model
from bitwright.papers.fpga_training.barista.model import FLOAT32, Tiles
from bitwright.papers.fpga_training.barista.search import (
    best_kernel,
    best_of_layers,
    on_kernel,
    place_layers,
)
from bitwright.papers.fpga_training.devices import load_board
from bitwright.papers.fpga_training.jobs import MatrixJob, matrix_jobs
from bitwright.quantize.spec import Product

BATCH, PRINTED_BITS = 128, 30e9
#: Table 4.1: kernel and GOPS/W of each layer of AlexNet on the FPGA, and GOPS/W of the CPU.
PRINTED = {
    "conv1": ((32, 32, 74), 0.59, 0.35), "conv2": ((32, 32, 64), 0.29, 0.24),
    "conv3": ((36, 36, 64), 0.078, 0.089), "conv4": ((32, 32, 64), 0.076, 0.13),
    "conv5": ((32, 32, 64), 0.073, 0.11),
}  # fmt: skip


def jobs_of(name: str) -> list[MatrixJob]:
    network = count_network(build_model(name, 10, (32, 32, 3)), (3, 32, 32), batch=BATCH)
    return list(matrix_jobs(network))


def measured() -> dict[str, Any]:
    board = load_board("xcvu9p")
    slow = board.model_copy(update={"bits_per_second": PRINTED_BITS})
    step = jobs_of("resnet20")
    rows = [
        {"of": "ResNet-20, a step", "card memory": memory, "printed kernel": "<36,36,72>",
         "best kernel": str(found.tiles), "printed GOPS/W": 0.33,
         "GOPS/W": round(found.gops_per_watt, 3)}
        for memory, place in (("30 GByte/s", board), ("30 Gbit/s", slow))
        for found in [best_kernel(step, place, FLOAT32)]
    ]  # fmt: skip
    forward = [job for job in jobs_of("alexnet") if job.product is Product.FORWARD]
    best = best_of_layers(forward, board, FLOAT32)
    cpus = {layer: cpu for layer, (_, _, cpu) in PRINTED.items()}
    places = {one.layer: one.place for one in place_layers(best, cpus.__getitem__)}
    layers = []
    for layer, (kernel, gops, cpu) in PRINTED.items():
        own = on_kernel([j for j in forward if j.layer == layer], Tiles(*kernel), board, FLOAT32)
        layers.append(
            {"layer": layer, "printed kernel": str(own.tiles),
             "best kernel": str(best[layer].tiles),
             "printed GOPS/W": gops, "GOPS/W on the printed kernel": round(own.gops_per_watt, 4),
             "difference %": round(100 * (own.gops_per_watt / gops - 1), 1),
             "CPU, printed": cpu, "runs on": places[layer]}
        )  # fmt: skip
    return {"step": rows, "layers": layers}


def page(found: dict[str, Any]) -> str:
    lines = [
        "# Barista's kernels", "",
        f"By `benchmarks/barista.py`: float32, V = 5 multiplier blocks an element, XCVU9P, batch "
        f"{BATCH}, images of 32 x 32. Printed: Vink 2023, chapter 4.", "",
    ]  # fmt: skip
    for rows in (found["step"], found["layers"]):
        lines += [*table([*rows[0]], [[*map(str, row.values())] for row in rows]), ""]
    return (
        "\n".join([*lines, f"`{found['command']}`; {found['machine']}. No figure is timed."]) + "\n"
    )


if __name__ == "__main__":
    keep("barista", measured() | {"command": command(), "machine": machine("numpy")}, page)
