// SPDX-License-Identifier: Apache-2.0
// One processing element of matvec: SIMD products, adder tree, accumulator. The pipeline moves
// when en_i is high. acts_i and weights_i enter in cycle t; their sum reaches the accumulator
// input 1 + ExtraLatency + TreeLevels cycles later, where the flags of the same beat (valid,
// first, last), and init_i, must arrive; acc_o shows the new value one cycle after that.
// `mac_array` has the numbers ExtraLatency and TreeLevels, and what the parameters mean.
// Bipolar times bipolar counts equal bits; the sum of n products is 2 * count - n, and the
// "- n" part of the whole row is expected in init_i. No register here is reset; rst_ni only keeps
// the overflow check quiet until the flags of the beats are known.
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
  localparam int ActExt    = Swap ? WeightWidth : (ActSigned ? ActWidth : ActWidth + 1);
  localparam int FacWidth  = Swap ? 1 : WeightWidth;
  localparam bit OneBit    = WeightBipolar || Swap;
  // A product of floats is one number, at its place: largest exponents, magnitudes and a sign.
  localparam int ActMag    = ActWidth - ActExp;
  localparam int WeightMag = WeightWidth - WeightExp;
  localparam int ActTop    = ActExp == 0 ? 0 : (1 << ActExp) - (ActLow == 0 ? 2 : 1);
  localparam int WeightTop = WeightExp == 0 ? 0 : (1 << WeightExp) - (WeightLow == 0 ? 2 : 1);
  localparam int FloatTerm = 1 + ActMag + WeightMag + ActTop + WeightTop;
  localparam int Digits    = (UseDsp || OneBit || Float) ? 1 : (WeightWidth + 1) / 2;
  localparam int TermWidth = Xnor ? 3 : Float ? FloatTerm
                                : ActExt + (OneBit ? 1 : UseDsp ? FacWidth : 2);
  localparam int Terms     = Xnor ? (SIMD + 1) / 2 : SIMD;
  localparam int TreeWidth = TermWidth + (Terms > 1 ? $clog2(Terms) : 0);
  // A digit's sum moved to its place, and the sum of all digits.
  localparam int WideWidth = TreeWidth + 2 * (Digits - 1);
  localparam int AllWidth  = WideWidth + (Digits > 1 ? $clog2(Digits) : 0);
  localparam int SumWidth  = Xnor ? AllWidth + 1 : AllWidth;

  logic [SIMD*ActWidth-1:0]          acts;
  logic [SIMD*WeightWidth-1:0]       weights;
  logic [Digits*Terms*TermWidth-1:0] terms;  // digit by digit
  logic [Digits*WideWidth-1:0]       wide;
  logic [AllWidth-1:0]               tree;
  logic signed [SumWidth-1:0]  sum;
  logic signed [AccWidth-1:0]  acc_q;

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
    popcount_pairs #(.Bits(SIMD)) i_pairs (
      .clk_i, .en_i, .a_i(acts), .b_i(weights), .terms_o(terms)
    );
    assign sum = {tree, 1'b0};
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
    assign sum = $signed(tree);
  end else begin : gen_products
    for (genvar s = 0; s < SIMD; s++) begin : gen_lane
      logic [ActExt-1:0]   act;
      logic [FacWidth-1:0] factor;

      if (Swap) begin : gen_swap
        assign act    = weights[s*WeightWidth +: WeightWidth];
        assign factor = acts[s*ActWidth +: 1];
      end else if (ActSigned) begin : gen_signed
        assign act    = acts[s*ActWidth +: ActWidth];
        assign factor = weights[s*WeightWidth +: WeightWidth];
      end else begin : gen_unsigned
        assign act    = {1'b0, acts[s*ActWidth +: ActWidth]};
        assign factor = weights[s*WeightWidth +: WeightWidth];
      end

      logic [Digits*TermWidth-1:0] digits;

      mul_terms #(
        .ActWidth(ActExt), .WeightWidth(FacWidth), .WeightBipolar(OneBit), .UseDsp(UseDsp)
      ) i_mul (
        .clk_i, .en_i, .act_i(act), .weight_i(factor),
        .terms_o(digits)
      );
      for (genvar d = 0; d < Digits; d++) begin : gen_digit
        assign terms[(d*Terms+s)*TermWidth +: TermWidth] = digits[d*TermWidth +: TermWidth];
      end
    end
    assign sum = $signed(tree);
  end

  // One tree a digit: its numbers stay narrow; the digits meet at the end.
  for (genvar d = 0; d < Digits; d++) begin : gen_tree
    logic [TreeWidth-1:0] partial;
    adder_tree #(.Terms(Terms), .Width(TermWidth)) i_tree (
      .clk_i, .en_i, .terms_i(terms[d*Terms*TermWidth +: Terms*TermWidth]), .sum_o(partial)
    );
    assign wide[d*WideWidth +: WideWidth] = WideWidth'($signed(partial)) << (2 * d);
  end
  adder_tree #(.Terms(Digits), .Width(WideWidth)) i_digits (
    .clk_i, .en_i, .terms_i(wide), .sum_o(tree)
  );

  // Modulo 2^AccWidth: steps in between may wrap, the final value fits (checked below).
  logic [AccWidth-1:0] start;
  assign start = first_i ? AccWidth'($signed(init_i)) : acc_q;

  always_ff @(posedge clk_i) begin : p_acc
    if (en_i && valid_i) acc_q <= start + AccWidth'(sum);
  end

  assign acc_o = acc_q;

`ifdef BITWRIGHT_CHECKS
  longint exact_q;
  logic   done_q;

  initial done_q = 1'b0;

  // Not always_ff: that would have to be the only process of what `initial` sets.
  always @(posedge clk_i) begin : p_exact
    if (en_i && valid_i) begin
      exact_q <= (first_i ? longint'($signed(init_i)) : exact_q) + longint'(sum);
    end
    if (!rst_ni) done_q <= 1'b0;
    else if (en_i) done_q <= valid_i & last_i;
  end

  if (AccSigned) begin : gen_check_signed
    no_overflow: assert property (@(posedge clk_i) done_q |-> longint'($signed(acc_q)) == exact_q);
  end else begin : gen_check_unsigned
    no_overflow: assert property (@(posedge clk_i)
      done_q |-> longint'($unsigned(acc_q)) == exact_q);
  end
`else
  logic unused;
  assign unused = ^{last_i, rst_ni, init_i, AccSigned};
`endif
endmodule
`default_nettype wire
