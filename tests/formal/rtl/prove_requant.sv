// SPDX-License-Identifier: Apache-2.0
// requant: clip(round(x * m + o, half to even)), m and o of the channel.
`default_nettype none
module prove_requant (
  input logic clk_i,
  input logic rst_ni,
  input logic mark_i,
  input logic in_valid_i,
  input logic [3-1:0] in_data_i,
  input logic out_ready_i
);
  logic            in_ready, out_valid, in_fire, out_fire;
  logic [2-1:0] out_data;
  assign in_fire  = in_valid_i & in_ready;
  assign out_fire = out_valid & out_ready_i;

  requant #(.Channels(2), .PE(1), .InWidth(3), .InSigned(1'b1), .MulWidth(3), .OffsetWidth(4), .Shift(2), .OutWidth(2), .OutLo(-1), .OutHi(2), .MulFile("m.mem"), .OffsetFile("o.mem")) i_dut (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o(in_ready), .in_data_i,
    .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data)
  );
  fv_rules #(.Width(2), .Limit(12)) i_rules (
    .clk_i, .rst_ni, .offered_i(in_valid_i),
    .out_valid_i(out_valid), .out_ready_i, .out_data_i(out_data)
  );
  logic fold_q;
  int   sum, floor, code;
  initial fold_q = 1'b0;
  always @(posedge clk_i) begin
    if (!rst_ni) fold_q <= 1'b0;
    else if (in_fire) fold_q <= ~fold_q;
  end
  // The files have m = 3, -4 and o = -5, 2.
  assign sum   = fold_q ? 2 - 4 * int'($signed(in_data_i)) : 3 * int'($signed(in_data_i)) - 5;
  assign floor = sum >>> 2;
  assign code  = floor + (sum[1:0] == 2'd3 || (sum[1:0] == 2'd2 && floor[0]) ? 1 : 0);
  fv_order #(.Width(2), .InUnits(1), .OutUnits(1), .Capacity(12)) i_order (
    .clk_i, .rst_ni, .mark_i, .lane_i('0), .in_fire_i(in_fire), .in_data_i(code > 2 ? 2'd2 : code < -1 ? 2'd3 : 2'(code)),
    .out_fire_i(out_fire), .out_data_i(out_data), .inside_o()
  );
endmodule
`default_nettype wire
