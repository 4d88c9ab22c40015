// SPDX-License-Identifier: Apache-2.0
// The pipeline of `matvec` and `matvec_stream`, without the weights: it counts the steps, keeps
// the vector, multiplies and adds. A step issues (issue_o) when the pipeline moves (en_o), its
// activations are there and weight_valid_i says that its weight word is; weight_i is that word
// after the clock edge that ends the issue cycle, held until the next edge with en_o. addr_o is
// its number, 0 .. Groups*NF*SF - 1. Parameters, order and latency: see `matvec`.
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
  parameter bit HasBias       = 1'b0,
  parameter int BiasWidth     = 16,
  parameter     BiasFile      = "",
  parameter bit UseDsp        = 1'b0,
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
  input  logic                           weight_valid_i,
  input  logic [PE*SIMD*WeightWidth-1:0] weight_i,
  output logic                           en_o,
  output logic                           issue_o,
  output logic [AddrWidth-1:0]           addr_o
);
  if (Groups < 1 || MW < 1 || MH < 1 || PE < 1 || SIMD < 1 || MW % SIMD != 0 ||
      MH % PE != 0) begin : gen_check
    $error("matvec: SIMD must divide MW and PE must divide MH");
  end
  if ((WeightBipolar && WeightWidth != 1) || (ActBipolar && ActWidth != 1)) begin : gen_check_bip
    $error("matvec: a bipolar operand is one bit wide");
  end

  localparam int SF        = MW / SIMD;
  localparam int NF        = MH / PE;
  localparam int SfWidth   = SF > 1 ? $clog2(SF) : 1;
  localparam int NfWidth   = NF > 1 ? $clog2(NF) : 1;
  localparam int Rows      = Groups * NF;  // words of bias
  localparam int RowWidth  = Rows > 1 ? $clog2(Rows) : 1;
  localparam bit Xnor      = WeightBipolar && ActBipolar;
  localparam int Digits    = (UseDsp || WeightBipolar || ActBipolar) ? 1 : (WeightWidth + 1) / 2;
  localparam int Terms     = Xnor ? (SIMD + 1) / 2 : SIMD;
  localparam int Levels    = (Terms > 1 ? $clog2(Terms) : 0) + (Digits > 1 ? $clog2(Digits) : 0);
  localparam int Depth     = 3 + Levels;  // stages from issue to the accumulator input
  // The bias and, for XNOR, the constant -MW.
  localparam int InitWidth = (BiasWidth > $clog2(MW + 1) + 1 ? BiasWidth : $clog2(MW + 1) + 1) + 1;

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

  // Flags that travel with the data; bit 0 belongs to the stage after issue.
  logic [Depth-1:0] valid_q, first_q, last_q;

  always_ff @(posedge clk_i) begin : p_flags
    if (!rst_ni) valid_q <= '0;
    else if (en_o) valid_q <= {valid_q[Depth-2:0], issue_o};
    if (en_o) begin
      first_q <= {first_q[Depth-2:0], sf_q == '0};
      last_q  <= {last_q[Depth-2:0], sf_last};
    end
  end

  // Activations: from the stream in the first pass, else from the replay buffer.
  logic [SIMD*ActWidth-1:0] act1_q, act2_q, act1;

  always_ff @(posedge clk_i) begin : p_act
    if (en_o) begin
      act1_q <= in_data_i;
      act2_q <= act1;
    end
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
    assign act1 = fresh_q ? act1_q : replay;
  end else begin : gen_direct
    assign act1 = act1_q;
  end

  // A register behind the weight memory hides a block RAM's clock-to-output time.
  logic [PE*SIMD*WeightWidth-1:0] weight2_q;

  always_ff @(posedge clk_i) begin : p_weight
    if (en_o) weight2_q <= weight_i;
  end

  // Initial accumulator value: bias word read two stages ahead of the accumulator.
  localparam int Offset = Xnor ? -MW : 0;
  logic [PE*InitWidth-1:0] init;
  if (HasBias) begin : gen_bias
    logic [RowWidth-1:0]     bias_addr_q;
    logic [PE*BiasWidth-1:0] bias;
    logic [PE*InitWidth-1:0] init_q;

    always_ff @(posedge clk_i) begin : p_bias_addr
      if (!rst_ni) bias_addr_q <= '0;
      else if (en_o && valid_q[Depth-3] && last_q[Depth-3]) begin
        bias_addr_q <= bias_addr_q == RowWidth'(Rows - 1) ? '0 : bias_addr_q + 1'b1;
      end
    end
    mem_rom #(.Width(PE * BiasWidth), .Depth(Rows), .Style(2), .File(BiasFile)) i_bias (
      .clk_i, .en_i(en_o), .addr_i(bias_addr_q), .data_o(bias)
    );
    for (genvar p = 0; p < PE; p++) begin : gen_init
      always_ff @(posedge clk_i) begin : p_init
        if (en_o) begin
          init_q[p*InitWidth +: InitWidth] <=
            InitWidth'($signed(bias[p*BiasWidth +: BiasWidth])) + InitWidth'(Offset);
        end
      end
    end
    assign init = init_q;
  end else begin : gen_no_bias
    assign init = {PE{InitWidth'(Offset)}};
  end

  logic [PE*AccWidth-1:0] acc;
  logic                   acc_valid_q;
  for (genvar p = 0; p < PE; p++) begin : gen_pe
    matvec_lane #(
      .SIMD(SIMD), .WeightWidth(WeightWidth), .ActWidth(ActWidth), .AccWidth(AccWidth),
      .AccSigned(AccSigned), .ActSigned(ActSigned), .WeightBipolar(WeightBipolar),
      .ActBipolar(ActBipolar), .UseDsp(UseDsp), .InitWidth(InitWidth)
    ) i_lane (
      .clk_i, .rst_ni, .en_i(en_o), .acts_i(act2_q),
      .weights_i(weight2_q[p*SIMD*WeightWidth +: SIMD*WeightWidth]),
      .valid_i(valid_q[Depth-1]), .first_i(first_q[Depth-1]), .last_i(last_q[Depth-1]),
      .init_i(init[p*InitWidth +: InitWidth]), .acc_o(acc[p*AccWidth +: AccWidth])
    );
  end

  always_ff @(posedge clk_i) begin : p_acc_valid
    if (!rst_ni) acc_valid_q <= 1'b0;
    else if (en_o) acc_valid_q <= valid_q[Depth-1] & last_q[Depth-1];
  end

  stream_skid #(.Width(PE * AccWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(acc_valid_q), .in_ready_o(en_o), .in_data_i(acc),
    .out_valid_o, .out_ready_i, .out_data_o
  );

`ifndef SYNTHESIS
  stream_check #(.Width(SIMD * ActWidth)) i_check_in (
    .clk_i, .rst_ni, .valid_i(in_valid_i), .ready_i(in_ready_o), .data_i(in_data_i)
  );
`endif
endmodule
`default_nettype wire
