// SPDX-License-Identifier: Apache-2.0
// Cuts a block of z x y runs of x words in memory into bursts, each at most Words (a power of two)
// long and ending at a multiple of Words, so that none crosses 4 KiB. start_i takes the block,
// which must hold until last_o goes; addresses count words. A burst is shown in the cycle after
// start_i or after the last next_i.
`default_nettype none
module engine_bursts #(
  parameter int AddrWidth = 32,
  parameter int Words     = 16,
  localparam int LenWidth = $clog2(Words + 1)
) (
  input  logic                 clk_i,
  input  logic                 start_i,
  input  logic [AddrWidth-1:0] addr_i,
  input  logic [15:0]          x_i,
  input  logic [11:0]          y_i,
  input  logic [11:0]          z_i,
  input  logic [AddrWidth-1:0] step_y_i,
  input  logic [AddrWidth-1:0] step_z_i,
  input  logic                 next_i,
  output logic [AddrWidth-1:0] addr_o,
  output logic [LenWidth-1:0]  len_o,
  output logic                 last_o
);
  localparam int WordWidth = $clog2(Words);

  logic [15:0]          x_q;             // words left in the run
  logic [11:0]          y_q, z_q;        // runs and blocks left, less one
  logic [AddrWidth-1:0] run_q, block_q, run, block;
  logic [LenWidth-1:0]  room;
  logic                 run_over, block_over;

  assign room       = LenWidth'(Words) - LenWidth'(addr_o[WordWidth-1:0]);
  assign run_over   = x_q <= 16'(room);
  assign len_o      = run_over ? LenWidth'(x_q) : room;
  assign block_over = run_over & (y_q == '0);
  assign last_o     = block_over & (z_q == '0);
  assign run        = run_q + step_y_i;
  assign block      = block_q + step_z_i;

  always_ff @(posedge clk_i) begin : p_burst
    if (start_i) begin
      addr_o  <= addr_i;
      run_q   <= addr_i;
      block_q <= addr_i;
      x_q     <= x_i;
      y_q     <= y_i - 12'd1;
      z_q     <= z_i - 12'd1;
    end else if (next_i) begin
      x_q    <= run_over ? x_i : x_q - 16'(room);
      addr_o <= !run_over ? addr_o + AddrWidth'(room) : block_over ? block : run;
      if (run_over) begin
        y_q   <= block_over ? y_i - 12'd1 : y_q - 12'd1;
        run_q <= block_over ? block : run;
      end
      if (block_over) begin
        z_q     <= z_q - 12'd1;
        block_q <= block;
      end
    end
  end
endmodule
`default_nettype wire
