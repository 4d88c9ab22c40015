// SPDX-License-Identifier: Apache-2.0
// stream_fork: each output is the input stream.
`default_nettype none
module prove_fork (
  input logic       clk_i,
  input logic       rst_ni,
  input logic [1:0] mark_i,
  input logic       in_valid_i,
  input logic [1:0] in_data_i,
  input logic [1:0] out_ready_i
);
  logic       in_ready, in_fire;
  logic [1:0] valid, fire;
  logic [3:0] data;
  assign in_fire = in_valid_i & in_ready;
  assign fire    = valid & out_ready_i;

  stream_fork #(.Width(2)) i_dut (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o(in_ready), .in_data_i,
    .out0_valid_o(valid[0]), .out0_ready_i(out_ready_i[0]), .out0_data_o(data[1:0]),
    .out1_valid_o(valid[1]), .out1_ready_i(out_ready_i[1]), .out1_data_o(data[3:2])
  );
  for (genvar n = 0; n < 2; n++) begin : gen_output
    fv_rules #(.Width(2), .Limit(3)) i_rules (
      .clk_i, .rst_ni, .offered_i(in_valid_i & (&out_ready_i)),
      .out_valid_i(valid[n]), .out_ready_i(out_ready_i[n]), .out_data_i(data[2*n +: 2])
    );
    fv_order #(.Width(2), .Capacity(2)) i_order (
      .clk_i, .rst_ni, .mark_i(mark_i[n]), .lane_i('0), .in_fire_i(in_fire), .in_data_i,
      .out_fire_i(fire[n]), .out_data_i(data[2*n +: 2]), .inside_o()
    );
  end
endmodule
`default_nettype wire
