// SPDX-License-Identifier: Apache-2.0
// Pads of an SDRAM on ECP5: the two commands of a cycle of clk_i (the lower half of the data first)
// by registers of double data rate, which the chip, at twice the clock, takes one by one. Its clock
// is fast_i inverted, through a register of the same kind: the chip's edge stands in the middle of
// what comes to it. Commands and data are on the pins three cycles later; dq_o is what was on the
// wires in both halves of the cycle before the last.
`default_nettype none
module sdram_pads_ecp5 (
  input  logic        clk_i,
  input  logic        fast_i,   // twice clk_i, in phase
  input  logic [2:0]  row_command_i,
  input  logic [1:0]  row_bank_i,
  input  logic [12:0] row_address_i,
  input  logic [2:0]  column_command_i,
  input  logic [1:0]  column_bank_i,
  input  logic [12:0] column_address_i,
  input  logic        oe_i,
  input  logic [31:0] dq_i,
  output logic [31:0] dq_o,
  output logic        sdram_clk,
  output logic        sdram_cke,
  output logic        sdram_cs_n,
  output logic        sdram_ras_n,
  output logic        sdram_cas_n,
  output logic        sdram_we_n,
  output logic [12:0] sdram_a,
  output logic [1:0]  sdram_ba,
  output logic [1:0]  sdram_dqm,
  inout  wire  [15:0] sdram_d
);
  // Until commands of the controller have come through the registers, which begin at 0.
  logic [4:0] selected_q;

  initial selected_q = '0;

  // Not always_ff: that would have to be the only process of what `initial` sets.
  always @(posedge clk_i) begin : p_selected
    selected_q <= {selected_q[3:0], 1'b1};
  end

  assign sdram_cke  = 1'b1;
  assign sdram_cs_n = ~selected_q[4];
  assign sdram_dqm  = 2'b00;

  ODDRX1F i_clk (.SCLK(fast_i), .RST(1'b0), .D0(1'b0), .D1(1'b1), .Q(sdram_clk));

  logic [17:0] first, second, out;
  assign first  = {row_command_i, row_bank_i, row_address_i};
  assign second = {column_command_i, column_bank_i, column_address_i};
  assign {sdram_ras_n, sdram_cas_n, sdram_we_n, sdram_ba, sdram_a} = out;

  for (genvar n = 0; n < 18; n++) begin : gen_command
    ODDRX1F i_out (.SCLK(clk_i), .RST(1'b0), .D0(first[n]), .D1(second[n]), .Q(out[n]));
  end

  // As many registers as an ODDRX1F has.
  logic [2:0] release_q;
  always_ff @(posedge clk_i) begin : p_release
    release_q <= {release_q[1:0], ~oe_i};
  end

  for (genvar n = 0; n < 16; n++) begin : gen_data
    logic driven, seen;
    ODDRX1F i_out (.SCLK(clk_i), .RST(1'b0), .D0(dq_i[n]), .D1(dq_i[16 + n]), .Q(driven));
    IDDRX1F i_in (.SCLK(clk_i), .RST(1'b0), .D(seen), .Q0(dq_o[n]), .Q1(dq_o[16 + n]));
    BB i_pad (.B(sdram_d[n]), .I(driven), .O(seen), .T(release_q[2]));
  end
endmodule
`default_nettype wire
