// SPDX-License-Identifier: Apache-2.0
// Simulation-only checker of memories without a bypass: no address is read in the cycle in which
// it is written. Empty without BITWRIGHT_CHECKS.
`default_nettype none
module mem_check #(
  parameter int AddrWidth = 4
) (
  input logic                 clk_i,
  input logic                 wr_en_i,
  input logic [AddrWidth-1:0] wr_addr_i,
  input logic                 rd_en_i,
  input logic [AddrWidth-1:0] rd_addr_i
);
`ifdef BITWRIGHT_CHECKS
  // In the first clock cycles of the reset the user's enables are unknown, some of them behind two
  // or three registers without a reset.
  logic [3:0] settled_q;

  initial settled_q = '0;

  // Not always_ff: that would have to be the only process of what `initial` sets.
  always @(posedge clk_i) begin : p_settled
    settled_q <= {settled_q[2:0], 1'b1};
  end
  no_collision: assert property (@(posedge clk_i)
    settled_q[3] |-> !(wr_en_i && rd_en_i && wr_addr_i == rd_addr_i));
`else
  logic unused;
  assign unused = ^{clk_i, wr_en_i, wr_addr_i, rd_en_i, rd_addr_i};
`endif
endmodule
`default_nettype wire
