// SPDX-License-Identifier: Apache-2.0
// The fields of the engine's instruction HALT, opcode 7; wires only.
// Generated from engine/isa.py by `make references`: do not edit.
// What the fields mean: docs/engine-isa.md.
`default_nettype none
module engine_fields_halt (
  input  logic [255:0] word_i,
  output logic [3:0]    wait_o,
  output logic [3:0]    signal_o,
  output logic [7:0]    code_o
);
  assign wait_o = word_i[7:4];
  assign signal_o = word_i[11:8];
  assign code_o = word_i[23:16];
  logic unused;
  assign unused = ^{
    word_i[255:24],
    word_i[15:12],
    word_i[3:0]
  };
endmodule
`default_nettype wire
