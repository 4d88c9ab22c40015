// SPDX-License-Identifier: Apache-2.0
// threshold: each result is the number of its channel's thresholds that are not above x.
`default_nettype none
module prove_threshold #(
  parameter int Style    = 2
) (
  input logic clk_i,
  input logic rst_ni,
  input logic mark_i,
  input logic in_valid_i,
  input logic [4-1:0] in_data_i,
  input logic out_ready_i
);
  logic            in_ready, out_valid, in_fire, out_fire;
  logic [2-1:0] out_data;
  assign in_fire  = in_valid_i & in_ready;
  assign out_fire = out_valid & out_ready_i;

  threshold #(.Channels(2), .PE(1), .InWidth(4), .InSigned(1'b1), .ThrWidth(4), .Bits(2), .OutWidth(2), .RomStyle(Style), .ThrFile0("t0_"), .ThrFile1("t1_")) i_dut (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o(in_ready), .in_data_i,
    .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data)
  );
  fv_rules #(.Width(2), .Limit(10)) i_rules (
    .clk_i, .rst_ni, .offered_i(in_valid_i),
    .out_valid_i(out_valid), .out_ready_i, .out_data_i(out_data)
  );
  logic       fold_q;
  logic [1:0] count;
  initial fold_q = 1'b0;
  always @(posedge clk_i) begin
    if (!rst_ni) fold_q <= 1'b0;
    else if (in_fire) fold_q <= ~fold_q;
  end
  // The same thresholds as in the files: -5, 1, 2 and -8, -1, 7.
  assign count = fold_q
    ? 2'($signed(in_data_i) >= -4'sd8) + 2'($signed(in_data_i) >= -4'sd1)
      + 2'($signed(in_data_i) >= 4'sd7)
    : 2'($signed(in_data_i) >= -4'sd5) + 2'($signed(in_data_i) >= 4'sd1)
      + 2'($signed(in_data_i) >= 4'sd2);
  fv_order #(.Width(2), .InUnits(1), .OutUnits(1), .Capacity(12)) i_order (
    .clk_i, .rst_ni, .mark_i, .lane_i('0), .in_fire_i(in_fire), .in_data_i(count),
    .out_fire_i(out_fire), .out_data_i(out_data), .inside_o()
  );
endmodule
`default_nettype wire
