// SPDX-License-Identifier: Apache-2.0
// Clock of iCE40 boards from an SB_PLL40: its oscillator runs at clk_i / RefDiv * VcoMul, which must be
// within 533 to 1066 MHz, and clk_o at that / OutDiv, a power of two. Filter: FILTER_RANGE for the
// frequency clk_i / RefDiv. Pad = 1: clk_i comes from the pad that belongs to the PLL. locked_o also
// holds the reset for longer than block RAMs take to be readable after configuration (3 us).
// Use = 0: no PLL, clk_o = clk_i.
`default_nettype none
module clock_ice40 #(
  parameter bit Use    = 1'b1,
  parameter bit Pad    = 1'b0,
  parameter int RefDiv = 1,
  parameter int VcoMul = 64,
  parameter int OutDiv = 16,
  parameter int Filter = 1
) (
  input  logic clk_i,
  output logic clk_o,
  output logic locked_o
);
  localparam logic [3:0] DivR = 4'(RefDiv - 1);
  localparam logic [6:0] DivF = 7'(VcoMul - 1);
  localparam logic [2:0] DivQ = 3'($clog2(OutDiv));
  localparam logic [2:0] Range = 3'(Filter);

  if (!Use) begin : gen_wire
    assign clk_o    = clk_i;
    assign locked_o = 1'b1;
  end else if (Pad) begin : gen_pad
    SB_PLL40_PAD #(
      .FEEDBACK_PATH("SIMPLE"),
      .DIVR(DivR),
      .DIVF(DivF),
      .DIVQ(DivQ),
      .FILTER_RANGE(Range)
    ) i_pll (
      .PACKAGEPIN(clk_i),
      .PLLOUTGLOBAL(clk_o),
      .LOCK(locked_o),
      .RESETB(1'b1),
      .BYPASS(1'b0)
    );
  end else begin : gen_core
    SB_PLL40_CORE #(
      .FEEDBACK_PATH("SIMPLE"),
      .DIVR(DivR),
      .DIVF(DivF),
      .DIVQ(DivQ),
      .FILTER_RANGE(Range)
    ) i_pll (
      .REFERENCECLK(clk_i),
      .PLLOUTGLOBAL(clk_o),
      .LOCK(locked_o),
      .RESETB(1'b1),
      .BYPASS(1'b0)
    );
  end
endmodule
`default_nettype wire
