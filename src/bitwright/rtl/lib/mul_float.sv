// SPDX-License-Identifier: Apache-2.0
// Exact product of an activation and a weight of which at least one is a code of sign, exponent
// and mantissa (ActExp or WeightExp > 0, then ActLow, WeightLow as float_split): the magnitude of
// one times the signed other, moved to its place in a fixed-point number of units
// lsb(activation) * lsb(weight). The other operand may be an integer (signed if ActSigned, weights
// always) or one bit (1 = +1, 0 = -1). Weights without mantissa take no multiplier.
// Latency 2 if the magnitude is one bit, else 3 + $clog2(digits), digits = ceil(magnitude/2) or 1
// for UseDsp. TermWidth must be that of the exact product, which the caller computes.
`default_nettype none
module mul_float #(
  parameter int ActWidth      = 8,
  parameter bit ActSigned     = 1'b0,
  parameter bit ActBipolar    = 1'b0,
  parameter int ActExp        = 0,
  parameter int ActLow        = 0,
  parameter int WeightWidth   = 8,
  parameter bit WeightBipolar = 1'b0,
  parameter int WeightExp     = 4,
  parameter int WeightLow     = 0,
  parameter bit UseDsp        = 1'b0,
  parameter int TermWidth     = 32
) (
  input  logic                   clk_i,
  input  logic                   en_i,
  input  logic [ActWidth-1:0]    act_i,
  input  logic [WeightWidth-1:0] weight_i,
  output logic [TermWidth-1:0]   term_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (ActExp == 0 && WeightExp == 0) begin : gen_check
    $error("mul_float: one operand must have an exponent");
  end
`endif

  localparam int ActMag    = ActExp > 0 ? ActWidth - ActExp : ActWidth;
  localparam int WeightMag = WeightExp > 0 ? WeightWidth - WeightExp : WeightWidth;
  // The factor is a magnitude: the weight's, but the activation's if only that has one or if that
  // is shorter; beside a sign there is nothing to multiply.
  localparam bit ActFactor = WeightExp == 0 || (ActExp > 0 && ActMag < WeightMag);
  localparam bit OneBit    = ActFactor ? WeightBipolar : ActBipolar;
  localparam int MagWidth  = OneBit ? 1 : ActFactor ? ActMag : WeightMag;
  localparam int OpWidth   = OneBit ? (ActFactor ? ActMag : WeightMag)
                                    : (ActFactor ? WeightMag : ActMag);
  localparam bit OpSigned  = !OneBit && (ActFactor ? WeightExp == 0 : ActExp == 0 && ActSigned);
  localparam int NegWidth  = OpWidth + 1;
  localparam int Digits    = UseDsp ? 1 : (MagWidth + 1) / 2;
  localparam int Latency   = MagWidth == 1 ? 1 : 2 + (Digits > 1 ? $clog2(Digits) : 0);
  localparam int ProdWidth = MagWidth == 1 ? NegWidth : NegWidth + MagWidth;
  localparam int ShWidth   = (ActExp > WeightExp ? ActExp : WeightExp) + 1;

  logic               act_neg, weight_neg;
  logic [ActMag-1:0]    act_mag;
  logic [WeightMag-1:0] weight_mag;
  logic [ShWidth-1:0] act_shift, weight_shift;

  if (ActExp > 0) begin : gen_act_float
    logic [ActExp-1:0] places;
    float_split #(.Exp(ActExp), .Mant(ActMag - 1), .Low(ActLow)) i_split (
      .code_i(act_i), .sign_o(act_neg), .mag_o(act_mag), .shift_o(places)
    );
    assign act_shift = ShWidth'(places);
  end else begin : gen_act_number
    assign act_mag   = act_i;
    assign act_neg   = ActBipolar & ~act_i[0];
    assign act_shift = '0;
  end

  if (WeightExp > 0) begin : gen_weight_float
    logic [WeightExp-1:0] places;
    float_split #(.Exp(WeightExp), .Mant(WeightMag - 1), .Low(WeightLow)) i_split (
      .code_i(weight_i), .sign_o(weight_neg), .mag_o(weight_mag), .shift_o(places)
    );
    assign weight_shift = ShWidth'(places);
  end else begin : gen_weight_number
    assign weight_mag   = weight_i;
    assign weight_neg   = WeightBipolar & ~weight_i[0];
    assign weight_shift = '0;
  end

  // Signs go to the operand; the factor and the two shifts, added, wait beside it.
  logic [OpWidth-1:0]          operand;
  logic signed [NegWidth-1:0]  wide, signed_q;
  logic [MagWidth-1:0]         factor, factor_q;
  logic [ShWidth-1:0]          shift_q;

  if (OneBit) begin : gen_one_bit
    if (ActFactor) begin : gen_act
      assign operand = act_mag;
    end else begin : gen_weight
      assign operand = weight_mag;
    end
    assign factor = 1'b1;
  end else if (ActFactor) begin : gen_act_factor
    assign operand = weight_mag;
    assign factor  = act_mag;
  end else begin : gen_weight_factor
    assign operand = act_mag;
    assign factor  = weight_mag;
  end
  assign wide = {OpSigned & operand[OpWidth-1], operand};

  always_ff @(posedge clk_i) begin : p_sign
    if (en_i) begin
      signed_q <= act_neg ^ weight_neg ? -wide : wide;
      factor_q <= factor;
      shift_q  <= act_shift + weight_shift;
    end
  end

  logic signed [ProdWidth-1:0] product;
  logic [ShWidth-1:0]          shift;

  if (MagWidth == 1) begin : gen_sign_only
    assign product = factor_q[0] ? signed_q : '0;
    assign shift   = shift_q;
  end else begin : gen_multiply
    localparam int PieceWidth = NegWidth + (UseDsp ? MagWidth : 2);
    localparam int WideWidth  = PieceWidth + 2 * (Digits - 1);
    localparam int TreeWidth  = WideWidth + (Digits > 1 ? $clog2(Digits) : 0);
    logic [Digits*PieceWidth-1:0]      pieces;
    logic [Digits*WideWidth-1:0]       moved;
    logic [TreeWidth-1:0]              tree;
    logic [(Latency-1)*ShWidth-1:0]    shifts_q;

    mul_terms #(
      .ActWidth(NegWidth), .WeightWidth(MagWidth), .UseDsp(UseDsp), .WeightSigned(1'b0)
    ) i_mul (
      .clk_i, .en_i, .act_i(signed_q), .weight_i(factor_q), .terms_o(pieces)
    );
    for (genvar d = 0; d < Digits; d++) begin : gen_digit
      assign moved[d*WideWidth +: WideWidth] =
        WideWidth'($signed(pieces[d*PieceWidth +: PieceWidth])) << (2 * d);
    end
    adder_tree #(.Terms(Digits), .Width(WideWidth)) i_tree (
      .clk_i, .en_i, .terms_i(moved), .sum_o(tree)
    );
    assign product = tree[ProdWidth-1:0];
    logic unused_top;
    assign unused_top = ^tree;

    always_ff @(posedge clk_i) begin : p_shift
      if (en_i) shifts_q <= ((Latency-1)*ShWidth)'({shifts_q, shift_q});
    end
    assign shift = shifts_q[(Latency-1)*ShWidth-1 -: ShWidth];
  end

  // A one-bit operand has a sign only.
  logic unused;
  assign unused = ^{act_mag, weight_mag};

  always_ff @(posedge clk_i) begin : p_place
    if (en_i) term_o <= TermWidth'(product) << shift;
  end
endmodule
`default_nettype wire
