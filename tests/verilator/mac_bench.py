# SPDX-License-Identifier: Apache-2.0
"""A bench of many multiply elements side by side, fed with all pairs of codes."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bitwright.base.errors import FormatError
from bitwright.formats import Format, parse_format
from bitwright.hw.operands import Product, stream_operand, weight_operand
from bitwright.ir import TensorType
from bitwright.rtl import LIBRARY, needed_modules

_LANE_BITS = 63
_PLANE_BITS = 48  # of a product that no lane holds


@dataclass(frozen=True)
class Element:
    """One pair of formats: names, and how many pairs of words there are."""

    weight: str
    act: str
    dsp: bool = False

    @property
    def weight_format(self) -> Format:
        return parse_format(self.weight)

    @property
    def act_format(self) -> Format:
        return parse_format(self.act)

    @property
    def product(self) -> Product:
        kind, grid = self.act_format, self.weight_format.grid()
        tensor = TensorType((1,), kind, (1.0,), kind.min_level, kind.max_level)
        return Product(
            stream_operand(tensor, "act"), weight_operand(self.weight_format, grid, "w"), self.dsp
        )

    @property
    def lanes(self) -> tuple[int, int]:
        """(lanes, bits of a lane) that hold the product, the lower bits first."""
        product = self.product
        bits = product.act.extended + product.weight.width
        bits = product.term_bits if product.is_float else bits
        return (1, bits) if bits <= _LANE_BITS else (2, _PLANE_BITS)

    @property
    def bits(self) -> int:
        """Bits of a pair of words."""
        return self.product.act.word + self.product.weight.word

    def levels(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(activation level, weight level, whether both words mean numbers) of pair 0, 1, ..

        From the formats' own codes: the definition that the hardware is held to.
        """
        pair = np.arange(1 << self.bits)
        words = self.product.act.word
        act, act_known = _levels(self.act_format, pair & ((1 << words) - 1), words)
        weight, known = _levels(self.weight_format, pair >> words, self.product.weight.word)
        return act, weight, act_known & known


def _levels(kind: Format, words: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Levels of wire patterns, and which patterns have one."""
    levels = np.zeros(1 << width, dtype=np.int64)
    known = np.zeros(1 << width, dtype=bool)
    for level in kind.grid():
        code = int(kind.to_bits(kind.codes(level)))
        levels[code], known[code] = level, True
    for code in range(1 << width):
        if not known[code] and not kind.uniform:
            try:  # codes that are not canonical, such as -0
                levels[code], known[code] = int(kind.levels(code)), True
            except FormatError:  # NaN, infinity, beyond the table
                pass
    return levels[words], known[words]


def write_bench(elements: list[Element], folder: Path) -> None:
    """A design folder: one input of 16 bits, an output for each element."""
    (folder / "lib").mkdir(parents=True)
    modules = [f"lib/{name}.sv" for name in needed_modules({"mac_array"})]
    for name in modules:
        shutil.copy(LIBRARY / Path(name).name, folder / name)
    width = max(element.bits for element in elements)
    lines = [
        "module bench (input logic clk_i, input logic rst_ni, input logic in_valid_i,",
        f"  output logic in_ready_o, input logic [{width - 1}:0] in_data_i",
    ]
    body, memories = [], []
    for number, element in enumerate(elements):
        product, name = element.product, f"o{number}"
        acc = element.lanes[0] * element.lanes[1]
        lines.append(f"  , output logic {name}_valid_o, input logic {name}_ready_i,")
        lines.append(f"  output logic [{acc - 1}:0] {name}_data_o")
        parameters = {**product.parameters(), "DspRows": int(product.dsp)}
        if product.weight.index:
            memory = product.weight.table_memory(name)
            (folder / f"{name}.mem").write_text(memory.text)
            memories.append(f"{name}.mem")
            parameters["TableFile"] = f'"{name}.mem"'
        act, word = product.act.word, product.weight.word
        given = ", ".join(f".{key}({value})" for key, value in parameters.items())
        body.append(
            f"  mac_array #(.PE(1), .SIMD(1), .Columns(1), .AccWidth({acc}), "
            f"{given}) i_{name} (.clk_i, .rst_ni, .step_i(step), .first_i(1'b1), .last_i(1'b1), "
            f".acts_i(data_q[{act - 1}:0]), .weights_i(data_q[{act + word - 1}:{act}]), "
            f".en_o(en[{number}]), .out_valid_o({name}_valid_o), .out_ready_i({name}_ready_i), "
            f".out_data_o({name}_data_o));"
        )
    head = [
        ");",
        f"  logic [{len(elements) - 1}:0] en;",
        f"  logic [{width - 1}:0] data_q;",
        "  logic step;",
        "  assign in_ready_o = &en;",
        "  assign step = in_valid_i & in_ready_o;",
        "  always_ff @(posedge clk_i) if (step) data_q <= in_data_i;",
    ]
    (folder / "bench.sv").write_text("\n".join([*lines, *head, *body, "endmodule"]) + "\n")
    beats = 1 << width
    ports = [_port(f"o{number}", element.lanes[1], element.lanes[0], beats, "o", "i")
             for number, element in enumerate(elements)]  # fmt: skip
    table = {
        "top": "bench", "clock": "clk_i", "reset": "rst_ni", "files": [*modules, "bench.sv"],
        "memories": memories, "inputs": [_port("in", width, 1, beats, "i", "o")],
        "outputs": ports,
    }  # fmt: skip
    (folder / "design.json").write_text(json.dumps(table))


def _port(
    name: str, bits: int, lanes: int, beats: int, forward: str, backward: str
) -> dict[str, object]:
    signals = {"data": f"{name}_data_{forward}", "valid": f"{name}_valid_{forward}",
               "ready": f"{name}_ready_{backward}"}  # fmt: skip
    return {"name": name, "width": bits * lanes, "lane_bits": bits, "lanes": lanes,
            "beats": beats, "signals": signals}  # fmt: skip
