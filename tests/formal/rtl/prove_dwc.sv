// SPDX-License-Identifier: Apache-2.0
// stream_dwc: the same elements in the same order, whatever the widths.
`default_nettype none
module prove_dwc #(
  parameter int Width    = 1,
  parameter int Up       = 1,
  parameter int Down     = 1
) (
  input logic clk_i,
  input logic rst_ni,
  input logic mark_i,
  input logic in_valid_i,
  input logic [Down*Width-1:0] in_data_i,
  input logic out_ready_i,
  input logic [$clog2(4 * Up + 4 * Down + 2)-1:0] lane_i
);
  logic            in_ready, out_valid, in_fire, out_fire;
  logic [Up*Width-1:0] out_data;
  assign in_fire  = in_valid_i & in_ready;
  assign out_fire = out_valid & out_ready_i;

  stream_dwc #(.InWidth(Down * Width), .OutWidth(Up * Width)) i_dut (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o(in_ready), .in_data_i,
    .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data)
  );
  fv_rules #(.Width(Up*Width), .Limit(Up + 2)) i_rules (
    .clk_i, .rst_ni, .offered_i(in_valid_i),
    .out_valid_i(out_valid), .out_ready_i, .out_data_i(out_data)
  );
  fv_order #(.Width(Width), .InUnits(Down), .OutUnits(Up), .Capacity(3 * Up + 3 * Down)) i_order (
    .clk_i, .rst_ni, .mark_i, .lane_i(lane_i), .in_fire_i(in_fire), .in_data_i(in_data_i),
    .out_fire_i(out_fire), .out_data_i(out_data), .inside_o()
  );
endmodule
`default_nettype wire
