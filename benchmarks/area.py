# SPDX-License-Identifier: Apache-2.0
"""LUTs, registers and DSP blocks of the multiply-accumulate array beside FINN's, and of designs.

    python benchmarks/area.py core
    python benchmarks/area.py designs digits mnist-cnn-w4a4 [--label before]

`core` synthesises `mac_array` for UltraScale+ at the sizes of FINN's RTL unit (mvu_vvu_axi; its
figures are those of issue reports, by the same Yosys). `designs` synthesises a recipe's network,
before training, at the folding in docs/results/area/NAME.json: as it is, and once more with its
multiplications in DSP blocks, as many as the target has. Run with `--label before` and PYTHONPATH
on another commit's src for the rows to compare with. Writes docs/results/area.json and area.md;
other rows are kept.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from one_module import write_module

from bitwright.base.progress import no_progress
from bitwright.build.target import Target, load_target
from bitwright.build.yosys import synthesise
from bitwright.hw import map_graph
from bitwright.hw.blocks import blocks_of
from bitwright.hw.dataflow import analyse
from bitwright.hw.folding import Folding, load_folding
from bitwright.hw.mapping import MapOptions
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.pipeline.steps.preflight import untrained_graph
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.rtl.emit import emit

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
FOLDINGS = RESULTS / "area"
_TIMEOUT = 5400.0


@dataclass(frozen=True)
class Core:
    """A size of the array, FINN's figures there, and how many rows of ours use DSP blocks how."""

    bits: int
    size: int
    finn_lut: int
    finn_dsp: int
    finn_ff: int | None
    parameters: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"{self.bits} bit, {self.size} x {self.size}"


CORES = (
    Core(4, 4, 494, 4, None, {"DspRows": 2, "DspPack": 2, "Step": 2}),
    Core(4, 8, 2405, 16, 573, {"DspRows": 4, "DspPack": 2, "Step": 2}),
    Core(8, 4, 584, 8, None, {"DspRows": 4, "DspShare": 1, "Step": 3}),
    Core(8, 8, 3832, 32, 597, {"DspRows": 8, "DspShare": 1, "Step": 4}),
)


def measure_core(core: Core) -> dict[str, Any]:
    """One size of the array, synthesised."""
    acc = 16 if core.bits == 4 else 24
    shape = {"PE": core.size, "SIMD": core.size, "WeightWidth": core.bits, "ActWidth": core.bits}
    parameters = {**shape, "AccWidth": acc, **core.parameters}
    with tempfile.TemporaryDirectory() as folder:
        _write_core(Path(folder, "rtl"), parameters)
        target = load_target("xczu9eg")
        made = synthesise(Path(folder, "rtl"), target, Path(folder, "out"), timeout=_TIMEOUT)
    used = made.resources
    return {
        "core": core.name, "lut": used.lut, "ff": used.ff, "dsp": used.dsp,
        "finn_lut": core.finn_lut, "finn_dsp": core.finn_dsp, "finn_ff": core.finn_ff,
        "parameters": dict(core.parameters), "tool": made.tool, "date": date.today().isoformat(),
    }  # fmt: skip


def _write_core(folder: Path, parameters: Mapping[str, int]) -> None:
    """A design folder whose top is one array."""
    lanes, bits = parameters["SIMD"], parameters["ActWidth"]
    inputs = {
        "step_i": 1, "first_i": 1, "last_i": 1, "out_ready_i": 1, "acts_i": lanes * bits,
        "weights_i": parameters["PE"] * lanes * parameters["WeightWidth"],
    }  # fmt: skip
    outputs = {"en_o": 1, "out_valid_o": 1, "out_data_o": parameters["PE"] * parameters["AccWidth"]}
    write_module(folder, "mac_array", parameters, inputs, outputs)


def with_dsps(folding: Folding, network: Any, target: Target) -> Folding:
    """The folding with the multiplications of its units in DSP blocks while there are some left.

    The unit with most products first; of one that does not fit as many rows as do.
    """
    left, nodes = target.capacity.dsp, dict(folding.nodes)
    blocks = blocks_of(map_graph(network, folding, MapOptions(target.family)))
    units = [b for b in blocks.values() if b.node.op in ("matvec", "depthwise")]
    products = {b.name: b.pe * (b.integer("simd") if "simd" in b.node.attrs else 1) for b in units}
    for block in sorted(units, key=lambda unit: -products[unit.name]):
        for rows in range(block.pe, 0, -1):
            chosen = block.node.attrs | {"res_type": "dsp", "dsp_pe": rows}
            there = replace(block, node=replace(block.node, attrs=chosen))
            need = there.memory_cost(target.family).dsp
            if 0 < need <= left:
                left -= need
                own = nodes.get(block.name)
                assert own is not None
                nodes[block.name] = replace(own, res_type="dsp", dsp_pe=rows)
                break
    return replace(folding, nodes=nodes)


def measure_design(name: str, label: str) -> list[dict[str, Any]]:
    """A recipe's network at its committed folding, in LUTs and, but for `before`, in DSPs too."""
    recipe = load_recipe(name)
    target = load_target(recipe.hardware.target)
    network = untrained_graph(Workspace(recipe, no_progress))
    folding = load_folding(FOLDINGS / f"{name}.json")
    kinds = {label: folding}
    if label == "now":
        kinds["now, DSPs"] = with_dsps(folding, network, target)
    rows = []
    for kind, chosen in kinds.items():
        hardware = map_graph(network, chosen, MapOptions(target.family))
        with tempfile.TemporaryDirectory() as folder:
            emit(hardware, Path(folder, "rtl"))
            made = synthesise(Path(folder, "rtl"), target, Path(folder, "out"), timeout=_TIMEOUT)
        used = made.resources
        rows.append({
            "design": name, "label": kind, "target": target.name,
            "cycles": analyse(hardware).interval, "lut": used.lut, "ff": used.ff, "dsp": used.dsp,
            "bram": used.bram, "tool": made.tool, "date": date.today().isoformat(),
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The page."""
    lines = [
        "# Area: the array and whole designs", "",
        "The multiply-accumulate array (`mac_array`: operand registers, products, trees, "
        "accumulators, output register) for UltraScale+ by Yosys, beside FINN's RTL unit by the "
        "same Yosys, at its number of DSP blocks. Registers behind a product count as the DSP "
        "block's, where Vivado and FINN have them (`build/dsp_registers.py`). Registers stand "
        "behind every Step-th adder.", "",
        "| size | FINN LUT + DSP | ours | FINN FF | ours | parameters |",
        "|---|---:|---:|---:|---:|---|",
    ]  # fmt: skip
    for row in (r for r in rows if "core" in r):
        ff = "-" if row["finn_ff"] is None else f"{row['finn_ff']}"
        how = ", ".join(f"{k} {v}" for k, v in row["parameters"].items())
        lines.append(
            f"| {row['core']} | {row['finn_lut']:,} + {row['finn_dsp']} | {row['lut']:,.0f} + "
            f"{row['dsp']:.0f} | {ff} | {row['ff']:,.0f} | {how} |"
        )
    lines += [
        "", "Whole designs on ECP5 at the foldings in `docs/results/area`, weights before "
        "training, packed LUTs, without the serial shell. *Before* is commit 7552660.", "",
        "| design | target | | cycles a frame | LUT | to before | FF | DSP | block RAM |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    designs = [row for row in rows if "design" in row]
    first = {row["design"]: row["lut"] for row in designs if row["label"] == "before"}
    for row in sorted(designs, key=lambda r: (r["design"], r["label"])):
        base = first.get(row["design"])
        share = "-" if base is None else f"{row['lut'] / base - 1:+.1%}"
        lines.append(
            f"| {row['design']} | {row['target']} | {row['label']} | {row['cycles']:,} | "
            f"{row['lut']:,.0f} | {share} | {row['ff']:,.0f} | {row['dsp']:.0f} | "
            f"{row['bram']:.0f} |"
        )
    tools = ", ".join(sorted({row["tool"] for row in rows}))
    commands = "`python benchmarks/area.py core`, `python benchmarks/area.py designs NAME`"
    return "\n".join([*lines, "", f"{commands}. On {cpu_name()}, {tools}.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("core", "designs"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--label", default="now")
    given = parser.parse_args()
    path = RESULTS / "area.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.is_file() else []
    if given.what == "core":
        made = [measure_core(core) for core in CORES]
    else:
        made = [row for name in given.names for row in measure_design(name, given.label)]
    keys = [(row.get("core"), row.get("design"), row.get("label")) for row in made]
    kept = [r for r in rows if (r.get("core"), r.get("design"), r.get("label")) not in keys]
    rows = sorted([*kept, *made], key=lambda r: (r.get("core", ""), r.get("design", "")))
    path.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    (RESULTS / "area.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
