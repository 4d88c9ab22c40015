// SPDX-License-Identifier: Apache-2.0
// The pipeline of `matvec` and `matvec_stream`, without the weights: it counts the steps, keeps the
// vector, multiplies and adds. A step issues (issue_o) when the pipeline moves (en_o), its
// activations are there and weight_valid_i says that its weight word is; weight_i is that word
// after the clock edge that ends the issue cycle and Wait more with en_o, held until the next.
// addr_o is its number, 0 .. Groups*NF*SF - 1. With Wait the activations wait as well, the first
// cycle in a plain register behind the replay buffer, which a block RAM can take in. Parameters,
// order and latency: see `matvec`.
`default_nettype none
module matvec_core #(
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
  parameter int Wait          = 0,
  localparam int Width     = PE * SIMD * (IndexWidth > 0 ? IndexWidth : WeightWidth),
  localparam int AddrWidth = Groups * (MW / SIMD) * (MH / PE) > 1 ?
                             $clog2(Groups * (MW / SIMD) * (MH / PE)) : 1
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
  input  logic [Width-1:0]         weight_i,
  output logic                     en_o,
  output logic                     issue_o,
  output logic [AddrWidth-1:0]     addr_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Groups < 1 || MW < 1 || MH < 1 || PE < 1 || SIMD < 1 || MW % SIMD != 0 ||
      MH % PE != 0) begin : gen_check
    $error("matvec: SIMD must divide MW and PE must divide MH");
  end
`endif

  localparam int SF        = MW / SIMD;
  localparam int NF        = MH / PE;
  localparam int SfWidth   = SF > 1 ? $clog2(SF) : 1;
  localparam int NfWidth   = NF > 1 ? $clog2(NF) : 1;
  localparam int Rows      = Groups * NF;  // words of bias

  // Issue: one (nf, sf) step a cycle.
  logic [SfWidth-1:0] sf_q;
  logic [NfWidth-1:0] nf_q;
  logic first_pass_q, sf_last, nf_last, addr_last;

  assign sf_last    = sf_q == SfWidth'(SF - 1);
  assign nf_last    = nf_q == NfWidth'(NF - 1);
  assign addr_last  = Groups == 1 ? sf_last & nf_last : addr_o == AddrWidth'(Rows * SF - 1);
  assign in_ready_o = en_o & first_pass_q & weight_valid_i;
  assign issue_o    = en_o & weight_valid_i & (~first_pass_q | in_valid_i);

  always_ff @(posedge clk_i) begin : p_issue
    if (!rst_ni) begin
      sf_q         <= '0;
      nf_q         <= '0;
      addr_o       <= '0;
      first_pass_q <= 1'b1;
    end else if (issue_o) begin
      sf_q   <= sf_last ? '0 : sf_q + 1'b1;
      addr_o <= addr_last ? '0 : addr_o + 1'b1;
      if (sf_last) begin
        nf_q         <= nf_last ? '0 : nf_q + 1'b1;
        first_pass_q <= nf_last;
      end
    end
  end

  // Activations: from the stream in the first pass, else from the replay buffer.
  logic [SIMD*ActWidth-1:0] act1_q, act;

  always_ff @(posedge clk_i) begin : p_act
    if (en_o) act1_q <= in_data_i;
  end

  if (NF > 1) begin : gen_replay
    logic                     fresh_q;
    logic [SIMD*ActWidth-1:0] replay;

    mem_ram #(.Width(SIMD * ActWidth), .Depth(SF)) i_buffer (
      .clk_i,
      .wr_en_i(issue_o & first_pass_q), .wr_addr_i(sf_q), .wr_data_i(in_data_i),
      .rd_en_i(issue_o & ~first_pass_q), .rd_addr_i(sf_q), .rd_data_o(replay)
    );
    always_ff @(posedge clk_i) begin : p_fresh
      if (en_o) fresh_q <= first_pass_q;
    end
    if (Wait > 0) begin : gen_register
      logic                     fresh2_q;
      logic [SIMD*ActWidth-1:0] act2_q, replay_q;
      always_ff @(posedge clk_i) begin : p_replay
        if (en_o) {fresh2_q, act2_q, replay_q} <= {fresh_q, act1_q, replay};
      end
      assign act = fresh2_q ? act2_q : replay_q;
    end else begin : gen_at_once
      assign act = fresh_q ? act1_q : replay;
    end
  end else begin : gen_direct
    assign act = act1_q;
  end

  localparam int Rest = NF > 1 && Wait > 0 ? Wait - 1 : Wait;  // cycles that are left to wait
  logic [SIMD*ActWidth-1:0] acts;
  if (Rest > 0) begin : gen_rest
    logic [Rest*SIMD*ActWidth-1:0]     rest_q;
    logic [(Rest+1)*SIMD*ActWidth-1:0] rest;
    assign rest = {rest_q, act};
    assign acts = rest[Rest*SIMD*ActWidth +: SIMD*ActWidth];
    always_ff @(posedge clk_i) begin : p_rest
      if (en_o) rest_q <= rest[0 +: Rest*SIMD*ActWidth];
    end
  end else begin : gen_no_rest
    assign acts = act;
  end

  mac_array #(
    .PE(PE), .SIMD(SIMD), .Columns(MW), .WeightWidth(WeightWidth), .ActWidth(ActWidth),
    .AccWidth(AccWidth), .AccSigned(AccSigned), .ActSigned(ActSigned),
    .WeightBipolar(WeightBipolar), .ActBipolar(ActBipolar), .WeightExp(WeightExp),
    .WeightLow(WeightLow), .ActExp(ActExp), .ActLow(ActLow), .IndexWidth(IndexWidth),
    .TableFile(TableFile), .HasBias(HasBias), .BiasWidth(BiasWidth), .BiasRows(Rows),
    .BiasFile(BiasFile), .DspRows(DspRows), .DspPack(DspPack), .DspShare(DspShare), .Step(Step),
    .Drop(Drop), .Wait(Wait)
  ) i_array (
    .clk_i, .rst_ni, .step_i(issue_o), .first_i(sf_q == '0), .last_i(sf_last), .acts_i(acts),
    .weights_i(weight_i), .en_o, .out_valid_o, .out_ready_i, .out_data_o
  );

`ifdef BITWRIGHT_CHECKS
  stream_check #(.Width(SIMD * ActWidth)) i_check_in (
    .clk_i, .rst_ni, .valid_i(in_valid_i), .ready_i(in_ready_o), .data_i(in_data_i)
  );
`endif
endmodule
`default_nettype wire
