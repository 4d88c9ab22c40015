// SPDX-License-Identifier: Apache-2.0
// A code of sign, exponent and mantissa bits as (-1)^sign * mag * 2^shift; combinational. Low says
// what exponent field 0 is: 0 denormals (no leading one, the place of field 1), 1 a field as any
// other, but with mantissa 0 it is zero, 2 a field as any other. With Mant = 0 the code is a power
// of two: of Low 2 all are, of Low 0 field 0 is zero. Codes that are no numbers are not looked at.
`default_nettype none
module float_split #(
  parameter int Exp  = 4,
  parameter int Mant = 3,
  parameter int Low  = 0
) (
  input  logic [Exp+Mant:0] code_i,
  output logic              sign_o,
  output logic [Mant:0]     mag_o,
  output logic [Exp-1:0]    shift_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Exp < 1 || Mant < 0 || Low < 0 || Low > 2) begin : gen_check
    $error("float_split: Exp must be at least 1, Mant 0 and Low one of 0, 1, 2");
  end
`endif

  logic [Exp-1:0] field;
  logic           lead;

  assign field  = code_i[Mant +: Exp];
  assign sign_o = code_i[Exp+Mant];
  assign lead   = Low == 0 ? |field : Low == 1 ? |code_i[Exp+Mant-1:0] : 1'b1;
  if (Mant > 0) begin : gen_mantissa
    assign mag_o = {lead, code_i[Mant-1:0]};
  end else begin : gen_power
    assign mag_o = lead;
  end
  if (Low == 0) begin : gen_denormal
    assign shift_o = field - Exp'(|field);
  end else begin : gen_plain
    assign shift_o = field;
  end
endmodule
`default_nettype wire
