// SPDX-License-Identifier: Apache-2.0
// `matvec` whose weights come in as a stream instead of from a memory of its own: a word a step,
// in the order of that memory, all Groups*NF*SF of them again for every Groups vectors. A step
// waits for its word and, in the first pass, for its activations; either may come late, which
// only takes time. Parameters, order, words and latency: see `matvec`; latency from the step.
`default_nettype none
module matvec_stream #(
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
  parameter     BiasFile      = "",
  parameter int DspRows       = 0,
  parameter int DspPack       = 1,
  parameter bit DspShare      = 1'b0,
  parameter int Step          = 1,
  parameter int Drop          = -1,
  localparam int Width = PE * SIMD * (IndexWidth > 0 ? IndexWidth : WeightWidth)
) (
  input  logic                     clk_i,
  input  logic                     rst_ni,
  input  logic                     in_valid_i,
  output logic                     in_ready_o,
  input  logic [SIMD*ActWidth-1:0] in_data_i,
  output logic                     out_valid_o,
  input  logic                     out_ready_i,
  output logic [PE*AccWidth-1:0]   out_data_o,
  input  logic                     weight_valid_i,
  output logic                     weight_ready_o,
  input  logic [Width-1:0]         weight_data_i
);
  localparam int Words     = Groups * (MW / SIMD) * (MH / PE);
  localparam int AddrWidth = Words > 1 ? $clog2(Words) : 1;

  logic                 en;
  logic [AddrWidth-1:0] addr;
  logic [Width-1:0]     weight_q;

  always_ff @(posedge clk_i) begin : p_weight
    if (en) weight_q <= weight_data_i;
  end

  matvec_core #(
    .Groups(Groups), .MW(MW), .MH(MH), .PE(PE), .SIMD(SIMD), .WeightWidth(WeightWidth),
    .ActWidth(ActWidth), .AccWidth(AccWidth), .AccSigned(AccSigned), .ActSigned(ActSigned),
    .WeightBipolar(WeightBipolar), .ActBipolar(ActBipolar), .WeightExp(WeightExp),
    .WeightLow(WeightLow), .ActExp(ActExp), .ActLow(ActLow), .IndexWidth(IndexWidth),
    .TableFile(TableFile), .HasBias(HasBias), .BiasWidth(BiasWidth), .BiasFile(BiasFile),
    .DspRows(DspRows), .DspPack(DspPack), .DspShare(DspShare), .Step(Step), .Drop(Drop)
  ) i_core (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o, .in_data_i, .out_valid_o, .out_ready_i, .out_data_o,
    .weight_valid_i, .weight_i(weight_q), .en_o(en), .issue_o(weight_ready_o), .addr_o(addr)
  );

  logic unused;
  assign unused = ^addr;

`ifdef BITWRIGHT_CHECKS
  stream_check #(.Width(Width)) i_check_weight (
    .clk_i, .rst_ni, .valid_i(weight_valid_i), .ready_i(weight_ready_o), .data_i(weight_data_i)
  );
`endif
endmodule
`default_nettype wire
