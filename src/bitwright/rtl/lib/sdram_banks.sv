// SPDX-License-Identifier: Apache-2.0
// The rows that are open in the four banks of an SDRAM, and the command that brings the row that is
// wanted next: a precharge, then an activation, each as soon as the chip allows it. open_o: it is
// open, and a column of it may be commanded from the next cycle on. A bank in which a burst is
// going on (busy_i) is not closed. Times in cycles of two clocks of the chip; row commands stand in
// the first clock of a cycle, columns in the second.
`default_nettype none
module sdram_banks #(
  parameter int RowWidth = 13,
  parameter int Rcd      = 1,  // activation to column
  parameter int Rp       = 2,  // precharge to activation
  parameter int Ras      = 3,  // activation to precharge
  parameter int Rrd      = 1,  // activation to one of another bank
  parameter int Close    = 3   // column to precharge
) (
  input  logic                clk_i,
  input  logic                power_ni,
  input  logic                clear_i,   // all are closed, and a time with nothing follows
  input  logic                hold_i,    // no commands now
  input  logic                want_i,
  input  logic [1:0]          want_bank_i,
  input  logic [RowWidth-1:0] want_row_i,
  input  logic                busy_i,
  input  logic [1:0]          busy_bank_i,
  input  logic                column_i,  // a column of busy_bank_i is commanded
  output logic                open_o,
  output logic                quiet_o,
  output logic [2:0]          command_o,
  output logic [1:0]          bank_o,
  output logic [RowWidth-1:0] address_o
);
  localparam int Longest   = (Ras > Close ? Ras : Close) > Rp ? (Ras > Close ? Ras : Close) : Rp;
  localparam int WaitWidth = $clog2(Longest + 1);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  // A column comes two cycles behind its row's activation at the earliest.
  if (Rcd < 1 || Rcd > 9 || Rrd < 1 || Rrd > 8 || Rp < 1 || Ras < 1 || Close < Ras - 2
      || RowWidth < 11) begin : gen_check
    $error("sdram_banks: times must be positive, Rcd and Rrd at most 8, Close at least Ras - 2");
  end
`endif

  localparam logic [2:0] NOP = 3'b111, PRECHARGE = 3'b010, ACTIVATE = 3'b011;

  logic [3:0]             open_q;
  logic [4*RowWidth-1:0]  row_q;
  logic [4*WaitWidth-1:0] wait_q;  // of each bank, until it may be closed, or opened
  logic [2:0]             rcd_q, rrd_q;
  logic                   is_open, same, rested, close, activate;

  assign is_open  = open_q[want_bank_i];
  assign same     = row_q[int'(want_bank_i)*RowWidth +: RowWidth] == want_row_i;
  assign rested   = wait_q[int'(want_bank_i)*WaitWidth +: WaitWidth] == '0;
  assign close    = want_i && !hold_i && is_open && !same && rested
                    && !(busy_i && busy_bank_i == want_bank_i);
  assign activate = want_i && !hold_i && !is_open && rested && rrd_q == '0;
  assign open_o   = is_open && same && rcd_q == '0;
  assign quiet_o  = !busy_i && wait_q == '0;

  always_comb begin : p_command
    command_o = NOP;
    address_o = '0;  // the bit of all banks is 0
    if (close) command_o = PRECHARGE;
    if (activate) begin
      command_o = ACTIVATE;
      address_o = want_row_i;
    end
  end
  assign bank_o = want_bank_i;

  always_ff @(posedge clk_i) begin : p_banks
    if (!power_ni || clear_i) begin
      open_q <= '0;
      wait_q <= '0;
      rcd_q  <= '0;
      rrd_q  <= '0;
    end else begin
      if (rcd_q != '0) rcd_q <= rcd_q - 1'b1;
      if (rrd_q != '0) rrd_q <= rrd_q - 1'b1;
      for (int b = 0; b < 4; b++) begin
        if (wait_q[b*WaitWidth +: WaitWidth] != '0) begin
          wait_q[b*WaitWidth +: WaitWidth] <= wait_q[b*WaitWidth +: WaitWidth] - 1'b1;
        end
        if (column_i && busy_bank_i == 2'(b)) begin
          wait_q[b*WaitWidth +: WaitWidth] <= WaitWidth'(Close - 1);
        end
        if (close && want_bank_i == 2'(b)) begin
          open_q[b] <= 1'b0;
          wait_q[b*WaitWidth +: WaitWidth] <= WaitWidth'(Rp - 1);
        end
        if (activate && want_bank_i == 2'(b)) begin
          open_q[b] <= 1'b1;
          wait_q[b*WaitWidth +: WaitWidth] <= WaitWidth'(Ras - 1);
        end
      end
      if (activate) begin
        rcd_q <= Rcd > 2 ? 3'(Rcd - 2) : '0;
        rrd_q <= 3'(Rrd - 1);
      end
    end
    for (int b = 0; b < 4; b++) begin
      if (activate && want_bank_i == 2'(b)) row_q[b*RowWidth +: RowWidth] <= want_row_i;
    end
  end
endmodule
`default_nettype wire
