// SPDX-License-Identifier: Apache-2.0
// clip(round_shift(x, Shift), OutLo, OutHi), latency 2. Rounding: 0 half_even, 1 half_away,
// 2 half_up, 3 floor, 4 ceil. x_i must leave one bit for the rounding constant.
`default_nettype none
module round_clip #(
  parameter int Width    = 24,
  parameter int Shift    = 12,
  parameter int OutWidth = 8,
  parameter int OutLo    = -128,
  parameter int OutHi    = 127,
  parameter int Rounding = 0
) (
  input  logic                clk_i,
  input  logic                en_i,
  input  logic [Width-1:0]    x_i,
  output logic [OutWidth-1:0] code_o
);
  localparam int Integer  = Width - Shift > OutWidth ? Width - Shift : OutWidth;
  localparam int CmpWidth = Integer + 2;

  // Rounding adds a constant and at most one bit of the number, then drops the low Shift bits.
  logic signed [Width-1:0]    x, bias, rounded_q;
  logic signed [CmpWidth-1:0] shifted;
  logic                       tie_bit;

  assign x = x_i;

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
      assign tie_bit = ~x[Width-1];
    end else begin : gen_even
      assign tie_bit = x[Shift];
    end
  end

  assign shifted = CmpWidth'($signed(rounded_q[Width-1:Shift]));

  logic unused;
  assign unused = &{1'b0, rounded_q};

  logic over, under;
  assign over  = shifted > CmpWidth'(OutHi);
  assign under = shifted < CmpWidth'(OutLo);

  always_ff @(posedge clk_i) begin : p_pipe
    if (en_i) begin
      rounded_q <= x + bias + Width'({1'b0, tie_bit});
      code_o    <= over ? OutWidth'(OutHi) : under ? OutWidth'(OutLo) : OutWidth'(shifted);
    end
  end
endmodule
`default_nettype wire
