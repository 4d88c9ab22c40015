// SPDX-License-Identifier: Apache-2.0
// The fields of the engine's instruction INPUT, opcode 1; wires only.
// Generated from engine/isa.py by `make references`: do not edit.
// What the fields mean: docs/engine-isa.md.
`default_nettype none
module engine_fields_input (
  input  logic [255:0] word_i,
  output logic [3:0]    wait_o,
  output logic [3:0]    signal_o,
  output logic [15:0]   pixel_o,
  output logic [15:0]   row_o,
  output logic [15:0]   tap_x_o,
  output logic [15:0]   tap_y_o,
  output logic [15:0]   plane_o,
  output logic [15:0]   output_o,
  output logic [15:0]   height_o,
  output logic [15:0]   width_o,
  output logic [7:0]    stride_y_o,
  output logic [7:0]    stride_x_o,
  output logic [7:0]    dilation_y_o,
  output logic [7:0]    dilation_x_o,
  output logic [3:0]    patch_o,
  output logic [7:0]    passes_o,
  output logic [3:0]    bits_o,
  output logic [3:0]    signed_first_o,
  output logic [3:0]    signed_rest_o,
  output logic [11:0]   first_o
);
  assign wait_o = word_i[7:4];
  assign signal_o = word_i[11:8];
  assign pixel_o = word_i[31:16];
  assign row_o = word_i[47:32];
  assign tap_x_o = word_i[63:48];
  assign tap_y_o = word_i[79:64];
  assign plane_o = word_i[95:80];
  assign output_o = word_i[111:96];
  assign height_o = word_i[127:112];
  assign width_o = word_i[143:128];
  assign stride_y_o = word_i[151:144];
  assign stride_x_o = word_i[159:152];
  assign dilation_y_o = word_i[167:160];
  assign dilation_x_o = word_i[175:168];
  assign patch_o = word_i[179:176];
  assign passes_o = word_i[191:184];
  assign bits_o = word_i[195:192];
  assign signed_first_o = word_i[199:196];
  assign signed_rest_o = word_i[203:200];
  assign first_o = word_i[215:204];
  logic unused;
  assign unused = ^{
    word_i[255:216],
    word_i[183:180],
    word_i[15:12],
    word_i[3:0]
  };
endmodule
`default_nettype wire
