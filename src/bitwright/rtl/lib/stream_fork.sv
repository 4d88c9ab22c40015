// SPDX-License-Identifier: Apache-2.0
// Copies one stream to two. Both outputs are two-entry registers, so a slow branch stalls the
// other only after two beats. One beat a cycle, latency 1, no combinational ready path.
`default_nettype none
module stream_fork #(
  parameter int Width = 8
) (
  input  logic             clk_i,
  input  logic             rst_ni,
  input  logic             in_valid_i,
  output logic             in_ready_o,
  input  logic [Width-1:0] in_data_i,
  output logic             out0_valid_o,
  input  logic             out0_ready_i,
  output logic [Width-1:0] out0_data_o,
  output logic             out1_valid_o,
  input  logic             out1_ready_i,
  output logic [Width-1:0] out1_data_o
);
  logic ready0, ready1;

  assign in_ready_o = ready0 & ready1;

  stream_skid #(.Width(Width)) i_skid0 (
    .clk_i, .rst_ni,
    .in_valid_i(in_valid_i & ready1), .in_ready_o(ready0), .in_data_i,
    .out_valid_o(out0_valid_o), .out_ready_i(out0_ready_i), .out_data_o(out0_data_o)
  );
  stream_skid #(.Width(Width)) i_skid1 (
    .clk_i, .rst_ni,
    .in_valid_i(in_valid_i & ready0), .in_ready_o(ready1), .in_data_i,
    .out_valid_o(out1_valid_o), .out_ready_i(out1_ready_i), .out_data_o(out1_data_o)
  );
endmodule
`default_nettype wire
