// SPDX-License-Identifier: Apache-2.0
// lookup: each result is the table's word at the channel and the code.
`default_nettype none
module prove_lookup (
  input logic clk_i,
  input logic rst_ni,
  input logic mark_i,
  input logic in_valid_i,
  input logic [2-1:0] in_data_i,
  input logic out_ready_i
);
  logic            in_ready, out_valid, in_fire, out_fire;
  logic [3-1:0] out_data;
  assign in_fire  = in_valid_i & in_ready;
  assign out_fire = out_valid & out_ready_i;

  lookup #(.Channels(2), .PE(1), .InWidth(2), .OutWidth(3), .Shared(1'b0), .TableFile("table.mem")) i_dut (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o(in_ready), .in_data_i,
    .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data)
  );
  fv_rules #(.Width(3), .Limit(4)) i_rules (
    .clk_i, .rst_ni, .offered_i(in_valid_i),
    .out_valid_i(out_valid), .out_ready_i, .out_data_i(out_data)
  );
  logic       fold_q;
  logic [2:0] word;
  initial fold_q = 1'b0;
  always @(posedge clk_i) begin
    if (!rst_ni) fold_q <= 1'b0;
    else if (in_fire) fold_q <= ~fold_q;
  end
  // The file has 3, 1, 6, 2, 7, 0, 5, 4.
  always_comb begin
    case ({fold_q, in_data_i})
      3'd0: word = 3'd3;
      3'd1: word = 3'd1;
      3'd2: word = 3'd6;
      3'd3: word = 3'd2;
      3'd4: word = 3'd7;
      3'd5: word = 3'd0;
      3'd6: word = 3'd5;
      default: word = 3'd4;
    endcase
  end
  fv_order #(.Width(3), .InUnits(1), .OutUnits(1), .Capacity(5)) i_order (
    .clk_i, .rst_ni, .mark_i, .lane_i('0), .in_fire_i(in_fire), .in_data_i(word),
    .out_fire_i(out_fire), .out_data_i(out_data), .inside_o()
  );
endmodule
`default_nettype wire
