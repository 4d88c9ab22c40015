// SPDX-License-Identifier: Apache-2.0
// The factor of engine_pair that a feature byte becomes. UseDsp: the byte as a number of 15 bits,
// or, of two nibbles, a0 + a1 * 2^10. Else two numbers of 9 bits: the byte twice, or {a1, a0}.
`default_nettype none
module engine_feature #(
  parameter bit UseDsp = 1'b1
) (
  input  logic        signed_i,
  input  logic        nibbles_i,
  input  logic [7:0]  byte_i,
  output logic [17:0] factor_o
);
  logic signed [8:0] whole, low, high;
  assign whole = {signed_i & byte_i[7], byte_i};
  assign low   = {{5{signed_i & byte_i[3]}}, byte_i[3:0]};
  assign high  = {{5{signed_i & byte_i[7]}}, byte_i[7:4]};

  if (UseDsp) begin : gen_dsp
    logic signed [17:0] pair;
    assign pair     = (18'(high) <<< 10) + 18'(low);
    assign factor_o = nibbles_i ? pair : 18'(whole);
  end else begin : gen_lut
    assign factor_o = nibbles_i ? {high, low} : {whole, whole};
  end
endmodule
`default_nettype wire
