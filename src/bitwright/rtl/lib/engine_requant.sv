// SPDX-License-Identifier: Apache-2.0
// The arithmetic of requant with all values at run time: round_shift(x * multiplier + offset,
// shift), clipped to low .. high (code_o) and as it is (raw_o, its low 32 bits). Latency 6, one a
// cycle. Rounding as in round_clip: 0 half_even, 1 half_away, 2 half_up, 3 floor, 4 ceil. shift_i
// is at most 47. Offset, shift and the rest are taken as they stand in the cycle of their stage:
// the offset 1 cycle after x, the others must hold.
`default_nettype none
module engine_requant #(
  parameter int InWidth     = 32,
  parameter int MulWidth    = 18,
  parameter int OffsetWidth = 46
) (
  input  logic                   clk_i,
  input  logic [InWidth-1:0]     x_i,
  input  logic [MulWidth-1:0]    mul_i,
  input  logic [OffsetWidth-1:0] offset_i,
  input  logic [5:0]             shift_i,
  input  logic [2:0]             rounding_i,
  input  logic [15:0]            low_i,
  input  logic [15:0]            high_i,
  output logic [7:0]             code_o,     // low bits
  output logic [31:0]            raw_o
);
  localparam int Product = InWidth + MulWidth;
  localparam int Width   = (Product > OffsetWidth ? Product : OffsetWidth) + 1;
  localparam int Half    = Width + 1;  // with one bit behind the point
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Width < 49 || Width > 63) begin : gen_check
    $error("engine_requant: sums have 49 to 63 bits");
  end
`endif

  logic signed [Product-1:0] product_q;
  logic signed [Width-1:0]   sum_q;

  always_ff @(posedge clk_i) begin : p_sum
    product_q <= $signed(x_i) * $signed(mul_i);
    sum_q     <= Width'(product_q) + Width'($signed(offset_i));
  end

  // Shift by eights, then by ones; what falls off below the bit behind the point is sticky.
  logic signed [Half-1:0] half, coarse_q, fine_q;
  logic                   coarse_sticky, coarse_sticky_q, fine_sticky_q;
  logic [6:0]             fallen;
  assign half   = {sum_q, 1'b0};
  assign fallen = coarse_q[6:0] & ~(7'h7f << shift_i[2:0]);

  logic [5:0] chunks;  // which eights fall off and hold a 1
  for (genvar k = 0; k < 6; k++) begin : gen_chunk
    assign chunks[k] = shift_i[5:3] > 3'(k) && half[8*k +: 8] != '0;
  end
  assign coarse_sticky = chunks != '0;

  always_ff @(posedge clk_i) begin : p_shift
    coarse_q        <= half >>> {shift_i[5:3], 3'b000};
    coarse_sticky_q <= coarse_sticky;
    fine_q          <= coarse_q >>> shift_i[2:0];
    fine_sticky_q   <= coarse_sticky_q | (|fallen);
  end

  logic                    up;
  logic signed [Width-1:0] rounded_q;

  logic tie_up;  // of what lies half way between two numbers
  assign tie_up = rounding_i == 3'd0 ? fine_q[1]
                : rounding_i == 3'd1 ? ~fine_q[Half-1] : rounding_i == 3'd2;
  assign up     = rounding_i == 3'd4 ? fine_q[0] | fine_sticky_q
                : rounding_i != 3'd3 && fine_q[0] && (fine_sticky_q || tie_up);

  always_ff @(posedge clk_i) begin : p_round
    rounded_q <= $signed(fine_q[Half-1:1]) + Width'({1'b0, up});
  end

  // The low bits are compared beside the question whether they are all of the number.
  logic               fits, negative, over, under;
  logic signed [16:0] value;
  assign fits     = rounded_q[Width-1:16] == '0 || rounded_q[Width-1:16] == '1;
  assign negative = rounded_q[Width-1];
  assign value    = rounded_q[16:0];
  assign over     = fits ? value > 17'($signed(high_i)) : ~negative;
  assign under    = fits ? value < 17'($signed(low_i)) : negative;

  always_ff @(posedge clk_i) begin : p_clip
    code_o <= over ? high_i[7:0] : under ? low_i[7:0] : value[7:0];
    raw_o  <= rounded_q[31:0];
  end
endmodule
`default_nettype wire
