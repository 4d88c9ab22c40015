// SPDX-License-Identifier: Apache-2.0
// The two factors of engine_quad that the bytes of two outputs become, that of multiplier 0 lowest:
// the byte of output 0 and of output 1, or w0 + w1 * 2^8 of nibble 0 (lower) and 1 of both.
`default_nettype none
module engine_quad_weight (
  input  logic            nibbles_i,
  input  logic [15:0]     bytes_i,    // output 0 lowest
  output logic [2*13-1:0] factors_o
);
  for (genvar m = 0; m < 2; m++) begin : gen_multiplier
    logic signed [12:0] whole, pair;
    assign whole = 13'($signed(bytes_i[m*8 +: 8]));
    assign pair  = (13'($signed(bytes_i[8+m*4 +: 4])) <<< 8) + 13'($signed(bytes_i[m*4 +: 4]));
    assign factors_o[m*13 +: 13] = nibbles_i ? pair : whole;
  end
endmodule
`default_nettype wire
