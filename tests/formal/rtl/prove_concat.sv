// SPDX-License-Identifier: Apache-2.0
// stream_concat: two beats of in0, then one of in1, and so on, widened with their signs.
`default_nettype none
module prove_concat (
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
  logic [2:0] out_data;
  logic [1:0] turn_q;
  assign fire0    = in0_valid_i & ready0;
  assign fire1    = in1_valid_i & ready1;
  assign out_fire = out_valid & out_ready_i;

  stream_concat #(.FoldA(2), .FoldB(1), .WidthA(2), .SignedA(1'b1), .WidthB(2), .OutWidth(3)) i_dut (
    .clk_i, .rst_ni, .in0_valid_i, .in0_ready_o(ready0), .in0_data_i,
    .in1_valid_i, .in1_ready_o(ready1), .in1_data_i,
    .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data)
  );
  fv_rules #(.Width(3), .Limit(2)) i_rules (
    .clk_i, .rst_ni, .offered_i(in0_valid_i & in1_valid_i),
    .out_valid_i(out_valid), .out_ready_i, .out_data_i(out_data)
  );
  initial turn_q = '0;
  always @(posedge clk_i) begin
    if (!rst_ni) turn_q <= '0;
    else if (fire0 || fire1) turn_q <= turn_q == 2'd2 ? '0 : turn_q + 1'b1;
  end
  always_comb if (rst_ni) begin
    turn0: assert (!fire0 || turn_q < 2'd2);
    turn1: assert (!fire1 || turn_q == 2'd2);
  end
  fv_order #(.Width(3), .Capacity(2)) i_order (
    .clk_i, .rst_ni, .mark_i, .lane_i('0), .in_fire_i(fire0 | fire1),
    .in_data_i(fire0 ? {in0_data_i[1], in0_data_i} : {1'b0, in1_data_i}),
    .out_fire_i(out_fire), .out_data_i(out_data), .inside_o()
  );
endmodule
`default_nettype wire
