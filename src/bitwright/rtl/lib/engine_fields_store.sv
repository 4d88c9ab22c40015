// SPDX-License-Identifier: Apache-2.0
// The fields of the engine's instruction STORE, opcode 4; wires only.
// Generated from engine/isa.py by `make references`: do not edit.
// What the fields mean: docs/engine-isa.md.
`default_nettype none
module engine_fields_store (
  input  logic [255:0] word_i,
  output logic [3:0]    wait_o,
  output logic [3:0]    signal_o,
  output logic [3:0]    base_o,
  output logic [31:0]   memory_o,
  output logic [15:0]   x_o,
  output logic [11:0]   y_o,
  output logic [11:0]   z_o,
  output logic [23:0]   memory_y_o,
  output logic [23:0]   memory_z_o,
  output logic [15:0]   address_o,
  output logic [15:0]   buffer_y_o,
  output logic [15:0]   buffer_z_o
);
  assign wait_o = word_i[7:4];
  assign signal_o = word_i[11:8];
  assign base_o = word_i[15:12];
  assign memory_o = word_i[47:16];
  assign x_o = word_i[63:48];
  assign y_o = word_i[75:64];
  assign z_o = word_i[87:76];
  assign memory_y_o = word_i[111:88];
  assign memory_z_o = word_i[151:128];
  assign address_o = word_i[175:160];
  assign buffer_y_o = word_i[191:176];
  assign buffer_z_o = word_i[207:192];
  logic unused;
  assign unused = ^{
    word_i[255:208],
    word_i[159:152],
    word_i[127:112],
    word_i[3:0]
  };
endmodule
`default_nettype wire
