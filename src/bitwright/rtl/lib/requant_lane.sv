// SPDX-License-Identifier: Apache-2.0
// One channel of requant: multiply, add, round, clip. x_i and mul_i enter in cycle t; offset_i is
// taken in cycle t + 1 + Levels; code_o (a register behind a multiplexer) shows the result in
// cycle t + 4 + Levels, Levels = $clog2(digits). See requant for the parameters.
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
  localparam int Digits    = UseDsp ? 1 : (MulWidth + 1) / 2;
  localparam int TermWidth = UseDsp ? XWidth + MulWidth : XWidth + 2;
  localparam int WideWidth = TermWidth + 2 * (Digits - 1);
  localparam int TreeWidth = WideWidth + (Digits > 1 ? $clog2(Digits) : 0);
  localparam int Product   = XWidth + MulWidth;  // bits that the tree's sum really needs
  localparam int MaxWidth  = Product > OffsetWidth ? Product : OffsetWidth;
  // One bit for the offset, one for the rounding constant.
  localparam int Width     = (MaxWidth > Shift ? MaxWidth : Shift) + 2;
  localparam int Integer   = Width - Shift > OutWidth ? Width - Shift : OutWidth;
  localparam int CmpWidth  = Integer + 2;

  logic [XWidth-1:0]           x_ext;
  logic [Digits*TermWidth-1:0] terms;
  logic [Digits*WideWidth-1:0] wide;
  logic [TreeWidth-1:0]        tree;

  if (InSigned) begin : gen_signed
    assign x_ext = x_i;
  end else begin : gen_unsigned
    assign x_ext = {1'b0, x_i};
  end

  mul_terms #(.ActWidth(XWidth), .WeightWidth(MulWidth), .UseDsp(UseDsp)) i_mul (
    .clk_i, .en_i, .act_i(x_ext), .weight_i(mul_i), .terms_o(terms)
  );
  for (genvar d = 0; d < Digits; d++) begin : gen_digit
    assign wide[d*WideWidth +: WideWidth] =
      WideWidth'($signed(terms[d*TermWidth +: TermWidth])) << (2 * d);
  end
  adder_tree #(.Terms(Digits), .Width(WideWidth)) i_tree (
    .clk_i, .en_i, .terms_i(wide), .sum_o(tree)
  );

  // Rounding adds a constant and at most one bit of the sum, then drops the low Shift bits.
  logic signed [Width-1:0]    sum_q, bias, rounded_q;
  logic signed [CmpWidth-1:0] shifted;
  logic                       tie_bit;

  if (Shift == 0 || Rounding == 3) begin : gen_floor
    assign bias    = '0;
    assign tie_bit = 1'b0;
  end else if (Rounding == 4) begin : gen_ceil
    assign bias    = (Width'(1) <<< Shift) - Width'(1);
    assign tie_bit = 1'b0;
  end else if (Rounding == 2) begin : gen_half_up
    assign bias    = Width'(1) <<< (Shift - 1);
    assign tie_bit = 1'b0;
  end else begin : gen_tie
    assign bias = (Width'(1) <<< (Shift - 1)) - Width'(1);
    if (Rounding == 1) begin : gen_away
      assign tie_bit = ~sum_q[Width-1];
    end else begin : gen_even
      assign tie_bit = sum_q[Shift];
    end
  end

  assign shifted = CmpWidth'($signed(rounded_q[Width-1:Shift]));

  logic unused;
  assign unused = &{1'b0, rounded_q, tree};

  logic over, under;
  assign over  = shifted > CmpWidth'(OutHi);
  assign under = shifted < CmpWidth'(OutLo);

  always_ff @(posedge clk_i) begin : p_pipe
    if (en_i) begin
      sum_q     <= Width'($signed(tree)) + Width'($signed(offset_i));
      rounded_q <= sum_q + bias + Width'({1'b0, tie_bit});
      code_o    <= over ? OutWidth'(OutHi) : under ? OutWidth'(OutLo) : OutWidth'(shifted);
    end
  end
endmodule
`default_nettype wire
