// SPDX-License-Identifier: Apache-2.0
// One channel of requant: multiply, add, round, clip. x_i and mul_i enter in cycle t; offset_i is
// taken in cycle t + 1 + Levels; code_o (a register behind a multiplexer) shows the result in
// cycle t + 4 + Levels, Levels = $clog2(digits), or 1 for UseDsp; 3 cycles later for a float
// (OutMant >= 0). See requant for the parameters.
`default_nettype none
module requant_lane #(
  parameter int InWidth     = 16,
  parameter bit InSigned    = 1'b1,
  parameter int MulWidth    = 12,
  parameter int OffsetWidth = 24,
  parameter int Shift       = 12,
  parameter int OutWidth    = 8,
  parameter int OutLo       = -128,
  parameter int OutHi       = 127,
  parameter int Rounding    = 0,
  parameter int Power       = -1,
  parameter int OutMant     = -1,
  parameter int OutLow      = 0,
  parameter bit UseDsp      = 1'b0
) (
  input  logic                   clk_i,
  input  logic                   en_i,
  input  logic [InWidth-1:0]     x_i,
  input  logic [MulWidth-1:0]    mul_i,
  input  logic [OffsetWidth-1:0] offset_i,
  output logic [OutWidth-1:0]    code_o
);
  localparam int XWidth    = InSigned ? InWidth : InWidth + 1;
  localparam int Digits    = UseDsp || Power >= 0 ? 1 : (MulWidth + 1) / 2;
  localparam int TermWidth = Power >= 0 ? XWidth + Power : UseDsp ? XWidth + MulWidth : XWidth + 2;
  localparam int WideWidth = TermWidth + 2 * (Digits - 1);
  localparam int TreeWidth = WideWidth + (Digits > 1 ? $clog2(Digits) : 0);
  // Bits that the tree's sum really needs.
  localparam int Product   = Power >= 0 ? TermWidth : XWidth + MulWidth;
  localparam int MaxWidth  = Product > OffsetWidth ? Product : OffsetWidth;
  // One bit for the offset, one for the rounding constant.
  localparam int Width     = (MaxWidth > Shift ? MaxWidth : Shift) + 2;

  logic [XWidth-1:0]           x_ext;
  logic [Digits*TermWidth-1:0] terms;
  logic [Digits*WideWidth-1:0] wide;
  logic [TreeWidth-1:0]        tree;

  if (InSigned) begin : gen_signed
    assign x_ext = x_i;
  end else begin : gen_unsigned
    assign x_ext = {1'b0, x_i};
  end

  if (Power >= 0) begin : gen_move
    always_ff @(posedge clk_i) begin : p_move
      if (en_i) terms <= TermWidth'($signed(x_ext)) << Power;
    end
    logic unused_factor;
    assign unused_factor = ^mul_i;
  end else begin : gen_multiply
    mul_terms #(
      .ActWidth(XWidth), .WeightWidth(MulWidth), .UseDsp(UseDsp), .Operands(UseDsp)
    ) i_mul (
      .clk_i, .en_i, .act_i(x_ext), .weight_i(mul_i), .terms_o(terms)
    );
  end
  for (genvar d = 0; d < Digits; d++) begin : gen_digit
    assign wide[d*WideWidth +: WideWidth] =
      WideWidth'($signed(terms[d*TermWidth +: TermWidth])) << (2 * d);
  end
  adder_tree #(.Terms(Digits), .Width(WideWidth)) i_tree (
    .clk_i, .en_i, .terms_i(wide), .sum_o(tree)
  );

  logic signed [Width-1:0] sum_q;

  always_ff @(posedge clk_i) begin : p_sum
    if (en_i) sum_q <= Width'($signed(tree)) + Width'($signed(offset_i));
  end

  if (OutMant >= 0) begin : gen_float
    round_float #(
      .InWidth(Width), .Shift(Shift), .Mant(OutMant), .Low(OutLow), .OutWidth(OutWidth),
      .OutLo(OutLo), .OutHi(OutHi), .Rounding(Rounding)
    ) i_round (
      .clk_i, .en_i, .x_i(sum_q), .code_o
    );
  end else begin : gen_integer
    round_clip #(
      .Width(Width), .Shift(Shift), .OutWidth(OutWidth), .OutLo(OutLo), .OutHi(OutHi),
      .Rounding(Rounding)
    ) i_round (
      .clk_i, .en_i, .x_i(sum_q), .code_o
    );
  end

  logic unused;
  assign unused = ^tree;
endmodule
`default_nettype wire
