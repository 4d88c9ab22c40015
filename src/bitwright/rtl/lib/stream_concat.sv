// SPDX-License-Identifier: Apache-2.0
// Joins the channels of two streams: for every pixel the FoldA beats of in0, then the FoldB beats
// of in1, PE lanes each, widened to one lane type (Signed, Bipolar: how a lane's bits are read, see
// lane_widen; two bipolar streams stay as they are with both off). One beat a cycle, latency 1,
// FoldA + FoldB cycles a pixel. An input is ready only while it is its turn; no ready path.
`default_nettype none
module stream_concat #(
  parameter int FoldA    = 1,
  parameter int FoldB    = 1,
  parameter int PE       = 1,
  parameter int WidthA   = 4,
  parameter bit SignedA  = 1'b0,
  parameter bit BipolarA = 1'b0,
  parameter int WidthB   = 4,
  parameter bit SignedB  = 1'b0,
  parameter bit BipolarB = 1'b0,
  parameter int OutWidth = 4
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   in0_valid_i,
  output logic                   in0_ready_o,
  input  logic [PE*WidthA-1:0]   in0_data_i,
  input  logic                   in1_valid_i,
  output logic                   in1_ready_o,
  input  logic [PE*WidthB-1:0]   in1_data_i,
  output logic                   out_valid_o,
  input  logic                   out_ready_i,
  output logic [PE*OutWidth-1:0] out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (FoldA < 1 || FoldB < 1 || PE < 1 || WidthA < 1 || WidthB < 1) begin : gen_check
    $error("stream_concat: sizes must be at least 1");
  end
`endif

  localparam int FoldMax   = FoldA > FoldB ? FoldA : FoldB;
  localparam int FoldWidth = $clog2(FoldMax + 1);

  logic                   second_q, part_last, skid_ready, valid;
  logic [FoldWidth-1:0]   fold_q;
  logic [PE*OutWidth-1:0] a, b;

  lane_widen #(
    .PE(PE), .InWidth(WidthA), .Signed(SignedA), .Bipolar(BipolarA), .OutWidth(OutWidth)
  ) i_a (.data_i(in0_data_i), .data_o(a));
  lane_widen #(
    .PE(PE), .InWidth(WidthB), .Signed(SignedB), .Bipolar(BipolarB), .OutWidth(OutWidth)
  ) i_b (.data_i(in1_data_i), .data_o(b));

  assign in0_ready_o = skid_ready & ~second_q;
  assign in1_ready_o = skid_ready & second_q;
  assign valid       = second_q ? in1_valid_i : in0_valid_i;
  assign part_last   = fold_q == (second_q ? FoldWidth'(FoldB - 1) : FoldWidth'(FoldA - 1));

  always_ff @(posedge clk_i) begin : p_turn
    if (!rst_ni) begin
      second_q <= 1'b0;
      fold_q   <= '0;
    end else if (skid_ready && valid) begin
      fold_q <= part_last ? '0 : fold_q + 1'b1;
      if (part_last) second_q <= ~second_q;
    end
  end

  stream_skid #(.Width(PE * OutWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(valid), .in_ready_o(skid_ready), .in_data_i(second_q ? b : a),
    .out_valid_o, .out_ready_i, .out_data_o
  );
endmodule
`default_nettype wire
