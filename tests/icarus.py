# SPDX-License-Identifier: Apache-2.0
"""A design folder in Icarus Verilog: a second simulator, with four states, so that a fault of the
first cannot hide one of ours, and nothing that begins unknown can reach an output."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bitwright.sim.beats import Beats, Levels, pack, unpack
from bitwright.sim.spec import Design, Port, load_design

_TIMEOUT_S = 300
_MOST_CYCLES = 2_000_000


@dataclass(frozen=True)
class Pattern:
    """Of every 256 cycles, those in which inputs offer and outputs take; a reset after
    `reset_at` cycles, behind which everything begins anew (0: none)."""

    offer: int = 256
    take: int = 256
    reset_at: int = 0
    seed: int = 1


@dataclass(frozen=True)
class Outcome:
    """Levels of every output, and the cycle of every beat."""

    levels: dict[str, Levels]
    cycles: dict[str, np.ndarray]


class Icarus:
    """A design, compiled by Icarus once for a number of frames."""

    def __init__(self, folder: Path, work: Path, frames: int) -> None:
        self.design, self.folder, self.work, self.frames = load_design(folder), folder, work, frames
        assert not self.design.memory_ports, "the bench has no memory"
        work.mkdir(parents=True)
        (work / "bench.sv").write_text(_bench(self.design, frames, work))
        self._call(
            "iverilog", "-g2012", "-Wall", "-Wno-timescale", "-o", str(work / "bench.vvp"),
            "-s", "bench", str(work / "bench.sv"), *self.design.files,
        )  # fmt: skip

    def run(self, feeds: dict[str, Levels], pattern: Pattern) -> Outcome:
        """Every output's levels.

        Raises:
            AssertionError: an unknown bit, a misplaced last, surplus beats, a flag of a wrong
                frame, or a design that stands still.
        """
        for port in self.design.inputs:
            beats = pack(port.spec, feeds[port.name])
            (self.work / f"{port.name}.hex").write_text(_hex(beats))
        said = self._call(
            "vvp", "-n", str(self.work / "bench.vvp"),
            f"+offer={pattern.offer}", f"+take={pattern.take}",
            f"+reset_at={pattern.reset_at}", f"+seed={pattern.seed}",
        )  # fmt: skip
        assert "bench: done" in said, said[-2000:]
        found = {port.name: self._beats(port) for port in self.design.outputs}
        return Outcome(
            {name: levels for name, (levels, _) in found.items()},
            {name: cycles for name, (_, cycles) in found.items()},
        )

    def _beats(self, port: Port) -> tuple[Levels, np.ndarray]:
        lines = [line.split() for line in (self.work / f"{port.name}.out").read_text().split("\n")]
        lines = [words for words in lines if words]
        rows = [int(word, 16).to_bytes(port.spec.beat_bytes, "little") for word, _, _ in lines]
        lasts = [int(last) for _, last, _ in lines]
        assert lasts == [int(i % port.beats == port.beats - 1) for i in range(len(lasts))]
        beats = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)
        return unpack(port.spec, beats), np.array([int(cycle) for _, _, cycle in lines])

    def _call(self, *argv: str) -> str:
        done = subprocess.run(
            argv, cwd=self.folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, f"{argv[0]}: {done.stderr[-3000:]}{done.stdout[-3000:]}"
        if argv[0] == "iverilog":
            assert done.stderr + done.stdout == "", done.stderr[-3000:]
        return done.stdout


def missing() -> str | None:
    """Why Icarus cannot run here, or None."""
    return None if shutil.which("iverilog") else "the command iverilog is not on the PATH"


def _hex(beats: Beats) -> str:
    return "".join(f"{int.from_bytes(row.tobytes(), 'little'):x}\n" for row in beats)


def _input(port: Port, frames: int, work: Path) -> tuple[str, str]:
    """The source of a stream, and how it is connected."""
    n, w, total = port.name, port.wires, port.beats * frames
    body = f"""
  logic [{port.width - 1}:0] mem_{n} [0:{total}];
  logic valid_{n};
  wire ready_{n};
  integer at_{n}, next_{n};
  initial $readmemh("{work}/{n}.hex", mem_{n}, 0, {total - 1});
  always @(posedge clk) begin
    if (!rst_n) begin
      valid_{n} <= 1'b0;
      at_{n} <= 0;
    end else begin
      if (ready_{n} === 1'bx) stop("{n}: ready is unknown");
      next_{n} = valid_{n} && ready_{n} ? at_{n} + 1 : at_{n};
      at_{n} <= next_{n};
      if (!valid_{n} || ready_{n}) valid_{n} <= next_{n} < {total} && draw(offer);
    end
  end
"""
    data = f"valid_{n} ? mem_{n}[at_{n}] : {{{port.width}{{1'bx}}}}"
    link = f".{w.data}({data}), .{w.valid}(valid_{n}), .{w.ready}(ready_{n}),"
    return body, link + (f" .{w.last}({_is_last(f'at_{n}', port)})," if w.last else "")


def _output(port: Port, frames: int, work: Path) -> tuple[str, str]:
    """The sink of a stream, and how it is connected."""
    n, w, total = port.name, port.wires, port.beats * frames
    last = "" if w.last else f" = {_is_last(f'done_{n}', port)}"
    body = f"""
  wire [{port.width - 1}:0] data_{n};
  wire valid_{n};
  logic ready_{n};
  integer file_{n}, done_{n};
  wire last_{n}{last};
  initial file_{n} = $fopen("{work}/{n}.out", "w");
  always @(posedge clk) begin
    if (!rst_n) begin
      ready_{n} <= 1'b0;
      done_{n} <= 0;
      $fclose(file_{n});
      file_{n} = $fopen("{work}/{n}.out", "w");
    end else begin
      ready_{n} <= draw(take);
      if (valid_{n} === 1'bx) stop("{n}: valid is unknown");
      if (valid_{n} && ready_{n}) begin
        if (^{{data_{n}, last_{n}}} === 1'bx) stop("{n}: data are unknown");
        if (done_{n} == {total}) stop("{n}: surplus beats");
        $fwrite(file_{n}, "%h %b %0d\\n", data_{n}, last_{n}, cycle);
        done_{n} <= done_{n} + 1;
      end
    end
  end
"""
    link = f".{w.data}(data_{n}), .{w.valid}(valid_{n}), .{w.ready}(ready_{n}),"
    return body, link + (f" .{w.last}(last_{n})," if w.last else "")


def _is_last(count: str, port: Port) -> str:
    return f"{count} % {port.beats} == {port.beats - 1}"


def _bench(design: Design, frames: int, work: Path) -> str:
    """Offers and takes at random, with unknown data wherever nothing is offered."""
    parts = [_input(port, frames, work) for port in design.inputs]
    parts += [_output(port, frames, work) for port in design.outputs]
    bodies, links = zip(*parts, strict=True)
    done = " && ".join(f"done_{p.name} == {p.beats * frames}" for p in design.outputs)
    error = f".{design.frame_error}(frame_error)," if design.frame_error else ""
    check = 'if (frame_error !== 0) stop("frame error");' if design.frame_error else ""
    return f"""// Written by tests/icarus.py.
module bench;
  logic clk = 1'b0, rst_n = 1'b0;
  integer cycle = 0, quiet = 0, offer, take, reset_at, seed;
  wire [{len(design.inputs) - 1}:0] frame_error;
  always #5 clk = ~clk;

  function automatic logic draw(input integer share);
    draw = (($random(seed) >>> 8) & 255) < share;
  endfunction

  task stop(input reg [8*80-1:0] why);
    $display("bench: cycle %0d: %0s", cycle, why);
    $finish;
  endtask
{"".join(bodies)}
  {design.top} dut (
    .{design.clock}(clk), {error}
    {"    ".join(link + chr(10) for link in links)}    .{design.reset}(rst_n)
  );

  always @(posedge clk) begin
    cycle <= rst_n ? cycle + 1 : 0;
    if (cycle > {_MOST_CYCLES}) stop("it stands still");
    quiet <= rst_n && {done} ? quiet + 1 : 0;
    if (quiet == 200) begin
      {check}
      $display("bench: done");
      $finish;
    end
  end

  initial begin
    if (!$value$plusargs("offer=%d", offer) || !$value$plusargs("take=%d", take) ||
        !$value$plusargs("seed=%d", seed) || !$value$plusargs("reset_at=%d", reset_at)) begin
      stop("arguments are missing");
    end
    repeat (4) @(posedge clk);
    rst_n <= 1'b1;
    if (reset_at > 0) begin
      repeat (reset_at) @(posedge clk);
      rst_n <= 1'b0;
      repeat (2) @(posedge clk);
      rst_n <= 1'b1;
    end
  end
endmodule
"""
