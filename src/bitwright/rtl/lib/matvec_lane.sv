// SPDX-License-Identifier: Apache-2.0
// One row of `mac_array`: SIMD products and their sum, see `mac_sum` for how the flags come. acts_i
// and weights_i enter in cycle t; their sum reaches the accumulator input Stages enabled cycles
// later, at least as many as the row has of its own (`mac_array` counts them). `mac_array` says
// what the parameters mean.
// Bipolar times bipolar counts equal bits; the sum of n products is 2 * count - n, and the
// "- n" part of the whole row is expected in init_i. With UseDsp one multiplication makes DspPack
// products and their sum.
`default_nettype none
module matvec_lane #(
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
  parameter bit UseDsp        = 1'b0,
  parameter int DspPack       = 1,
  parameter int Step          = 1,
  parameter int Drop          = -1,
  parameter int Delay         = 0,
  parameter int InitWidth     = 17,
  localparam int WordWidth = IndexWidth > 0 ? IndexWidth : WeightWidth
) (
  input  logic                      clk_i,
  input  logic                      rst_ni,
  input  logic                      en_i,
  input  logic [SIMD*ActWidth-1:0]  acts_i,
  input  logic [SIMD*WordWidth-1:0] weights_i,
  input  logic                      valid_i,
  input  logic                      first_i,
  input  logic                      last_i,
  input  logic [InitWidth-1:0]      init_i,
  output logic [AccWidth-1:0]       acc_o
);
  localparam bit Xnor  = WeightBipolar && ActBipolar;
  localparam bit Float = WeightExp > 0 || ActExp > 0;
  // Bipolar activations are the one-bit factor, so the operands change places.
  localparam bit Swap      = ActBipolar && !WeightBipolar;
  localparam bit OneBit    = WeightBipolar || Swap;
  localparam bit Packed    = UseDsp && !OneBit && !Float && DspPack > 1;
  localparam int OpWidth   = Swap ? WeightWidth : ActWidth;
  localparam bit OpSigned  = Swap || ActSigned;
  localparam int FacWidth  = Swap ? 1 : WeightWidth;
  // A product of floats is one number, at its place: largest exponents, magnitudes and a sign.
  localparam int ActMag    = ActWidth - ActExp;
  localparam int WeightMag = WeightWidth - WeightExp;
  localparam int ActTop    = ActExp == 0 ? 0 : (1 << ActExp) - (ActLow == 0 ? 2 : 1);
  localparam int WeightTop = WeightExp == 0 ? 0 : (1 << WeightExp) - (WeightLow == 0 ? 2 : 1);
  localparam int FloatTerm = 1 + ActMag + WeightMag + ActTop + WeightTop;
  localparam int Pack      = Packed ? DspPack : Xnor ? 2 : 1;
  localparam int Terms     = (SIMD + Pack - 1) / Pack;
  localparam int Digits    = (UseDsp || OneBit || Float) ? 1 : (WeightWidth + 1) / 2;
  localparam int TermWidth = Xnor ? 2 : Float ? FloatTerm
                           : Packed ? ActWidth + WeightWidth + $clog2(DspPack)
                           : OpWidth + (OneBit ? 1 : UseDsp ? FacWidth : 2);
  localparam int Exact     = OpWidth + FacWidth + (SIMD > 1 ? $clog2(SIMD) : 0);
  // Adders behind a product: a product in LUTs is one more, and registered as such, if nothing else
  // of the row is, anyhow.
  localparam int Levels    = (Terms > 1 ? $clog2(Terms) : 0) + (Digits > 1 ? $clog2(Digits) : 0);
  localparam bit Keeps     = (Levels + 1) % Step == 0 || Levels + 1 < Step;

  logic [SIMD*ActWidth-1:0]          acts;
  logic [SIMD*WeightWidth-1:0]       weights;
  logic [Digits*Terms*TermWidth-1:0] terms;  // digit by digit
  logic [Terms-1:0]                  carries;

  // A codebook: the words are indices into one table of weights.
  if (IndexWidth > 0) begin : gen_table
    logic [SIMD*ActWidth-1:0] acts_q;
    for (genvar s = 0; s < SIMD; s++) begin : gen_weight
      mem_rom #(
        .Width(WeightWidth), .Depth(1 << IndexWidth), .Style(2), .File(TableFile)
      ) i_table (
        .clk_i, .en_i, .addr_i(weights_i[s*IndexWidth +: IndexWidth]),
        .data_o(weights[s*WeightWidth +: WeightWidth])
      );
    end
    always_ff @(posedge clk_i) begin : p_acts
      if (en_i) acts_q <= acts_i;
    end
    assign acts = acts_q;
  end else begin : gen_no_table
    assign acts    = acts_i;
    assign weights = weights_i;
  end

  if (Xnor) begin : gen_xnor
    popcount_pairs #(.Bits(SIMD), .Registered(Keeps)) i_pairs (
      .clk_i, .en_i, .a_i(acts), .b_i(weights), .terms_o(terms)
    );
    assign carries = '0;
  end else if (Float) begin : gen_float
    for (genvar s = 0; s < SIMD; s++) begin : gen_lane
      mul_float #(
        .ActWidth(ActWidth), .ActSigned(ActSigned), .ActBipolar(ActBipolar), .ActExp(ActExp),
        .ActLow(ActLow), .WeightWidth(WeightWidth), .WeightBipolar(WeightBipolar),
        .WeightExp(WeightExp), .WeightLow(WeightLow), .UseDsp(UseDsp), .TermWidth(TermWidth)
      ) i_mul (
        .clk_i, .en_i, .act_i(acts[s*ActWidth +: ActWidth]),
        .weight_i(weights[s*WeightWidth +: WeightWidth]),
        .term_o(terms[s*TermWidth +: TermWidth])
      );
    end
    assign carries = '0;
  end else if (Packed) begin : gen_packed
    // Zeros where the products of the last multiplication run out.
    logic [Terms*Pack*ActWidth-1:0]    all_acts;
    logic [Terms*Pack*WeightWidth-1:0] all_weights;

    assign all_acts    = (Terms*Pack*ActWidth)'(acts);
    assign all_weights = (Terms*Pack*WeightWidth)'(weights);
    for (genvar t = 0; t < Terms; t++) begin : gen_term
      mul_packed #(
        .ActWidth(ActWidth), .WeightWidth(WeightWidth), .ActSigned(ActSigned), .Products(Pack)
      ) i_mul (
        .clk_i, .en_i, .acts_i(all_acts[t*Pack*ActWidth +: Pack*ActWidth]),
        .weights_i(all_weights[t*Pack*WeightWidth +: Pack*WeightWidth]),
        .term_o(terms[t*TermWidth +: TermWidth]), .carry_o(carries[t])
      );
    end
  end else begin : gen_products
    for (genvar s = 0; s < SIMD; s++) begin : gen_lane
      logic [OpWidth-1:0]          operand;
      logic [FacWidth-1:0]         factor;
      logic [Digits*TermWidth-1:0] digits;

      if (Swap) begin : gen_swap
        assign operand = weights[s*WeightWidth +: WeightWidth];
        assign factor  = acts[s*ActWidth +: 1];
      end else begin : gen_straight
        assign operand = acts[s*ActWidth +: ActWidth];
        assign factor  = weights[s*WeightWidth +: WeightWidth];
      end
      mul_terms #(
        .ActWidth(OpWidth), .ActSigned(OpSigned), .WeightWidth(FacWidth), .WeightBipolar(OneBit),
        .UseDsp(UseDsp), .Registered(UseDsp || Keeps), .Operands(UseDsp)
      ) i_mul (
        .clk_i, .en_i, .act_i(operand), .weight_i(factor), .terms_o(digits)
      );
      for (genvar d = 0; d < Digits; d++) begin : gen_digit
        assign terms[(d*Terms+s)*TermWidth +: TermWidth] = digits[d*TermWidth +: TermWidth];
      end
    end
    assign carries = '0;
  end

  mac_sum #(
    .Terms(Terms), .TermWidth(TermWidth), .Digits(Digits), .LowSigned(OpSigned),
    .TopSigned(!Xnor), .Doubled(Xnor), .Step(Step), .Delay(Delay), .Exact(Exact), .Drop(Drop),
    .AccWidth(AccWidth), .AccSigned(AccSigned), .InitWidth(InitWidth)
  ) i_sum (
    .clk_i, .rst_ni, .en_i, .terms_i(terms), .carries_i(carries), .valid_i, .first_i, .last_i,
    .init_i, .acc_o
  );
endmodule
`default_nettype wire
