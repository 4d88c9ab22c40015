// SPDX-License-Identifier: Apache-2.0
// What every block of one output must keep: the stream rules of the output (fv_output), and progress
// (fv_progress) while offered_i says that all of its inputs are offered. Assumes the reset.
`default_nettype none
module fv_rules #(
  parameter int Width = 1,
  parameter int Limit = 4
) (
  input logic             clk_i,
  input logic             rst_ni,
  input logic             offered_i,
  input logic             out_valid_i,
  input logic             out_ready_i,
  input logic [Width-1:0] out_data_i
);
  fv_reset i_reset (.clk_i, .rst_ni);
  fv_output #(.Width(Width)) i_output (
    .clk_i, .rst_ni, .valid_i(out_valid_i), .ready_i(out_ready_i), .data_i(out_data_i)
  );
  fv_progress #(.Limit(Limit)) i_progress (
    .clk_i, .rst_ni, .willing_i(offered_i & out_ready_i), .fire_i(out_valid_i & out_ready_i)
  );
endmodule
`default_nettype wire
