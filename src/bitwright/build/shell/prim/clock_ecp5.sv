// SPDX-License-Identifier: Apache-2.0
// Clock of ECP5 boards: clk_o = clk_i * FbDiv / RefDiv from an EHXPLLL, whose oscillator runs at
// clk_o * OpDiv and must stay within 400 to 800 MHz. Use = 0: no PLL, clk_o = clk_i.
`default_nettype none
module clock_ecp5 #(
  parameter bit Use    = 1'b1,
  parameter int RefDiv = 1,
  parameter int FbDiv  = 4,
  parameter int OpDiv  = 6
) (
  input  logic clk_i,
  output logic clk_o,
  output logic locked_o
);
  if (!Use) begin : gen_wire
    assign clk_o    = clk_i;
    assign locked_o = 1'b1;
  end else begin : gen_pll
    EHXPLLL #(
      .PLLRST_ENA("DISABLED"),
      .INTFB_WAKE("DISABLED"),
      .STDBY_ENABLE("DISABLED"),
      .DPHASE_SOURCE("DISABLED"),
      .OUTDIVIDER_MUXA("DIVA"),
      .OUTDIVIDER_MUXB("DIVB"),
      .OUTDIVIDER_MUXC("DIVC"),
      .OUTDIVIDER_MUXD("DIVD"),
      .CLKI_DIV(RefDiv),
      .CLKOP_ENABLE("ENABLED"),
      .CLKOP_DIV(OpDiv),
      .CLKOP_CPHASE(OpDiv - 1),
      .CLKOP_FPHASE(0),
      .FEEDBK_PATH("CLKOP"),
      .CLKFB_DIV(FbDiv)
    ) i_pll (
      .RST(1'b0),
      .STDBY(1'b0),
      .CLKI(clk_i),
      .CLKOP(clk_o),
      .CLKFB(clk_o),
      .CLKINTFB(),
      .PHASESEL0(1'b0),
      .PHASESEL1(1'b0),
      .PHASEDIR(1'b1),
      .PHASESTEP(1'b1),
      .PHASELOADREG(1'b1),
      .PLLWAKESYNC(1'b0),
      .ENCLKOP(1'b0),
      .LOCK(locked_o)
    );
  end
endmodule
`default_nettype wire
