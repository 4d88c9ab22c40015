// SPDX-License-Identifier: Apache-2.0
// A fixed-point number with Shift fraction bits to the code of a float of Mant mantissa bits whose
// smallest step is 1, with one rounding: sign, place of the leading one, Mant bits behind it.
// Low as float_split: 0 denormals, 1 numbers below (1 + 2^-Mant) * 2^Mant become zero. A magnitude
// code (exponent, mantissa) beyond OutHi becomes OutHi, of negative numbers beyond -OutLo that; the
// code of zero has no sign. Rounding: 0 half_even, 2 half_up, 3 floor. Latency 5.
`default_nettype none
module round_float #(
  parameter int InWidth  = 24,
  parameter int Shift    = 8,
  parameter int Mant     = 3,
  parameter int Low      = 0,
  parameter int OutWidth = 8,
  parameter int OutLo    = -126,
  parameter int OutHi    = 126,
  parameter int Rounding = 0
) (
  input  logic                clk_i,
  input  logic                en_i,
  input  logic [InWidth-1:0]  x_i,
  output logic [OutWidth-1:0] code_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Shift < 0 || Mant < 0 || OutWidth < Mant + 2 || OutLo > 0 || OutHi < 0 || Low < 0 || Low > 1
      || !(Rounding == 0 || Rounding == 2 || Rounding == 3)) begin : gen_check
    $error("round_float: a width, OutLo..OutHi, Low or Rounding is out of range");
  end
`endif

  // A magnitude of Width bits: room for the kept bits, and for one that decides the rounding.
  localparam int Least = Shift + Mant + 3;
  localparam int Width = InWidth > Least ? InWidth : Least;
  // A number that is moved up by Top places keeps the bits from 1 on; less, larger ones.
  localparam int Top      = Width - 1 - Shift - Mant;
  localparam int UpWidth  = $clog2(Top + 1);
  localparam int MagWidth = UpWidth + Mant + 2 > OutWidth ? UpWidth + Mant + 2 : OutWidth;

  logic             neg1_q, neg2_q, neg3_q, neg4_q;
  logic [Width-1:0] mag1_q, mag2_q, moved, wide;
  logic [UpWidth-1:0] up, up_q, drop_q;
  logic [Mant:0]      kept_q;
  logic               guard_q, sticky_q, more;
  logic [MagWidth-1:0] code4, code4_q;

  assign wide = Width'($signed(x_i));

  // Zeros in front of the leading one, at most Top.
  always_comb begin : p_lead
    up = UpWidth'(Top);
    for (int i = 0; i < Top; i++) begin
      if (mag1_q[Width-Top+i]) up = UpWidth'(Top - 1 - i);
    end
  end

  assign moved = mag2_q << up_q;

  if (Rounding == 0) begin : gen_even
    assign more = guard_q & (sticky_q | kept_q[0]);
  end else if (Rounding == 2) begin : gen_up
    assign more = guard_q & (sticky_q | ~neg3_q);
  end else begin : gen_floor
    assign more = neg3_q & (guard_q | sticky_q);
  end

  // The leading one and a carry add themselves to the exponent field.
  if (Low == 0) begin : gen_denormal
    assign code4 = (MagWidth'(drop_q) << Mant) + MagWidth'(kept_q) + MagWidth'(more);
  end else begin : gen_flush
    logic [MagWidth-1:0] sum;
    assign sum   = (MagWidth'(drop_q) << Mant) + MagWidth'(kept_q) + MagWidth'(more);
    assign code4 = sum > MagWidth'(1 << Mant) ? sum - MagWidth'(1 << Mant) : '0;
  end

  logic [MagWidth-1:0] most, clipped;
  assign most    = neg4_q ? MagWidth'(-OutLo) : MagWidth'(OutHi);
  assign clipped = code4_q > most ? most : code4_q;

  always_ff @(posedge clk_i) begin : p_pipe
    if (en_i) begin
      neg1_q   <= wide[Width-1];
      mag1_q   <= wide[Width-1] ? -wide : wide;
      neg2_q   <= neg1_q;
      mag2_q   <= mag1_q;
      up_q     <= up;
      neg3_q   <= neg2_q;
      kept_q   <= moved[Width-1 -: Mant+1];
      guard_q  <= moved[Width-Mant-2];
      sticky_q <= |moved[Width-Mant-3:0];
      drop_q   <= UpWidth'(Top) - up_q;
      neg4_q   <= neg3_q;
      code4_q  <= code4;
      code_o   <= {neg4_q & |clipped, clipped[OutWidth-2:0]};
    end
  end

  logic unused;
  assign unused = ^clipped;
endmodule
`default_nettype wire
