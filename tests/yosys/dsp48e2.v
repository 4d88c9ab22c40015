// SPDX-License-Identifier: Apache-2.0
// What the netlists of our designs use of the DSP block of UltraScale+, for simulation (UG579): the
// signed product of A[26:0] and B, one register each at A and B, and the output register, each with
// its enable and its synchronous reset; everything else stands still as Yosys' xcu_dsp_map.v sets
// it.
module DSP48E2 #(
  parameter [31:0] ACASCREG = 1, ADREG = 1, ALUMODEREG = 1, AREG = 1, BCASCREG = 1, BREG = 1,
  parameter [31:0] CARRYINREG = 1, CARRYINSELREG = 1, CREG = 1, DREG = 1, INMODEREG = 1,
  parameter [31:0] MREG = 1, OPMODEREG = 1, PREG = 1,
  parameter A_INPUT = "DIRECT", B_INPUT = "DIRECT", USE_MULT = "MULTIPLY", USE_SIMD = "ONE48",
  parameter AMULTSEL = "A", BMULTSEL = "B"
) (
  input CLK, CEP, RSTP, CEA2, RSTA, CEB2, RSTB, CARRYIN,
  input [29:0] A, ACIN,
  input [17:0] B, BCIN,
  input [47:0] C, PCIN,
  input [26:0] D,
  input [4:0]  INMODE,
  input [3:0]  ALUMODE,
  input [8:0]  OPMODE,
  input [2:0]  CARRYINSEL,
  output [47:0] P
);
  reg signed [26:0] a_q = 0;
  reg signed [17:0] b_q = 0;
  wire signed [26:0] a = AREG != 0 ? a_q : $signed(A[26:0]);
  wire signed [17:0] b = BREG != 0 ? b_q : $signed(B);
  wire signed [47:0] product = a * b;
  reg signed [47:0]  product_q = 0;

  initial begin
    if (AREG > 1 || BREG > 1 || MREG != 0 || OPMODE != 9'b000000101 || ALUMODE != 0
        || INMODE != 0 || AMULTSEL != "A" || BMULTSEL != "B") begin
      $display("DSP48E2: used in a way that the model does not have");
      $stop;
    end
  end

  always @(posedge CLK) begin
    if (RSTA) a_q <= 0;
    else if (CEA2) a_q <= $signed(A[26:0]);
    if (RSTB) b_q <= 0;
    else if (CEB2) b_q <= $signed(B);
    if (RSTP) product_q <= 0;
    else if (CEP) product_q <= product;
  end

  assign P = PREG != 0 ? product_q : product;
endmodule
