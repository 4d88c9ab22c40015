// SPDX-License-Identifier: Apache-2.0
// window_parallel: of every output pixel's window one element, whose place is unknown and constant.
`default_nettype none
module prove_window_parallel #(
  parameter int Height = 3,
  parameter int Cols   = 3,
  parameter int Stride = 1,
  parameter int Kernel = 2
) (
  input logic clk_i,
  input logic rst_ni,
  input logic mark_i,
  input logic in_valid_i,
  input logic [1-1:0] in_data_i,
  input logic out_ready_i
);
  localparam int Taps = Kernel * Kernel;
  localparam int OutW = (Cols - Kernel) / Stride + 1;
  localparam int OutH = (Height - Kernel) / Stride + 1;
  localparam int In   = Height * Cols;
  localparam int Out  = OutW * OutH;

  logic            in_ready, out_valid, in_fire, out_fire;
  logic [Taps-1:0] out_data;
  assign in_fire  = in_valid_i & in_ready;
  assign out_fire = out_valid & out_ready_i;

  window_parallel #(.Height(Height), .Cols(Cols), .DataWidth(1), .KernelH(Kernel), .KernelW(Kernel), .StrideH(Stride), .StrideW(Stride)) i_dut (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o(in_ready), .in_data_i,
    .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data)
  );
  fv_rules #(.Width(Taps), .Limit(Height * Cols + 6)) i_rules (
    .clk_i, .rst_ni, .offered_i(in_valid_i),
    .out_valid_i(out_valid), .out_ready_i, .out_data_i(out_data)
  );
  (* anyconst *) logic [5:0] tap;
  always @(posedge clk_i) assume (tap < 6'(Taps));

  logic [$clog2(Out+1)-1:0] pos;
  logic [5:0] row, col, source;
  assign row    = 6'(pos) / 6'(OutW) * 6'(Stride) + tap / 6'(Kernel);
  assign col    = 6'(pos) % 6'(OutW) * 6'(Stride) + tap % 6'(Kernel);
  assign source = row * 6'(Cols) + col;
  fv_route #(.Width(1), .InBeats(In), .OutBeats(Out)) i_route (
    .clk_i, .rst_ni, .mark_i, .in_fire_i(in_fire), .in_data_i, .out_fire_i(out_fire),
    .out_data_i(out_data[tap]), .out_pos_o(pos), .copies_i(1'b1),
    .source_i($clog2(In+1)'(source)), .made_i(1'b0)
  );
endmodule
`default_nettype wire
