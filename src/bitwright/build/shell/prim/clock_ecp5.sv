// SPDX-License-Identifier: Apache-2.0
// Clock of ECP5 boards from an EHXPLLL: its oscillator runs at clk_i / RefDiv * VcoMul, which must be
// within 400 to 800 MHz, and clk_o at that / OutDiv. The primary output closes the loop.
// fast_o at that / FastDiv, in phase. Use = 0: no PLL, clk_o = clk_i.
`default_nettype none
module clock_ecp5 #(
  parameter bit Use    = 1'b1,
  parameter int RefDiv = 1,
  parameter int VcoMul = 24,
  parameter int OutDiv = 6,
  parameter int FastDiv = 6
) (
  input  logic clk_i,
  output logic clk_o,
  output logic fast_o,
  output logic locked_o
);
  if (!Use) begin : gen_wire
    assign clk_o    = clk_i;
    assign fast_o   = clk_i;
    assign locked_o = 1'b1;
  end else begin : gen_pll
    logic loop;

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
      .CLKOP_DIV(VcoMul),
      .CLKOP_CPHASE(VcoMul - 1),
      .CLKOP_FPHASE(0),
      .CLKOS_ENABLE("ENABLED"),
      .CLKOS_DIV(OutDiv),
      .CLKOS_CPHASE(OutDiv - 1),
      .CLKOS_FPHASE(0),
      .CLKOS2_ENABLE("ENABLED"),
      .CLKOS2_DIV(FastDiv),
      .CLKOS2_CPHASE(FastDiv - 1),
      .CLKOS2_FPHASE(0),
      .FEEDBK_PATH("CLKOP"),
      .CLKFB_DIV(1)
    ) i_pll (
      .RST(1'b0),
      .STDBY(1'b0),
      .CLKI(clk_i),
      .CLKOP(loop),
      .CLKOS(clk_o),
      .CLKOS2(fast_o),
      .CLKFB(loop),
      .CLKINTFB(),
      .PHASESEL0(1'b0),
      .PHASESEL1(1'b0),
      .PHASEDIR(1'b1),
      .PHASESTEP(1'b1),
      .PHASELOADREG(1'b1),
      .PLLWAKESYNC(1'b0),
      .ENCLKOP(1'b0),
      .ENCLKOS(1'b0),
      .ENCLKOS2(1'b0),
      .LOCK(locked_o)
    );
  end
endmodule
`default_nettype wire
