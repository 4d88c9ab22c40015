// SPDX-License-Identifier: Apache-2.0
// stream_add: MulA * a + MulB * b of the beats of the same number, a signed and b not.
`default_nettype none
module prove_add #(
  parameter int MulA = 3,
  parameter int MulB = -2
) (
  input logic       clk_i,
  input logic       rst_ni,
  input logic       mark_i,
  input logic       in0_valid_i,
  input logic [1:0] in0_data_i,
  input logic       in1_valid_i,
  input logic [1:0] in1_data_i,
  input logic       out_ready_i
);
  logic       ready0, ready1, fire0, fire1, out_valid, out_fire;
  logic [5:0] out_data, sum;
  assign fire0    = in0_valid_i & ready0;
  assign fire1    = in1_valid_i & ready1;
  assign out_fire = out_valid & out_ready_i;
  assign sum      = 6'(MulA) * {{4{in0_data_i[1]}}, in0_data_i} + 6'(MulB) * {4'b0, in1_data_i};

  stream_add #(
    .WidthA(2), .SignedA(1'b1), .MulA(MulA), .WidthB(2), .MulB(MulB), .OutWidth(6), .OutSigned(1'b1)
  ) i_dut (
    .clk_i, .rst_ni, .in0_valid_i, .in0_ready_o(ready0), .in0_data_i,
    .in1_valid_i, .in1_ready_o(ready1), .in1_data_i,
    .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data)
  );
  fv_rules #(.Width(6), .Limit(5)) i_rules (
    .clk_i, .rst_ni, .offered_i(in0_valid_i & in1_valid_i),
    .out_valid_i(out_valid), .out_ready_i, .out_data_i(out_data)
  );
  always_comb if (rst_ni) together: assert (fire0 == fire1);
  fv_order #(.Width(6), .Capacity(6)) i_order (
    .clk_i, .rst_ni, .mark_i, .lane_i('0), .in_fire_i(fire0), .in_data_i(sum),
    .out_fire_i(out_fire), .out_data_i(out_data), .inside_o()
  );
endmodule
`default_nettype wire
