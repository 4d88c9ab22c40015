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
  // Of its number, the bits below patch_i are the column, the others the row.
  always_comb begin : p_place
    place_o = base_i;
    for (int k = 0; k < Bits; k++) begin
      if (((Number >> k) & 1) != 0) begin
        place_o = place_o + (4'(k) < 4'(patch_i) ? pixel_step_i << k
                                                 : row_step_i << (4'(k) - 4'(patch_i)));
      end
    end
  end
endmodule
`default_nettype wire
