// SPDX-License-Identifier: Apache-2.0
// Matrix-vector product: MW inputs, MH outputs, SIMD inputs and PE outputs a cycle.
// A vector comes in as SF = MW/SIMD beats and leaves as NF = MH/PE beats. The first pass
// (neuron fold 0) reads the input stream, one beat a cycle; the other passes replay it from a
// buffer while in_ready_o is low. Exactly SF*NF cycles a vector, no bubble between vectors.
// Groups: vector v is multiplied with matrix v mod Groups, each MH x MW (grouped convolution).
// Beat (nf, SF-1) issued in cycle t gives output beat nf in cycle t + 4 + Wait + Table + Stages
// (Table = 1 with a codebook; Wait: cycles more that operands are read in, see `mem_rom`, which has
// RomRows, and `matvec_core`); what Stages is, how rows are multiplied in DSP blocks, and what
// operands may be (integers, bits, floats, a codebook), is in `mac_array`.
// Output stalls stop the pipeline.
// Weight word (g*NF + nf)*SF + sf: PE-major, [(p*SIMD + s)*W +: W], W = IndexWidth if there is a
// table, else WeightWidth; integers are signed. Bias word g*NF + nf: [p*BiasWidth +: BiasWidth],
// signed. Results modulo 2^AccWidth; overflow is asserted in simulation. Drop: see `mac_sum`.
`default_nettype none
module matvec #(
  parameter int Groups        = 1,
  parameter int MW            = 16,
  parameter int MH            = 8,
  parameter int PE            = 2,
  parameter int SIMD          = 4,
  parameter int WeightWidth   = 4,
  parameter int ActWidth      = 4,
  parameter int AccWidth      = 16,
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
  parameter int BiasWidth     = 16,
  parameter     WeightFile    = "",
  parameter     BiasFile      = "",
  parameter int DspRows       = 0,
  parameter int DspPack       = 1,
  parameter bit DspShare      = 1'b0,
  parameter int Step          = 1,
  parameter int Drop          = -1,
  parameter int RomStyle      = 0,
  parameter int RomRows       = 1,
  parameter int Wait          = 0
) (
  input  logic                     clk_i,
  input  logic                     rst_ni,
  input  logic                     in_valid_i,
  output logic                     in_ready_o,
  input  logic [SIMD*ActWidth-1:0] in_data_i,
  output logic                     out_valid_o,
  input  logic                     out_ready_i,
  output logic [PE*AccWidth-1:0]   out_data_o
);
  localparam int Words     = Groups * (MW / SIMD) * (MH / PE);
  localparam int AddrWidth = Words > 1 ? $clog2(Words) : 1;
  localparam int Width     = PE * SIMD * (IndexWidth > 0 ? IndexWidth : WeightWidth);

  logic                 en, issue;
  logic [AddrWidth-1:0] addr;
  logic [Width-1:0]     weight;

  // Its words are registered in mac_array.
  mem_rom #(
    .Width(Width), .Depth(Words), .Style(RomStyle), .File(WeightFile), .AddrReg(1'b1),
    .Rows(RomRows), .Wait(Wait)
  ) i_weights (
    .clk_i, .en_i(en), .addr_i(addr), .data_o(weight)
  );

  matvec_core #(
    .Groups(Groups), .MW(MW), .MH(MH), .PE(PE), .SIMD(SIMD), .WeightWidth(WeightWidth),
    .ActWidth(ActWidth), .AccWidth(AccWidth), .AccSigned(AccSigned), .ActSigned(ActSigned),
    .WeightBipolar(WeightBipolar), .ActBipolar(ActBipolar), .WeightExp(WeightExp),
    .WeightLow(WeightLow), .ActExp(ActExp), .ActLow(ActLow), .IndexWidth(IndexWidth),
    .TableFile(TableFile), .HasBias(HasBias), .BiasWidth(BiasWidth), .BiasFile(BiasFile),
    .DspRows(DspRows), .DspPack(DspPack), .DspShare(DspShare), .Step(Step), .Drop(Drop),
    .Wait(Wait)
  ) i_core (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o, .in_data_i, .out_valid_o, .out_ready_i, .out_data_o,
    .weight_valid_i(1'b1), .weight_i(weight), .en_o(en), .issue_o(issue), .addr_o(addr)
  );

  logic unused;
  assign unused = issue;
endmodule
`default_nettype wire
