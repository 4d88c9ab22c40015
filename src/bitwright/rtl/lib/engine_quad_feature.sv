// SPDX-License-Identifier: Apache-2.0
// The two factors of engine_quad that the bytes of two pixels become, that of multiplier 0 lowest:
// a0 + a1 * 2^16 of the bytes, or of nibble 0 (lower) and 1 of each.
`default_nettype none
module engine_quad_feature (
  input  logic            signed_i,
  input  logic            nibbles_i,
  input  logic [15:0]     bytes_i,    // pixel 0 lowest
  output logic [2*25-1:0] factors_o
);
  for (genvar m = 0; m < 2; m++) begin : gen_multiplier
    logic signed [2*9-1:0]  parts;
    logic signed [24:0]     factor;
    for (genvar p = 0; p < 2; p++) begin : gen_pixel
      logic [3:0] nibble;
      assign nibble = bytes_i[p*8+m*4 +: 4];
      assign parts[p*9 +: 9] = nibbles_i ? {{5{signed_i & nibble[3]}}, nibble}
                                         : {signed_i & bytes_i[p*8+7], bytes_i[p*8 +: 8]};
    end
    assign factor = (25'($signed(parts[17:9])) <<< 16) + 25'($signed(parts[8:0]));
    assign factors_o[m*25 +: 25] = factor;
  end
endmodule
`default_nettype wire
