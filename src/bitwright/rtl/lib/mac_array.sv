// SPDX-License-Identifier: Apache-2.0
// PE dot products side by side, the arithmetic of `matvec` and `depthwise`: operands in, sums out
// on a stream. A step (step_i, while en_o is high) has SIMD activations, for all elements the same
// (Shared) or for each its own, and SIMD weights an element; they come 1 + Wait stages after the
// step, and are registered here. first_i and last_i of the step begin and end a sum of Columns
// products, which is on the output 4 + Wait + Table + Stages cycles after the step of its end. Sums
// begin with a word of bias, one after the other of BiasRows. Output stalls stop the pipeline
// (en_o). An operand is an integer, a bit (Bipolar: 1 = +1, 0 = -1), or sign, exponent and mantissa
// (Exp > 0, see float_split for Low). Unsigned bits times bipolar weights: equal bits are counted;
// the bias must hold minus the row's weights of -1. With IndexWidth > 0 weights are indices of that
// width into the table of TableFile, whose entries are the weights. Drop: `mac_sum`.
// Rows below DspRows multiply in DSP blocks, the others in LUTs. A DSP block makes DspPack products
// of a row and adds them (`mul_packed`; integers only), or, with DspShare, the products of two rows
// with one activation (`mul_shared`; integers, Shared, no table, DspPack 1). Table = 1 with a
// table. Stages: registers from the operands here to the accumulator, of the row that has most; the
// others wait. Every Step-th adder has one. A row in LUTs has K + J + 1 adders in a line, K =
// $clog2(SIMD), J = $clog2(digits), digits = ceil(WeightWidth/2), 1 for a one-bit factor; bits x
// bipolar K = $clog2(ceil(SIMD/2)): floor((K + J + 1)/Step) registers, at least 1. In DSPs 2 +
// floor($clog2(ceil(SIMD/DspPack))/Step). With a float M + floor(K/Step), M = 2 with a power of two
// or a one-bit operand, else 3 + $clog2(ceil(magnitude/2)), 3 in DSPs.
`default_nettype none
module mac_array #(
  parameter int PE            = 2,
  parameter int SIMD          = 4,
  parameter bit Shared        = 1'b1,
  parameter int Columns       = 16,
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
  parameter int BiasRows      = 4,
  parameter     BiasFile      = "",
  parameter int DspRows       = 0,
  parameter int DspPack       = 1,
  parameter bit DspShare      = 1'b0,
  parameter int Step          = 1,
  parameter int Drop          = -1,
  parameter int Wait          = 0,
  localparam int WordWidth = PE * SIMD * (IndexWidth > 0 ? IndexWidth : WeightWidth),
  localparam int ActsWidth = (Shared ? 1 : PE) * SIMD * ActWidth
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   step_i,
  input  logic                   first_i,
  input  logic                   last_i,
  input  logic [ActsWidth-1:0]   acts_i,
  input  logic [WordWidth-1:0]   weights_i,
  output logic                   en_o,
  output logic                   out_valid_o,
  input  logic                   out_ready_i,
  output logic [PE*AccWidth-1:0] out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if ((WeightBipolar && WeightWidth != 1) || (ActBipolar && ActWidth != 1)) begin : gen_check_bip
    $error("mac_array: a bipolar operand is one bit wide");
  end
  if (WeightExp < 0 || (WeightExp > 0 && WeightExp >= WeightWidth) || ActExp < 0 ||
      (ActExp > 0 && ActExp >= ActWidth)) begin : gen_check_exp
    $error("mac_array: an exponent must leave room for the sign");
  end
  if (IndexWidth < 0 || (IndexWidth > 0 && WeightBipolar)) begin : gen_check_table
    $error("mac_array: a table needs a positive IndexWidth, and holds no bipolar weights");
  end
  if (DspRows < 0 || DspRows > PE || DspPack < 1 || Step < 1 || (DspShare && (DspRows % 2 != 0 ||
      DspPack != 1 || !Shared || IndexWidth > 0 || WeightBipolar || ActBipolar || WeightExp > 0 ||
      ActExp > 0))) begin : gen_check_dsp
    $error("mac_array: DspRows must be 0 to PE, even and of plain integers for DspShare");
  end
`endif

  localparam bit Count     = ActWidth == 1 && !ActSigned && Drop < 0;
  localparam bit Xnor      = WeightBipolar && (ActBipolar || Count);
  localparam bit Float     = WeightExp > 0 || ActExp > 0;
  // The factor of a product with a float is one magnitude, as in mul_float.
  localparam int ActMag    = ActWidth - ActExp;
  localparam int WeightMag = WeightWidth - WeightExp;
  localparam bit ActFactor = WeightExp == 0 || (ActExp > 0 && ActMag < WeightMag);
  localparam bit OneBit    = ActFactor ? WeightBipolar : ActBipolar;
  localparam int Factor    = OneBit ? 1 : ActFactor ? ActMag : WeightMag;
  localparam bit Plain     = !Float && !WeightBipolar && !ActBipolar;
  localparam int LutTerms  = Xnor ? (SIMD + 1) / 2 : SIMD;
  localparam int DspTerms  = Plain && !DspShare ? (SIMD + DspPack - 1) / DspPack : LutTerms;
  localparam int FloatLog  = Factor > 2 ? $clog2((Factor + 1) / 2) : 0;
  localparam int LutLevels = (LutTerms > 1 ? $clog2(LutTerms) : 0)
                           + (Plain && WeightWidth > 2 ? $clog2((WeightWidth + 1) / 2) : 0);
  localparam int DspLevels = DspTerms > 1 ? $clog2(DspTerms) : 0;
  localparam int FloatMul  = Factor == 1 ? 2 : 3;
  localparam int LutStages = Float ? FloatMul + FloatLog + LutLevels / Step
                           : LutLevels + 1 < Step ? 1 : (LutLevels + 1) / Step;
  localparam int DspStages = !Float && !Plain ? LutStages
                           : (Float ? FloatMul : 2) + DspLevels / Step;
  localparam int Stages    = DspRows == 0 ? LutStages : DspRows == PE ? DspStages
                           : LutStages > DspStages ? LutStages : DspStages;
  localparam int Depth     = 2 + Wait + (IndexWidth > 0 ? 1 : 0) + Stages;  // step to accumulator
  localparam int RowWidth  = BiasRows > 1 ? $clog2(BiasRows) : 1;
  localparam int Constant  = $clog2(Columns + 1) + 1;  // bits of -Columns, bipolar x bipolar
  localparam int InitWidth = (BiasWidth > Constant ? BiasWidth : Constant) + 1;
  localparam int LaneActs  = SIMD * ActWidth;
  localparam int LaneWord  = WordWidth / PE;

  // Flags that travel with the data; bit 0 belongs to the stage after the step.
  logic [Depth-1:0]     valid_q, first_q, last_q;
  logic [ActsWidth-1:0] acts_q;
  logic [WordWidth-1:0] weights_q;

  always_ff @(posedge clk_i) begin : p_flags
    if (!rst_ni) valid_q <= '0;
    else if (en_o) valid_q <= {valid_q[Depth-2:0], step_i};
    if (en_o) {first_q, last_q} <= {first_q[Depth-2:0], first_i, last_q[Depth-2:0], last_i};
  end

  always_ff @(posedge clk_i) begin : p_operands  // it hides a block RAM's clock-to-output time
    if (en_o) {acts_q, weights_q} <= {acts_i, weights_i};
  end

  // Initial accumulator value: bias word read two stages ahead of the accumulator.
  localparam int Offset = Xnor && ActBipolar ? -Columns : 0;
  logic [PE*InitWidth-1:0] init;
  if (HasBias) begin : gen_bias
    logic [RowWidth-1:0]     bias_addr_q;
    logic [PE*BiasWidth-1:0] bias;
    logic [PE*InitWidth-1:0] init_q;

    always_ff @(posedge clk_i) begin : p_bias_addr
      if (!rst_ni) bias_addr_q <= '0;
      else if (en_o && valid_q[Depth-3] && last_q[Depth-3]) begin
        bias_addr_q <= bias_addr_q == RowWidth'(BiasRows - 1) ? '0 : bias_addr_q + 1'b1;
      end
    end
    mem_rom #(.Width(PE * BiasWidth), .Depth(BiasRows), .Style(2), .File(BiasFile)) i_bias (
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
  localparam int Pairs = DspShare ? DspRows / 2 : 0;
  for (genvar p = 0; p < Pairs; p++) begin : gen_pair
    matvec_pair #(
      .SIMD(SIMD), .WeightWidth(WeightWidth), .ActWidth(ActWidth), .AccWidth(AccWidth),
      .AccSigned(AccSigned), .ActSigned(ActSigned), .Step(Step), .Delay(Stages - DspStages),
      .Drop(Drop), .InitWidth(InitWidth)
    ) i_pair (
      .clk_i, .rst_ni, .en_i(en_o), .acts_i(acts_q),
      .weights_i(weights_q[2*p*LaneWord +: 2*LaneWord]),
      .valid_i(valid_q[Depth-1]), .first_i(first_q[Depth-1]), .last_i(last_q[Depth-1]),
      .init_i(init[2*p*InitWidth +: 2*InitWidth]), .acc_o(acc[2*p*AccWidth +: 2*AccWidth])
    );
  end
  for (genvar p = 2 * Pairs; p < PE; p++) begin : gen_pe
    localparam bit Dsp = p < DspRows;
    matvec_lane #(
      .SIMD(SIMD), .WeightWidth(WeightWidth), .ActWidth(ActWidth), .AccWidth(AccWidth),
      .AccSigned(AccSigned), .ActSigned(ActSigned), .WeightBipolar(WeightBipolar),
      .ActBipolar(ActBipolar), .WeightExp(WeightExp), .WeightLow(WeightLow), .ActExp(ActExp),
      .ActLow(ActLow), .IndexWidth(IndexWidth), .TableFile(TableFile), .UseDsp(Dsp),
      .DspPack(DspPack), .Step(Step), .Delay(Stages - (Dsp ? DspStages : LutStages)), .Drop(Drop),
      .InitWidth(InitWidth)
    ) i_lane (
      .clk_i, .rst_ni, .en_i(en_o), .acts_i(acts_q[(Shared ? 0 : p)*LaneActs +: LaneActs]),
      .weights_i(weights_q[p*LaneWord +: LaneWord]),
      .valid_i(valid_q[Depth-1]), .first_i(first_q[Depth-1]), .last_i(last_q[Depth-1]),
      .init_i(init[p*InitWidth +: InitWidth]), .acc_o(acc[p*AccWidth +: AccWidth])
    );
  end

  always_ff @(posedge clk_i) begin : p_acc_valid
    if (!rst_ni) acc_valid_q <= 1'b0;
    else if (en_o) acc_valid_q <= valid_q[Depth-1] & last_q[Depth-1];
  end

  stream_skid #(.Width(PE * AccWidth)) i_skid (
    .clk_i, .rst_ni, .in_valid_i(acc_valid_q), .in_ready_o(en_o), .in_data_i(acc), .out_valid_o,
    .out_ready_i, .out_data_o
  );
endmodule
`default_nettype wire
