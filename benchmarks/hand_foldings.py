# SPDX-License-Identifier: Apache-2.0
"""The folding search against foldings made by hand, on networks with forks, joins and concats.

    python benchmarks/hand_foldings.py write        the foldings, docs/results/hand_foldings/*.json
    python benchmarks/hand_foldings.py compare [NETWORK ...]

By hand means as FINN's users do it (its `SetFolding`): a number of cycles a frame is chosen, and
each unit gets the fewest lanes that keep it, SIMD before PE, and its memory lies in block RAM where
that saves a hundred LUTs a block. A file that is there may be edited, `compare` takes what it says.
Each is compared with two searches:
the fastest within what the hand's takes (LUT, flip-flops, DSP, block RAM, each), and the smallest
that is as fast. Everything is predicted by the model that the search itself minimises, so this
says whether the search finds the optimum of the model, not whether the model is right. Writes
docs/results/hand_foldings.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from networks import NETWORKS, RESULTS, cifar_images, machine, quantized  # noqa: E402

from bitwright.base.figures import Resources  # noqa: E402
from bitwright.hw import (  # noqa: E402
    FillGoal,
    Folding,
    MapOptions,
    NodeFolding,
    RateGoal,
    analyse,
    graph_resources,
    load_folding,
    map_graph,
    search_folding,
    template,
)
from bitwright.hw.blocks import Block, Fold, blocks_of  # noqa: E402
from bitwright.hw.cost import block_resources  # noqa: E402
from bitwright.ir import Graph  # noqa: E402

FILES = RESULTS / "hand_foldings"
FAMILY = "ecp5"
CLOCK = 100e6
#: Network -> cycles a frame that the hand aims at: divisors of what its largest layers need.
CYCLES = {"resnet20": 147_456, "densenet21": 147_456, "mobilenet": 65_536, "skynet": 2_457_600}


def graph_of(name: str) -> Graph:
    """A network in four bits as an integer graph."""
    if name == "skynet":
        from tests.hw_networks import skynet

        return skynet(requant=True)
    return quantized(NETWORKS[name][0], cifar_images(64), 10)


def by_hand(graph: Graph, cycles: int) -> Folding:
    """Each block with the fewest lanes that keep the interval."""
    hardware = template(graph)
    blocks = blocks_of(hardware)
    chosen = {name: _fewest(block, cycles) for name, block in blocks.items() if block.foldings()}
    for node in hardware:  # a pad makes the border that its window reads
        if node.op == "window" and (maker := _maker(hardware, node.inputs[0])) in chosen:
            if hardware.node(maker).op == "pad":
                chosen[maker] = next(
                    fold
                    for fold in blocks[maker].foldings()
                    if fold.lanes_out == chosen[node.name].lanes_in
                )
    return Folding({name: _with_memory(blocks[name], fold) for name, fold in chosen.items()})


def _with_memory(block: Block, fold: Fold) -> NodeFolding:
    attrs = fold.as_dict()
    if "ram_style" not in block.node.attrs:
        return NodeFolding.from_attrs(attrs)
    styles = ("distributed", "block")
    small, large = (
        block_resources(block.folded(Fold((*fold.attrs, ("ram_style", style)), 1, 1)), FAMILY)
        for style in styles
    )
    saves = large.bram > small.bram and small.lut - large.lut >= 100 * (large.bram - small.bram)
    return NodeFolding.from_attrs({**attrs, "ram_style": styles[saves]})


def _maker(hardware: Graph, edge: str) -> str:
    return next((node.name for node in hardware if edge in node.outputs), "")


def _fewest(block: Block, cycles: int) -> Fold:
    def lanes(fold: Fold) -> tuple[bool, int, int]:
        folded = block.folded(fold)
        interval = max(folded.interval, *(p.beats for p in (*folded.inputs, *folded.outputs)))
        product = int(fold.as_dict().get("pe", 1)) * int(fold.as_dict().get("simd", 1))
        return (interval > cycles, product, int(fold.as_dict().get("pe", 1)))

    return min(block.foldings(), key=lanes)


def taken(graph: Graph, folding: Folding) -> tuple[int, Resources]:
    """Cycles a frame and resources of a folding, mapped."""
    hardware = map_graph(graph, folding, MapOptions(FAMILY))
    return analyse(hardware).interval, graph_resources(hardware, FAMILY)


def compare(name: str) -> dict[str, object]:
    """One row of the table."""
    graph = graph_of(name)
    cycles, budget = taken(graph, load_folding(FILES / f"{name}.json"))
    row: dict[str, object] = {"network": name, "hand": {"cycles": cycles, **budget.to_json()}}
    goals = {"fastest": FillGoal(budget), "smallest": RateGoal(CLOCK / cycles, CLOCK)}
    for word, goal in goals.items():
        start = time.perf_counter()
        found, used = taken(graph, search_folding(graph, goal, family=FAMILY))
        seconds = round(time.perf_counter() - start, 1)
        row[word] = {"cycles": found, **used.to_json(), "seconds": seconds}
        print(name, word, row[word], row["hand"], flush=True)
    return row


def write_table(rows: list[dict[str, object]]) -> None:
    path = RESULTS / "hand_foldings.json"
    old = json.loads(path.read_text())["networks"] if path.is_file() else []
    named = {row["network"] for row in rows}
    rows = sorted(
        [row for row in old if row["network"] not in named] + rows, key=lambda row: row["network"]
    )
    command = "python benchmarks/hand_foldings.py compare"
    table = {"command": command, "machine": machine(), "networks": rows}
    path.write_text(json.dumps(table, indent=1) + "\n")
    lines = []
    for row in rows:
        for word, said in (
            ("hand", "by hand (SetFolding's rule)"),
            ("fastest", "search: fastest within the hand's resources"),
            ("smallest", "search: smallest that is as fast"),
        ):
            r = row[word]
            cells = [row["network"] if word == "hand" else "", said, r["cycles"]]
            cells += [f"{r[key]:.0f}" for key in ("lut", "ff", "dsp", "bram")]
            cells.append(f"{r['seconds']:.1f} s" if "seconds" in r else "")
            lines.append("| " + " | ".join(map(str, cells)) + " |\n")
    text = (
        "# The folding search against foldings by hand\n\nFour-bit networks with forks, joins and "
        f"concats, ECP5; `{command}`. Predicted by the model of the search. The foldings are in "
        f"`docs/results/hand_foldings`. {json.dumps(machine())}\n\n"
        "| network | folding | cycles a frame | LUT | FF | DSP | BRAM | search |\n"
        "|---|---|---|---|---|---|---|---|\n" + "".join(lines)
    )
    (RESULTS / "hand_foldings.md").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("networks", nargs="*", default=[])
    args = parser.parse_args()
    np.random.seed(0)
    for name in args.networks or CYCLES:
        if args.what == "write":
            FILES.mkdir(exist_ok=True)
            by_hand(graph_of(name), CYCLES[name]).save(FILES / f"{name}.json")
        else:
            write_table([compare(name)])


if __name__ == "__main__":
    main()
