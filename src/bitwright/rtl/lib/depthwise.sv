// SPDX-License-Identifier: Apache-2.0
// Depthwise product: every channel is multiplied with its own Window weights. PE channels a beat,
// and SIMD elements of the window of each; a pixel comes in as Channels/PE folds of Window/SIMD
// beats and leaves as Channels/PE beats. With SIMD = 1 that is the order of stream_window with
// Groups = Fold; with SIMD = Window that of window_parallel with a group a channel, the elements of
// a channel side by side. One beat a cycle, Window/SIMD*Channels/PE cycles a pixel, no bubble.
// Window = 1 is a factor a channel. The beat that completes a fold is accepted 4 + Wait +
// Table + Stages cycles before the sums are on the output (Table = 1 with a codebook; Wait: cycles
// more that weights are read in, see `mem_rom`, which has RomRows); Stages and what operands
// may be are in `mac_array`. Output stalls stop the pipeline.
// Weight word fold*Window/SIMD + k: lane p*SIMD + s (channel fold*PE + p, element k*SIMD + s)
// W bits, W = IndexWidth if there is a table, else WeightWidth; integers are signed. Bias word
// fold: [p*BiasWidth +: BiasWidth], signed. Results modulo 2^AccWidth; overflow is asserted in
// simulation. Drop: see `mac_sum`.
`default_nettype none
module depthwise #(
  parameter int Channels      = 4,
  parameter int PE            = 2,
  parameter int SIMD          = 1,
  parameter int Window        = 9,
  parameter int WeightWidth   = 4,
  parameter int ActWidth      = 4,
  parameter int AccWidth      = 12,
  parameter bit AccSigned     = 1'b1,
  parameter bit ActSigned     = 1'b0,
  parameter bit WeightBipolar = 1'b0,
  parameter bit ActBipolar    = 1'b0,
  parameter int WeightExp     = 0,
  parameter int WeightLow     = 0,
  parameter int ActExp        = 0,
  parameter int ActLow        = 0,
  parameter int IndexWidth    = 0,
  parameter     TableFile     = "",
  parameter bit HasBias       = 1'b0,
  parameter int BiasWidth     = 12,
  parameter     WeightFile    = "",
  parameter     BiasFile      = "",
  parameter int DspRows       = 0,
  parameter int DspPack       = 1,
  parameter int Step          = 1,
  parameter int Drop          = -1,
  parameter int RomStyle      = 0,
  parameter int RomRows       = 1,
  parameter int Wait          = 0
) (
  input  logic                        clk_i,
  input  logic                        rst_ni,
  input  logic                        in_valid_i,
  output logic                        in_ready_o,
  input  logic [PE*SIMD*ActWidth-1:0] in_data_i,
  output logic                        out_valid_o,
  input  logic                        out_ready_i,
  output logic [PE*AccWidth-1:0]      out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Channels < 1 || PE < 1 || Window < 1 || Channels % PE != 0) begin : gen_check
    $error("depthwise: PE must divide Channels, and Window be at least 1");
  end
  if (SIMD < 1 || Window % SIMD != 0) begin : gen_check_simd
    $error("depthwise: SIMD must divide Window");
  end
`endif

  localparam int Fold       = Channels / PE;
  localparam int Taps       = Window / SIMD;
  localparam int Words      = Fold * Taps;
  localparam int AddrWidth  = Words > 1 ? $clog2(Words) : 1;
  localparam int TapWidth   = Taps > 1 ? $clog2(Taps) : 1;
  localparam int Width      = PE * SIMD * (IndexWidth > 0 ? IndexWidth : WeightWidth);

  logic en, tap_last;
  logic [TapWidth-1:0]  tap_q;
  logic [AddrWidth-1:0] addr_q;

  assign in_ready_o = en;
  assign tap_last   = tap_q == TapWidth'(Taps - 1);

  always_ff @(posedge clk_i) begin : p_count
    if (!rst_ni) begin
      tap_q  <= '0;
      addr_q <= '0;
    end else if (en && in_valid_i) begin
      tap_q  <= tap_last ? '0 : tap_q + 1'b1;
      addr_q <= addr_q == AddrWidth'(Words - 1) ? '0 : addr_q + 1'b1;
    end
  end

  localparam int Beat = PE * SIMD * ActWidth;
  logic [(Wait+1)*Beat-1:0] acts_q;
  logic [(Wait+2)*Beat-1:0] acts;
  logic [Width-1:0]         weight;

  // Its words are registered in mac_array.
  mem_rom #(
    .Width(Width), .Depth(Words), .Style(RomStyle), .File(WeightFile), .AddrReg(1'b1),
    .Rows(RomRows), .Wait(Wait)
  ) i_rom (
    .clk_i, .en_i(en), .addr_i(addr_q), .data_o(weight)
  );

  assign acts = {acts_q, in_data_i};
  always_ff @(posedge clk_i) begin : p_act
    if (en) acts_q <= acts[0 +: (Wait+1)*Beat];
  end

  mac_array #(
    .PE(PE), .SIMD(SIMD), .Shared(1'b0), .Columns(Window), .WeightWidth(WeightWidth),
    .ActWidth(ActWidth), .AccWidth(AccWidth), .AccSigned(AccSigned), .ActSigned(ActSigned),
    .WeightBipolar(WeightBipolar), .ActBipolar(ActBipolar), .WeightExp(WeightExp),
    .WeightLow(WeightLow), .ActExp(ActExp), .ActLow(ActLow), .IndexWidth(IndexWidth),
    .TableFile(TableFile), .HasBias(HasBias), .BiasWidth(BiasWidth), .BiasRows(Fold),
    .BiasFile(BiasFile), .DspRows(DspRows), .DspPack(DspPack), .Step(Step), .Drop(Drop),
    .Wait(Wait)
  ) i_array (
    .clk_i, .rst_ni, .step_i(in_valid_i), .first_i(tap_q == '0), .last_i(tap_last),
    .acts_i(acts[(Wait+1)*Beat +: Beat]), .weights_i(weight), .en_o(en), .out_valid_o, .out_ready_i,
    .out_data_o
  );

`ifdef BITWRIGHT_CHECKS
  stream_check #(.Width(PE * SIMD * ActWidth)) i_check_in (
    .clk_i, .rst_ni, .valid_i(in_valid_i), .ready_i(in_ready_o), .data_i(in_data_i)
  );
`endif
endmodule
`default_nettype wire
