// SPDX-License-Identifier: Apache-2.0
// The SDRAM controller with the chip it is made for, with chips that are each a little slower in
// one thing, and a second controller that has been told wrong times.
`default_nettype none
module sdram_bench (
  input  logic        clk_i,
  input  logic        fast_i,   // twice as fast, in phase; for pads
  input  logic        power_ni,
  input  logic        rst_ni,
  input  logic        sync_i,
  output logic        synced_o,
  output logic        ready_o,
  input  logic        arvalid, awvalid, wvalid, wlast,
  output logic        arready, awready, wready, rvalid, rlast, bvalid,
  input  logic [31:0] araddr, awaddr,
  input  logic [7:0]  arlen, awlen,
  input  logic [2:0]  arid, awid,
  input  logic [63:0] wdata,
  output logic [63:0] rdata,
  output logic [2:0]  rid, bid,
  output logic [13:0] broken_o,   // by the chip
  output logic [13:0] weak_o,     // by chips each slower in this
  output logic [13:0] wrong_o     // by the other controller
);
  localparam int Rows = 6;
  logic [2:0]  c0, c1, d0, d1;
  logic [1:0]  b0, b1, e0, e1;
  logic [12:0] a0, a1, f0, f1;
  logic        oe, other_oe;
  logic [31:0] out, in, other_out, other_in;

  sdram_port #(`TIMES) i_port (
    .clk_i, .power_ni, .rst_ni, .sync_i, .synced_o, .ready_o,
    .s_axi_arvalid(arvalid), .s_axi_arready(arready), .s_axi_araddr(araddr), .s_axi_arlen(arlen),
    .s_axi_arid(arid), .s_axi_rvalid(rvalid), .s_axi_rdata(rdata), .s_axi_rid(rid),
    .s_axi_rlast(rlast), .s_axi_awvalid(awvalid), .s_axi_awready(awready), .s_axi_awaddr(awaddr),
    .s_axi_awlen(awlen), .s_axi_awid(awid), .s_axi_wvalid(wvalid), .s_axi_wready(wready),
    .s_axi_wdata(wdata), .s_axi_wlast(wlast), .s_axi_bvalid(bvalid), .s_axi_bid(bid),
    .row_command_o(c0), .row_bank_o(b0), .row_address_o(a0), .column_command_o(c1),
    .column_bank_o(b1), .column_address_o(a1), .oe_o(oe), .dq_o(out), .dq_i(in)
  );
`ifdef PINS
  sdram_pins i_pins (
    .clk_i, .fast_i, .command0_i(c0), .bank0_i(b0), .address0_i(a0), .command1_i(c1),
    .bank1_i(b1), .address1_i(a1), .oe_i(oe), .dq_i(out), .dq_o(in), .broken_o
  );
  assign {weak_o, wrong_o} = '0;
`else
  sdram_chip #(`RULES, .RowWidth(Rows), .Strict(1'b1)) i_chip (
    .clk_i, .command0_i(c0), .bank0_i(b0), .address0_i(a0), .command1_i(c1), .bank1_i(b1),
    .address1_i(a1), .oe_i(oe), .dq_i(out), .dq_o(in), .drives_o(), .broken_o
  );

  for (genvar n = 0; n < 14; n++) begin : gen_weak
    logic [13:0] broken;
    assign weak_o[n] = broken[n];
    sdram_chip #(
      .RowWidth(Rows), .Strict(1'b0),
      .PowerUp(n == 0 ? 30000 : 10), .Rcd(n == 1 ? 6 : 1), .Rp(n == 2 ? 5 : 1),
      .Ras(n == 3 ? 24 : 1), .Rc(n == 4 ? 30 : 1), .Rfc(n == 5 ? 11 : 1), .Wr(n == 6 ? 6 : 1),
      .Mrd(n == 7 ? 40 : 1), .Rrd(n == 8 ? 12 : 1), .Interval(n == 9 ? 900 : 1000),
      .RasMost(n == 13 ? 700 : 100000)
    ) i_chip (
      .clk_i, .command0_i(c0), .bank0_i(b0), .address0_i(a0), .command1_i(c1), .bank1_i(b1),
      .address1_i(a1), .oe_i(oe), .dq_i(out), .dq_o(), .drives_o(), .broken_o(broken)
    );
  end

  sdram_port #(`TIMES_WRONG) i_other (
    .clk_i, .power_ni, .rst_ni, .sync_i, .synced_o(), .ready_o(),
    .s_axi_arvalid(arvalid), .s_axi_arready(), .s_axi_araddr(araddr), .s_axi_arlen(8'd0),
    .s_axi_arid(arid), .s_axi_rvalid(), .s_axi_rdata(), .s_axi_rid(),
    .s_axi_rlast(), .s_axi_awvalid(awvalid), .s_axi_awready(), .s_axi_awaddr(awaddr),
    .s_axi_awlen(8'd0), .s_axi_awid(awid), .s_axi_wvalid(1'b1), .s_axi_wready(),
    .s_axi_wdata(wdata), .s_axi_wlast(1'b1), .s_axi_bvalid(), .s_axi_bid(),
    .row_command_o(d0), .row_bank_o(e0), .row_address_o(f0), .column_command_o(d1),
    .column_bank_o(e1), .column_address_o(f1), .oe_o(other_oe), .dq_o(other_out),
    .dq_i(other_in)
  );
  sdram_chip #(`RULES, .RowWidth(Rows), .Strict(1'b0)) i_other_chip (
    .clk_i, .command0_i(d0), .bank0_i(e0), .address0_i(f0), .command1_i(d1), .bank1_i(e1),
    .address1_i(f1), .oe_i(other_oe), .dq_i(other_out), .dq_o(other_in), .drives_o(), .broken_o(wrong_o)
  );
`endif
endmodule
`default_nettype wire
