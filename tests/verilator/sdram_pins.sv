// SPDX-License-Identifier: Apache-2.0
// Models of the ECP5's pads for sdram_bench, and what makes two clocks of the chip's pins one cycle
// of its model. The registers are those that Lattice's simulation library and Amaranth's models
// have.
`default_nettype none
module ODDRX1F (
  input  logic D0, D1, SCLK, RST,
  output logic Q
);
  logic [1:0] first_q, second_q, third_q;
  always_ff @(posedge SCLK) begin : p_pipe
    first_q  <= {D0, D1};
    second_q <= first_q;
    third_q  <= second_q;
  end
  assign Q = SCLK ? third_q[1] : third_q[0];
endmodule

module IDDRX1F (
  input  logic D, SCLK, RST,
  output logic Q0, Q1
);
  logic rise_q, fall_q, fall_2_q;
  always_ff @(posedge SCLK) begin : p_rise
    rise_q <= D;
    Q1     <= rise_q;
    Q0     <= fall_2_q;
  end
  always_ff @(negedge SCLK) begin : p_fall
    fall_q   <= D;
    fall_2_q <= fall_q;
  end
endmodule

module BB (
  inout  wire  B,
  input  logic I, T,
  output logic O
);
  assign B = T ? 1'bz : I;
  assign O = B;
endmodule

// What `sdram_chip` is, pin by pin: pads, and a chip whose answers take a clock of its own to come to
// them (its access time, pads and wires).
module sdram_pins (
  input  logic        clk_i, fast_i,
  input  logic [2:0]  command0_i, command1_i,
  input  logic [1:0]  bank0_i, bank1_i,
  input  logic [12:0] address0_i, address1_i,
  input  logic        oe_i,
  input  logic [31:0] dq_i,
  output logic [31:0] dq_o,
  output logic [13:0] broken_o
);
  logic        chip_clk, cke, cs_n, ras_n, cas_n, we_n;
  logic [12:0] a;
  logic [1:0]  ba, dqm;
  wire  [15:0] d;

  sdram_pads_ecp5 i_pads (
    .clk_i, .fast_i, .row_command_i(command0_i), .row_bank_i(bank0_i),
    .row_address_i(address0_i), .column_command_i(command1_i), .column_bank_i(bank1_i),
    .column_address_i(address1_i), .oe_i, .dq_i, .dq_o, .sdram_clk(chip_clk), .sdram_cke(cke),
    .sdram_cs_n(cs_n), .sdram_ras_n(ras_n), .sdram_cas_n(cas_n), .sdram_we_n(we_n), .sdram_a(a),
    .sdram_ba(ba), .sdram_dqm(dqm), .sdram_d(d)
  );

  // The chip samples its pins at its clock; the first of a pair while the slow clock is high.
  logic [2:0]  command_q[2];
  logic [1:0]  bank_q[2], drives;
  logic [12:0] address_q[2];
  logic [15:0] data_q[2], out_q;
  logic [31:0] says;
  logic        second_q, driven_q, drive_q;

  initial begin : p_power_up
    second_q  = 1'b0;
    command_q = '{3'b111, 3'b111};
  end

  always @(posedge chip_clk) begin : p_pins
    command_q[int'(!clk_i)] <= cs_n ? 3'b111 : {ras_n, cas_n, we_n};
    bank_q[int'(!clk_i)]    <= ba;
    address_q[int'(!clk_i)] <= a;
    data_q[int'(!clk_i)]    <= d;
    driven_q <= !i_pads.release_q[2];
    second_q <= !clk_i;
    out_q    <= clk_i ? says[15:0] : says[31:16];
    drive_q  <= clk_i ? drives[0] : drives[1];
  end
  assign d = drive_q ? out_q : 16'hzzzz;

  // A pair is whole when second_q rises. Two of the three clocks of CAS latency are those of a pair.
  sdram_chip #(`RULES_PINS, .RowWidth(6), .Latency(1), .Delay(1)) i_chip (
    .clk_i(second_q), .command0_i(command_q[0]), .bank0_i(bank_q[0]), .address0_i(address_q[0]),
    .command1_i(command_q[1]), .bank1_i(bank_q[1]), .address1_i(address_q[1]),
    .oe_i(driven_q), .dq_i({data_q[1], data_q[0]}), .dq_o(says), .drives_o(drives), .broken_o
  );

  logic unused;
  assign unused = ^{cke, dqm};
endmodule
`default_nettype wire
