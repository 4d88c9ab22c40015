# SPDX-License-Identifier: Apache-2.0
"""Boards other than the ULX3S, and families other than ECP5: to the bitstream, with real tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bitwright.base.errors import TargetError
from bitwright.base.figures import Resources
from bitwright.base.tools.finder import find, require, run_tool
from bitwright.build.implement import ImplementOptions, implement
from bitwright.build.nextpnr import PnrOptions, place_and_route
from bitwright.build.shell import write_board_design
from bitwright.build.target import Board, Target, list_boards, load_board, load_target
from bitwright.build.yosys import SynthesisOptions, synthesise

DOTS = Path(__file__).with_name("dots")
UP5K = load_target("ice40-up5k")
#: First bytes of what goes into the device, behind a comment that ends with a zero byte.
PREAMBLES = {"ecp5": bytes.fromhex("ffffbdb3"), "ice40": bytes.fromhex("7eaa997e")}
MOUNTED = [
    pytest.param(
        board,
        load_target(name),
        id=f"{board.name}-{name}",
        marks=[] if board.name == "icebreaker" else pytest.mark.slow,
    )
    for board in list_boards()
    for name in board.targets
]


@pytest.fixture(autouse=True)
def _tools() -> None:
    if find("yosys") is None:
        pytest.skip("no Yosys works here")


def _need(family: str) -> None:
    if find(f"nextpnr-{family}") is None:
        pytest.skip(f"no nextpnr-{family} works here")


@pytest.mark.long
@pytest.mark.parametrize(("board", "target"), MOUNTED)
def test_a_bitstream_for_every_board(tmp_path: Path, board: Board, target: Target) -> None:
    """One of each family; those of ice40 beside it are slow; ECP5's is in test_build_flow."""
    _need(target.family)
    options = ImplementOptions(board=board.name, clock_mhz=24.0)
    result = implement(DOTS, target, tmp_path, options)
    part = board.mounted(target)
    assert (result.target, result.part) == (target.name, part.part)
    bitstream = (tmp_path / result.files["bitstream"]).read_bytes()
    assert result.figures["bitstream_bytes"].value == len(bitstream)
    assert PREAMBLES[target.family] in bitstream[:256]
    assert result.bitstream_clock_mhz is not None
    assert 12 <= result.bitstream_clock_mhz <= result.figures["fmax_mhz"].value
    assert result.figures["lut"].value >= result.shell.lut > 50
    assert result.figures["ff"].value > 100
    assert all((tmp_path / name).is_file() for name in result.files.values())
    assert any(note.startswith("not run on the board") for note in result.notes)
    total = sum(result.instances.values(), Resources())
    assert total == result.design


@pytest.mark.parametrize("name", ["icebreaker", "hx8k-b-evn"])
def test_pins_of_ice40_boards_exist(tmp_path: Path, name: str) -> None:
    """nextpnr knows the pins of its packages: it is asked to take them, nothing more."""
    _need("ice40")
    board = load_board(name)
    target = board.mounted(load_target(board.targets[0]))
    tool = require("nextpnr-ice40")
    inputs = [port for port in board.pins if port not in ("uart_tx", "led")]
    ports = ", ".join(f"{'input' if port in inputs else 'output'} {port}" for port in board.pins)
    parity = " ^ ".join(inputs)
    body = "".join(f"assign {port} = {parity};" for port in board.pins if port not in inputs)
    (tmp_path / "top.v").write_text(f"module top ({ports}); {body} endmodule\n")
    script = "read_verilog top.v\nsynth_ice40 -top top\nwrite_json top.json\n"
    (tmp_path / "top.ys").write_text(script)
    yosys = require("yosys")
    run_tool(yosys, ["-s", "top.ys"], cwd=tmp_path, log=tmp_path / "yosys.log", timeout=120)
    shelled = write_board_design(DOTS, board, target, tmp_path / "board", 24.0)

    def pack(pins: str) -> str:
        (tmp_path / "pins.pcf").write_text(pins)
        flags = [f"--{name}" for name in ("up5k", "hx8k") if name in target.name]
        flags += ["--package", target.package, "--json", "top.json", "--pcf", "pins.pcf"]
        log = tmp_path / "log"
        completed = run_tool(tool, [*flags, "--pack-only"], cwd=tmp_path, log=log, timeout=120)
        return completed.text()

    pins = shelled.constraints.read_text()
    assert "constrained 'clk' to bel" in pack(pins)
    site = board.pins["uart_rx"]
    with pytest.raises(Exception, match="does not have a pin named"):
        pack(pins.replace(f"uart_rx {site}", "uart_rx Z99"))


def test_ice40_has_no_lut_ram_and_no_place_out_of_context(tmp_path: Path) -> None:
    """Memories that ask for LUT RAM become registers; a design without a shell is not placed."""
    result = implement(DOTS, UP5K, tmp_path, ImplementOptions(bitstream=False))
    assert "bitstream" not in result.files
    assert "fmax_mhz" not in result.figures
    assert "nextpnr-ice40 places nothing out of context" in result.notes[0]
    _need("ice40")
    made = synthesise(DOTS, UP5K, tmp_path / "synthesis")
    with pytest.raises(TargetError, match="places no design out of context"):
        place_and_route(made.netlist, UP5K, tmp_path, PnrOptions(24, out_of_context=True))


PRODUCT = """
module product (
  input logic clk, input logic rst_n, input logic [11:0] a, input logic [11:0] b,
  output logic [23:0] y
);
  always_ff @(posedge clk) y <= rst_n ? a * b : 24'd0;
endmodule
"""


def test_multipliers_of_ice40_are_used_where_there_are_any(tmp_path: Path) -> None:
    (tmp_path / "product.sv").write_text(PRODUCT)
    table = {"top": "product", "clock": "clk", "reset": "rst_n", "files": ["product.sv"]}
    (tmp_path / "design.json").write_text(json.dumps({**table, "memories": []}))
    found = {
        name: synthesise(tmp_path, load_target(name), tmp_path / name).resources
        for name in ("ice40-up5k", "ice40-hx8k")
    }
    assert found["ice40-up5k"].dsp == 1
    assert found["ice40-hx8k"].dsp == 0
    assert found["ice40-hx8k"].lut > 100 > found["ice40-up5k"].lut
    no_dsp = SynthesisOptions(dsp=False)
    told = synthesise(tmp_path, UP5K, tmp_path / "told", options=no_dsp)
    assert told.resources.dsp == 0
