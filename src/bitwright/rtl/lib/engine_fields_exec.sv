// SPDX-License-Identifier: Apache-2.0
// The fields of the engine's instruction EXEC, opcode 5; wires only.
// Generated from engine/isa.py by `make references`: do not edit.
// What the fields mean: docs/engine-isa.md.
`default_nettype none
module engine_fields_exec (
  input  logic [255:0] word_i,
  output logic [3:0]    wait_o,
  output logic [3:0]    signal_o,
  output logic [15:0]   features_o,
  output logic [15:0]   weights_o,
  output logic [15:0]   parameters_o,
  output logic [15:0]   out_o,
  output logic [15:0]   y_o,
  output logic [15:0]   x_o,
  output logic [11:0]   groups_y_o,
  output logic [11:0]   groups_x_o,
  output logic [7:0]    last_y_o,
  output logic [7:0]    last_x_o,
  output logic [7:0]    kh_o,
  output logic [7:0]    kw_o,
  output logic [11:0]   kc_o,
  output logic [7:0]    outputs_o,
  output logic [3:0]    init_o,
  output logic [3:0]    reduce_o,
  output logic [3:0]    place_o
);
  assign wait_o = word_i[7:4];
  assign signal_o = word_i[11:8];
  assign features_o = word_i[31:16];
  assign weights_o = word_i[47:32];
  assign parameters_o = word_i[63:48];
  assign out_o = word_i[79:64];
  assign y_o = word_i[95:80];
  assign x_o = word_i[111:96];
  assign groups_y_o = word_i[123:112];
  assign groups_x_o = word_i[139:128];
  assign last_y_o = word_i[151:144];
  assign last_x_o = word_i[159:152];
  assign kh_o = word_i[167:160];
  assign kw_o = word_i[175:168];
  assign kc_o = word_i[187:176];
  assign outputs_o = word_i[199:192];
  assign init_o = word_i[203:200];
  assign reduce_o = word_i[207:204];
  assign place_o = word_i[211:208];
  logic unused;
  assign unused = ^{
    word_i[255:212],
    word_i[191:188],
    word_i[143:140],
    word_i[127:124],
    word_i[15:12],
    word_i[3:0]
  };
endmodule
`default_nettype wire
