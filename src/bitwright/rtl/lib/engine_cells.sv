// SPDX-License-Identifier: Apache-2.0
// Addresses in a buffer, one a word, of a block of z x y runs of x words, which start_i takes and
// which must hold until the last one goes. addr_o is there in the cycle after start_i or after the
// last next_i.
`default_nettype none
module engine_cells #(
  parameter int AddrWidth = 16
) (
  input  logic                 clk_i,
  input  logic                 start_i,
  input  logic [AddrWidth-1:0] addr_i,
  input  logic [15:0]          x_i,
  input  logic [11:0]          y_i,
  input  logic [11:0]          z_i,
  input  logic [AddrWidth-1:0] step_x_i,
  input  logic [AddrWidth-1:0] step_y_i,
  input  logic [AddrWidth-1:0] step_z_i,
  input  logic                 next_i,
  output logic [AddrWidth-1:0] addr_o,
  output logic                 last_o
);
  logic [15:0]          x_q;  // all left, less one
  logic [11:0]          y_q, z_q;
  logic [AddrWidth-1:0] run_q, block_q, run, block;
  logic                 run_over, block_over;

  assign run_over   = x_q == '0;
  assign block_over = run_over & (y_q == '0);
  assign last_o     = block_over & (z_q == '0);
  assign run        = run_q + step_y_i;
  assign block      = block_q + step_z_i;

  always_ff @(posedge clk_i) begin : p_cell
    if (start_i) begin
      addr_o  <= addr_i;
      run_q   <= addr_i;
      block_q <= addr_i;
      x_q     <= x_i - 16'd1;
      y_q     <= y_i - 12'd1;
      z_q     <= z_i - 12'd1;
    end else if (next_i) begin
      x_q    <= run_over ? x_i - 16'd1 : x_q - 16'd1;
      addr_o <= !run_over ? addr_o + step_x_i : block_over ? block : run;
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
