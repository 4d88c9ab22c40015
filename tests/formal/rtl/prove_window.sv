// SPDX-License-Identifier: Apache-2.0
// stream_window: the beats of every output pixel's window.
`default_nettype none
module prove_window #(
  parameter int Height   = 3,
  parameter int Cols     = 3,
  parameter int Fold     = 1,
  parameter int Groups   = 1,
  parameter int Stride   = 1,
  parameter int Kernel   = 2,
  parameter int Pixels   = 6,
  parameter int Style    = 0,
  parameter int Lines    = 0
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

  stream_window #(.Height(Height), .Cols(Cols), .Fold(Fold), .Groups(Groups), .DataWidth(1), .KernelH(Kernel), .KernelW(Kernel), .StrideH(Stride), .StrideW(Stride), .BufPixels(Pixels), .RamStyle(Style), .RamLines(Lines)) i_dut (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o(in_ready), .in_data_i,
    .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data)
  );
  fv_rules #(.Width(1), .Limit(Height * Cols * Fold + 8)) i_rules (
    .clk_i, .rst_ni, .offered_i(in_valid_i),
    .out_valid_i(out_valid), .out_ready_i, .out_data_i(out_data)
  );
  localparam int OutW = (Cols - Kernel) / Stride + 1;
  localparam int OutH = (Height - Kernel) / Stride + 1;
  localparam int Part = Fold / Groups;
  localparam int Taps = Kernel * Kernel * Fold;
  localparam int In   = Height * Cols * Fold;
  localparam int Out  = OutW * OutH * Taps;
  logic [$clog2(Out+1)-1:0] pos;
  logic [5:0] tap, pixel, row, col, source;
  // Within a pixel: group, row, column, fold within the group.
  assign tap    = 6'(pos) % 6'(Taps);
  assign pixel  = 6'(pos) / 6'(Taps);
  assign row    = pixel / 6'(OutW) * 6'(Stride) + tap / 6'(Kernel * Part) % 6'(Kernel);
  assign col    = pixel % 6'(OutW) * 6'(Stride) + tap / 6'(Part) % 6'(Kernel);
  assign source = (row * 6'(Cols) + col) * 6'(Fold) + tap / 6'(Kernel * Kernel * Part) * 6'(Part)
                  + tap % 6'(Part);
  fv_route #(.Width(1), .InBeats(In), .OutBeats(Out)) i_route (
    .clk_i, .rst_ni, .mark_i, .in_fire_i(in_fire), .in_data_i, .out_fire_i(out_fire),
    .out_data_i(out_data), .out_pos_o(pos), .copies_i(1'b1), .source_i($clog2(In+1)'(source)),
    .made_i(1'b0)
  );
endmodule
`default_nettype wire
