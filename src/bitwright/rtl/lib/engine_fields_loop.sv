// SPDX-License-Identifier: Apache-2.0
// The fields of the engine's instruction LOOP, opcode 6; wires only.
// Generated from engine/isa.py by `make references`: do not edit.
// What the fields mean: docs/engine-isa.md.
`default_nettype none
module engine_fields_loop (
  input  logic [255:0] word_i,
  output logic [3:0]    wait_o,
  output logic [3:0]    signal_o,
  output logic [15:0]   count_o,
  output logic [11:0]   length_o,
  output logic [3:0]    base_a_o,
  output logic [31:0]   step_a_o,
  output logic [3:0]    base_b_o,
  output logic [31:0]   step_b_o
);
  assign wait_o = word_i[7:4];
  assign signal_o = word_i[11:8];
  assign count_o = word_i[31:16];
  assign length_o = word_i[43:32];
  assign base_a_o = word_i[47:44];
  assign step_a_o = word_i[95:64];
  assign base_b_o = word_i[99:96];
  assign step_b_o = word_i[159:128];
  logic unused;
  assign unused = ^{
    word_i[255:160],
    word_i[127:100],
    word_i[63:48],
    word_i[15:12],
    word_i[3:0]
  };
endmodule
`default_nettype wire
