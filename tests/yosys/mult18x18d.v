// SPDX-License-Identifier: Apache-2.0
// What the netlists of our designs use of the multiplier of ECP5, for simulation (FPGA-TN-02205):
// the product of A and B, signed where SIGNEDA and SIGNEDB say so, and the registers at A and B with
// clock CLK0, enable CE0 and synchronous reset RST0. Its ports are bits: see `cell_models`.
module MULTIPLIER #(
  parameter REG_INPUTA_CLK = "NONE", REG_INPUTB_CLK = "NONE", REG_OUTPUT_CLK = "NONE",
  parameter REG_PIPELINE_CLK = "NONE"
) (
  input clk, ce, rst, signed_a, signed_b,
  input [17:0] a, b,
  output [35:0] p
);
  reg [17:0] a_q = 0, b_q = 0;
  wire [17:0] a_now = REG_INPUTA_CLK == "CLK0" ? a_q : a;
  wire [17:0] b_now = REG_INPUTB_CLK == "CLK0" ? b_q : b;
  wire signed [36:0] a_wide = {{19{signed_a & a_now[17]}}, a_now};
  wire signed [36:0] b_wide = {{19{signed_b & b_now[17]}}, b_now};
  wire signed [36:0] product = a_wide * b_wide;

  initial begin
    if (REG_OUTPUT_CLK != "NONE" || REG_PIPELINE_CLK != "NONE"
        || (REG_INPUTA_CLK != "NONE" && REG_INPUTA_CLK != "CLK0")
        || (REG_INPUTB_CLK != "NONE" && REG_INPUTB_CLK != "CLK0")) begin
      $display("MULT18X18D: used in a way that the model does not have");
      $stop;
    end
  end

  always @(posedge clk) begin
    if (rst) {a_q, b_q} <= 0;
    else if (ce) {a_q, b_q} <= {a, b};
  end

  assign p = product[35:0];
endmodule
