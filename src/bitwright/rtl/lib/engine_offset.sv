// SPDX-License-Identifier: Apache-2.0
// base + column * pixel step + row * row step, for a number of pixels Number whose column are its
// lowest patch_i bits, its row the others. Products of a few bits: sums, which need no multiplier.
`default_nettype none
module engine_offset #(
  parameter int Bits   = 2,  // of Number
  parameter int Number = 1,
  parameter int Width  = 15
) (
  input  logic [3:0]       patch_i,
  input  logic [Width-1:0] base_i,
  input  logic [Width-1:0] pixel_step_i,
  input  logic [Width-1:0] row_step_i,
  output logic [Width-1:0] place_o
);
  logic [Bits-1:0]           column, row;
  logic [(Bits+1)*Width-1:0] sums;
  assign column = Bits'(Number) & ~({Bits{1'b1}} << patch_i);
  assign row    = Bits'(Number) >> patch_i;

  assign sums[0 +: Width] = base_i;
  for (genvar k = 0; k < Bits; k++) begin : gen_bit
    assign sums[(k+1)*Width +: Width] = sums[k*Width +: Width]
      + ((pixel_step_i << k) & {Width{column[k]}}) + ((row_step_i << k) & {Width{row[k]}});
  end
  assign place_o = sums[Bits*Width +: Width];
endmodule
`default_nettype wire
