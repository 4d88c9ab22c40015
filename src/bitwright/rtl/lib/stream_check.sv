// SPDX-License-Identifier: Apache-2.0
// Simulation-only checker of the stream rules: once valid is high, valid and data hold until
// the transfer; IsOutput: valid is low in the cycle after a reset. Empty without BITWRIGHT_CHECKS.
`default_nettype none
module stream_check #(
  parameter int Width    = 8,
  parameter bit IsOutput = 1'b0
) (
  input logic             clk_i,
  input logic             rst_ni,
  input logic             valid_i,
  input logic             ready_i,
  input logic [Width-1:0] data_i
);
`ifdef BITWRIGHT_CHECKS
  hold_valid: assert property (@(posedge clk_i) disable iff (!rst_ni)
    (valid_i && !ready_i) |=> valid_i);
  hold_data: assert property (@(posedge clk_i) disable iff (!rst_ni)
    (valid_i && !ready_i) |=> $stable(data_i));
  if (IsOutput) begin : gen_reset
    reset_valid: assert property (@(posedge clk_i) !rst_ni |=> (!valid_i || !rst_ni));
  end
`else
  logic unused;
  assign unused = ^{IsOutput, clk_i, rst_ni, valid_i, ready_i, data_i};
`endif
endmodule
`default_nettype wire
