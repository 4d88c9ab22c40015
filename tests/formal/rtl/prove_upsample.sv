// SPDX-License-Identifier: Apache-2.0
// stream_upsample: rows of Cols pixels, each copied in both directions.
`default_nettype none
module prove_upsample #(
  parameter int Cols     = 2,
  parameter int Fold     = 1,
  parameter int FactorV  = 2,
  parameter int FactorH  = 2
) (
  input logic clk_i,
  input logic rst_ni,
  input logic mark_i,
  input logic in_valid_i,
  input logic [1-1:0] in_data_i,
  input logic out_ready_i
);
  logic            in_ready, out_valid, in_fire, out_fire;
  logic [1-1:0] out_data;
  assign in_fire  = in_valid_i & in_ready;
  assign out_fire = out_valid & out_ready_i;

  stream_upsample #(.Cols(Cols), .Fold(Fold), .DataWidth(1), .FactorV(FactorV), .FactorH(FactorH)) i_dut (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o(in_ready), .in_data_i,
    .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data)
  );
  fv_rules #(.Width(1), .Limit(3)) i_rules (
    .clk_i, .rst_ni, .offered_i(in_valid_i),
    .out_valid_i(out_valid), .out_ready_i, .out_data_i(out_data)
  );
  localparam int In  = Cols * Fold;
  localparam int Out = In * FactorV * FactorH;
  logic [$clog2(Out+1)-1:0] pos;
  logic [5:0] source;
  assign source = 6'(pos) / 6'(Fold * FactorH) % 6'(Cols) * 6'(Fold) + 6'(pos) % 6'(Fold);
  fv_route #(.Width(1), .InBeats(In), .OutBeats(Out)) i_route (
    .clk_i, .rst_ni, .mark_i, .in_fire_i(in_fire), .in_data_i, .out_fire_i(out_fire),
    .out_data_i(out_data), .out_pos_o(pos), .copies_i(1'b1), .source_i($clog2(In+1)'(source)),
    .made_i(1'b0)
  );
endmodule
`default_nettype wire
