# SPDX-License-Identifier: Apache-2.0
"""Two pixels and two outputs in two DSP48: the netlist of synthesis gives the products."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.conftest import require as need
from tests.icarus import missing as no_icarus
from tests.yosys.cell_models import cell_models

from bitwright.base.tools.finder import find, require, run_tool
from bitwright.base.tools.process import run_process
from bitwright.rtl import LIBRARY

Levels = npt.NDArray[np.int64]
_MODULES = ("engine_quad_feature", "engine_quad_weight", "engine_quad")
_TOP = """
module quad (
  input clk_i, input signed_i, input nibbles_i, input [15:0] features_i, input [15:0] weights_i,
  output [67:0] products_o
);
  logic [49:0] features;
  logic [25:0] weights;
  logic [2:0]  nibbles;
  logic [1:0]  late_q;
  always_ff @(posedge clk_i) late_q <= {late_q[0], nibbles_i};
  assign nibbles = {late_q, nibbles_i};
  engine_quad_feature i_feature (.signed_i, .nibbles_i, .bytes_i(features_i), .factors_o(features));
  engine_quad_weight i_weight (.nibbles_i, .bytes_i(weights_i), .factors_o(weights));
  engine_quad i_quad (
    .clk_i, .nibbles_i(nibbles), .features_i(features), .weights_i(weights), .products_o
  );
endmodule
"""
_BENCH = """
`timescale 1ns / 1ps
module bench;
  reg clk = 0;
  reg [33:0] vectors [0:COUNT-1];
  reg [33:0] now;
  wire [67:0] products;
  integer n;
  quad i_quad (.clk_i(clk), .signed_i(now[33]), .nibbles_i(now[32]), .features_i(now[31:16]),
               .weights_i(now[15:0]), .products_o(products));
  initial begin
    $readmemh("vectors.hex", vectors);
    for (n = 0; n < COUNT + 3; n = n + 1) begin
      now = n < COUNT ? vectors[n] : 0;
      #5 clk = 1;
      #5 clk = 0;
      if (n >= 2) $display("%b", products);  // latency 3
    end
    $finish;
  end
endmodule
"""


def lanes(words: Levels, signed: npt.NDArray[np.bool_] | bool, bits: int) -> Levels:
    """The lanes of 16 bits, lowest first, as numbers."""
    parts = words[:, None] >> np.arange(0, 16, bits) & (1 << bits) - 1
    negative = np.broadcast_to(np.asarray(signed), words.shape)[:, None] & (parts >> bits - 1 == 1)
    return parts - (negative.astype(np.int64) << bits)


def expected(signed: npt.NDArray[np.bool_], nibbles: Levels, a: Levels, w: Levels) -> Levels:
    """Products of pixel + 2 * output: of bytes, or summed over the two nibbles."""
    whole = lanes(w, True, 8)[:, :, None] * lanes(a, signed, 8)[:, None, :]
    halves = lanes(w, True, 4).reshape(-1, 2, 1, 2) * lanes(a, signed, 4).reshape(-1, 1, 2, 2)
    both = np.where(nibbles[:, None, None] != 0, halves.sum(-1), whole)
    return both.reshape(-1, 4).astype(np.int64)


def _simulated(folder: Path, family: str, vectors: list[str]) -> Levels:
    """What the netlist says, vector by vector."""
    text = (folder / "gates.v").read_text()
    types = set(re.findall(r"^  ([A-Z][A-Z0-9_]+) (?:#\(|\S+ \()", text, re.M))
    assert any(kind.startswith("DSP48") for kind in types)
    (folder / "cells.v").write_text(cell_models(family, sorted(types)))
    (folder / "bench.v").write_text(_BENCH.replace("COUNT", str(len(vectors))))
    (folder / "vectors.hex").write_text("\n".join(vectors) + "\n")
    build = ["iverilog", "-g2012", "-o", "bench", "bench.v", "gates.v", "cells.v"]
    for argv, log in ((build, "build.log"), (["vvp", "-n", "bench"], "run.log")):
        done = run_process(argv, cwd=folder, log=folder / log, timeout=300, name=argv[0])
        assert done.returncode == 0, done.tail()
    lines = [line for line in done.text().splitlines() if re.fullmatch("[01xz]{68}", line)]
    words = [[int(line[51 - 17 * n : 68 - 17 * n], 2) for n in range(4)] for line in lines]
    found = np.array(words[: len(vectors)], dtype=np.int64)
    return found - (found >> 16 << 17)


@pytest.mark.long
@pytest.mark.parametrize("family", ["xc7", "xcup"])
def test_netlist_gives_the_products(tmp_path: Path, family: str) -> None:
    need(no_icarus())
    if find("yosys") is None:
        pytest.skip("no Yosys works here")
    (tmp_path / "quad.sv").write_text(_TOP)
    for name in _MODULES:
        (tmp_path / f"{name}.sv").write_text((LIBRARY / f"{name}.sv").read_text())
    files = " ".join(f"{name}.sv" for name in (*_MODULES, "quad"))
    script = (
        f"read_verilog -sv {files}\nsynth_xilinx -family {family} -flatten -top quad -noiopad\n"
    )
    (tmp_path / "synth.ys").write_text(script + "stat\nwrite_verilog -noattr gates.v\n")
    log = tmp_path / "log"
    run_tool(require("yosys"), ["-s", "synth.ys"], cwd=tmp_path, log=log, timeout=300)
    assert len(re.findall(r"^  DSP48E[12] ", (tmp_path / "gates.v").read_text(), re.M)) == 2

    rng = np.random.default_rng(4)
    ends = np.array([0x0000, 0x8080, 0x7F7F, 0xFFFF, 0x8888, 0x7777, 0x807F, 0x7F80])
    a, w = (grid.ravel() for grid in np.meshgrid(ends, ends))
    a, w = (np.concatenate([x, rng.integers(0, 1 << 16, 2000)]) for x in (a, w))
    flags = np.arange(4).repeat(len(a))
    a, w = np.tile(a, 4), np.tile(w, 4)
    signed, nibbles = flags >= 2, flags & 1
    codes = flags.astype(np.int64) << 32 | a << 16 | w
    vectors = [f"{code:x}" for code in codes]
    found = _simulated(tmp_path, family, vectors)
    np.testing.assert_array_equal(found, expected(signed, nibbles, a, w))
