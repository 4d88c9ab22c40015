// SPDX-License-Identifier: Apache-2.0
// The factor of engine_pair that a weight byte becomes. UseDsp: the byte as a number of 15 bits,
// or, of two nibbles, b1 + b0 * 2^10. Else the byte.
`default_nettype none
module engine_weight #(
  parameter bit UseDsp = 1'b1
) (
  input  logic        nibbles_i,
  input  logic [7:0]  byte_i,
  output logic [14:0] factor_o
);
  if (UseDsp) begin : gen_dsp
    logic signed [14:0] whole, pair;
    assign whole    = 15'($signed(byte_i));
    assign pair     = (15'($signed(byte_i[3:0])) <<< 10) + 15'($signed(byte_i[7:4]));
    assign factor_o = nibbles_i ? pair : whole;
  end else begin : gen_lut
    assign factor_o = {7'b0, byte_i};
    logic unused;
    assign unused = nibbles_i;
  end
endmodule
`default_nettype wire
