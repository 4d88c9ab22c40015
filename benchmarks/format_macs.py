# SPDX-License-Identifier: Apache-2.0
"""LUTs, registers and multipliers of one multiply-accumulate of every pair of formats.

    python benchmarks/format_macs.py measure
    python benchmarks/format_macs.py report

`measure` synthesises the multiply-accumulate element of our own library (`matvec_lane` with one
lane: decoding, product, accumulator and their registers, without the weight memory) for ECP5 with
Yosys, for every pair of formats below, and writes src/bitwright/hw/macs/json, docs/results/
format_macs.json and .md; `report` writes the last again. The accumulator holds 256 products of the
largest levels exactly. Products of 8 bits and more are measured twice: in look-up tables, and with
a hardware multiplier.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.tools.finder import require, run_tool
from bitwright.build.energy_formats import mac_energy
from bitwright.build.resources import count_resources
from bitwright.formats import CodebookFormat, Format, parse_format
from bitwright.hw.macs import FAMILY, mac_format
from bitwright.hw.operands import Product, stream_operand, weight_operand
from bitwright.ir import TensorType
from bitwright.rtl import LIBRARY, needed_modules

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "src" / "bitwright" / "hw" / "macs.json"
RESULTS = ROOT / "docs" / "results" / "format_macs.json"
PAGE = RESULTS.with_suffix(".md")
TERMS = 256  # products that the accumulator holds
_TIMEOUT = 3000.0

WEIGHTS = (
    "bipolar", "int2", "int3", "int4", "int5", "int6", "int8",
    *(f"po2_{bits}{zero}" for bits in (3, 4, 5, 6) for zero in ("", "<zero>")),
    "cb4:int8n", "cb16:int8n", "cb16", "cb32", "cb64", "cb128", "cb256", "cb16:e4m3",
    "e2m1", "e3m0", "e2m3", "e3m2", "e4m3", "e4m3<finite,flush>", "e5m2",
)  # fmt: skip
ACTIVATIONS = ("uint4", "int8", "uint8", "e4m3")
WITH_MULTIPLIERS = ("int8", "uint8", "int16", "e4m3")
ALONE = (
    *((name, name) for name in ("e2m1", "e3m0", "e2m3", "e3m2", "e4m3<finite,flush>", "e5m2")),
    *((f"int{bits}", act) for bits in (2, 3, 4, 6) for act in (f"int{bits}", f"uint{bits}")),
    ("bipolar", "bipolar"), ("int2", "bipolar"), ("int16", "int16"), ("int8", "int16"),
    ("e4m3", "e5m2"), ("e2m1", "e4m3<finite,flush>"),
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Weight and activation format, and where the product is made."""

    weight: str
    activation: str
    dsp: bool = False

    @property
    def key(self) -> str:
        """As `hw.mac_cost` looks it up."""
        weight = mac_format(parse_format(self.weight), weight=True)
        return f"{weight} {mac_format(parse_format(self.activation))}"

    def product(self) -> Product:
        kind = parse_format(self.activation)
        act = TensorType((1,), kind, (1.0,), kind.min_level, kind.max_level)
        weight = _fitted(parse_format(self.weight))
        return Product(
            stream_operand(act, "x"), weight_operand(weight, weight.grid(), "w"), self.dsp
        )

    def accumulator_bits(self) -> int:
        act, weight = parse_format(self.activation), _fitted(parse_format(self.weight))
        largest = max(-act.min_level, act.max_level) * max(-weight.min_level, weight.max_level)
        return (largest * TERMS).bit_length() + 1


def _fitted(kind: Format) -> Format:
    """A codebook with a random table; other formats as they are."""
    if not isinstance(kind, CodebookFormat):
        return kind
    grid, rng = kind.centroid.grid(), np.random.default_rng(0)
    levels = np.sort(rng.choice(grid, min(kind.size, len(grid)), replace=False))
    return CodebookFormat(kind.size, kind.centroid, tuple(int(level) for level in levels))


def pairs() -> Iterator[Pair]:
    """All pairs, in a fixed order."""
    chosen = [(w, a) for w in WEIGHTS for a in ACTIVATIONS] + list(ALONE)
    for weight, activation in dict.fromkeys(chosen):
        plain = Pair(weight, activation)
        yield plain
        if activation in WITH_MULTIPLIERS and not plain.product().one_bit:
            yield Pair(weight, activation, dsp=True)


def _module(number: int, pair: Pair) -> tuple[str, str]:
    """Text of the wrapper of one element, and its ports as the top's."""
    product, acc = pair.product(), pair.accumulator_bits()
    parameters: dict[str, int | str] = {**product.parameters(), "UseDsp": int(product.dsp)}
    if product.weight.index:
        parameters["TableFile"] = f'"t{number}.mem"'
    given = ", ".join(f".{name}({value})" for name, value in parameters.items())
    ports = (
        f"input logic [{product.act.word - 1}:0] a, input logic [{product.weight.word - 1}:0] w, "
        f"output logic [{acc - 1}:0] q"
    )
    body = (
        f"(* keep_hierarchy *)\nmodule mac{number} (input logic clk, input logic valid, "
        f"input logic first, {ports});\n"
        f"  matvec_lane #(.SIMD(1), .AccWidth({acc}), .InitWidth(1), {given}) i_lane (\n"
        "    .clk_i(clk), .rst_ni(1'b1), .en_i(1'b1), .acts_i(a), .weights_i(w), .valid_i(valid),\n"
        "    .first_i(first), .last_i(1'b0), .init_i(1'b0), .acc_o(q));\nendmodule\n"
    )
    widths = (product.act.word, product.weight.word, acc)
    own = ", ".join(
        f"{way} logic [{width - 1}:0] {name}{number}"
        for way, width, name in zip(("input", "input", "output"), widths, "awq", strict=True)
    )
    return body, own


def write_design(chosen: list[Pair], folder: Path) -> list[str]:
    """Sources and tables; the files to read, the top (`macs`) last."""
    (folder / "lib").mkdir()
    sources = [f"lib/{name}.sv" for name in needed_modules({"matvec_lane"})]
    for name in sources:
        shutil.copy(LIBRARY / Path(name).name, folder / name)
    modules, ports, instances = [], ["input logic clk, input logic valid, input logic first"], []
    for number, pair in enumerate(chosen):
        body, own = _module(number, pair)
        modules.append(body)
        ports.append(own)
        links = ", ".join(f".{name}({name}{number})" for name in "awq")
        instances.append(f"  mac{number} i_mac{number} (.clk, .valid, .first, {links});\n")
        for memory in pair.product().weight.memories(f"t{number}").values():
            (folder / f"t{number}.mem").write_text(memory.text)
    top = f"module macs ({', '.join(ports)});\n{''.join(instances)}endmodule\n"
    (folder / "macs.sv").write_text("".join(modules) + top)
    return [*sources, "macs.sv"]


def synthesise(chosen: list[Pair]) -> tuple[str, list[dict[str, float]]]:
    """(tool, resources of every pair) from one run of Yosys."""
    tool = require("yosys")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_design(chosen, folder)
        script = [f"read_verilog -sv -defer {file}" for file in files]
        script += ["synth_ecp5 -top macs", "check -assert", "tee -q -o stat.json stat -json"]
        (folder / "all.ys").write_text("\n".join(script) + "\n")
        run_tool(tool, ["-s", "all.ys"], cwd=folder, log=folder / "log", timeout=_TIMEOUT)
        modules = json.loads((folder / "stat.json").read_text())["modules"]
    cells = [modules[f"\\mac{number}"]["num_cells_by_type"] for number in range(len(chosen))]
    return tool.identity, [count_resources(FAMILY, each).to_json() for each in cells]


def measure() -> None:
    """Synthesise all pairs and write the tables."""
    chosen = list(pairs())
    tool, counted = synthesise(chosen)
    found: dict[str, Any] = {}
    for pair, cost in zip(chosen, counted, strict=True):
        entry = found.setdefault(pair.key, {"accumulator_bits": pair.accumulator_bits()})
        entry["multiplier" if pair.dsp else "logic"] = cost
    table = {
        "family": FAMILY,
        "tool": tool,
        "date": datetime.date.today().isoformat(),
        "command": "python benchmarks/format_macs.py measure",
        "element": f"matvec_lane, one lane, accumulator for {TERMS} products",
        "pairs": found,
    }
    text = json.dumps(table, indent=1) + "\n"
    SHIPPED.write_text(text)
    RESULTS.write_text(text)
    report()


def report() -> None:
    """The page, from the measurements."""
    table = json.loads(RESULTS.read_text())
    lines = [
        "# One multiply-accumulate of every format",
        "",
        f"Source: synthesis ({table['tool']}, ECP5, {table['date']}) of our own element "
        f"({table['element']}); `{table['command']}`. LUTs are LUT4, a carry cell counts as two. "
        "The last columns put the product into a hardware multiplier (MULT18X18D). Energy is a "
        "model: see `bitwright.build.energy_formats`.",
        "",
        "| weight | activation | accumulator | LUT | registers | LUT with multiplier | multipliers "
        "| energy (model, 45 nm) |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for key, entry in table["pairs"].items():
        weight, activation = key.split(" ")
        logic, dsp = entry["logic"], entry.get("multiplier")
        beside = ("-", "-") if dsp is None else (f"{dsp['lut']:g}", f"{dsp['dsp']:g}")
        energy = mac_energy(weight, activation)
        words = "-" if energy is None else f"{energy.value:.3f} {energy.unit}"
        lines.append(
            f"| `{weight}` | `{activation}` | {entry['accumulator_bits']} | {logic['lut']:g} "
            f"| {logic['ff']:g} | {beside[0]} | {beside[1]} | {words} |"
        )
    PAGE.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("verb", choices=("measure", "report"))
    {"measure": measure, "report": report}[parser.parse_args().verb]()


if __name__ == "__main__":
    main()
