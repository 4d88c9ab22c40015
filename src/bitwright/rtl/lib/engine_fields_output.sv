// SPDX-License-Identifier: Apache-2.0
// The fields of the engine's instruction OUTPUT, opcode 2; wires only.
// Generated from engine/isa.py by `make references`: do not edit.
// What the fields mean: docs/engine-isa.md.
`default_nettype none
module engine_fields_output (
  input  logic [255:0] word_i,
  output logic [3:0]    wait_o,
  output logic [3:0]    signal_o,
  output logic [15:0]   plane_o,
  output logic [15:0]   row_o,
  output logic [15:0]   pixel_o,
  output logic [3:0]    weights_o,
  output logic [3:0]    post_o,
  output logic [3:0]    result_o,
  output logic [3:0]    lookup_o,
  output logic [3:0]    rounding_o,
  output logic [7:0]    shift_o,
  output logic [15:0]   low_o,
  output logic [15:0]   high_o,
  output logic [15:0]   base_o,
  output logic [3:0]    step_o
);
  assign wait_o = word_i[7:4];
  assign signal_o = word_i[11:8];
  assign plane_o = word_i[31:16];
  assign row_o = word_i[47:32];
  assign pixel_o = word_i[63:48];
  assign weights_o = word_i[67:64];
  assign post_o = word_i[71:68];
  assign result_o = word_i[75:72];
  assign lookup_o = word_i[79:76];
  assign rounding_o = word_i[83:80];
  assign shift_o = word_i[95:88];
  assign low_o = word_i[111:96];
  assign high_o = word_i[127:112];
  assign base_o = word_i[143:128];
  assign step_o = word_i[147:144];
  logic unused;
  assign unused = ^{
    word_i[255:148],
    word_i[87:84],
    word_i[15:12],
    word_i[3:0]
  };
endmodule
`default_nettype wire
