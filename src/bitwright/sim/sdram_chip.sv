// SPDX-License-Identifier: Apache-2.0
// Model of an SDRAM chip of 4 banks x 16 bits (JEDEC's single data rate kind) with the rules of its
// data sheet, for simulation. A cycle of clk_i is two clocks of the chip: a command in each, the
// first clock of the data in the lower half. What the chip says comes Delay cycles late (the
// registers of the pads). broken_o holds what has been broken, a bit a rule (RULE_ below); Strict:
// it stops there. All times in clocks of the chip. Only bursts of 4 and CAS latency 3 are known.
`default_nettype none
module sdram_chip #(
  parameter int RowWidth  = 13,   // rows that there are; addresses have 13 bits
  parameter int ColWidth  = 9,
  parameter int Delay     = 5,
  parameter int Latency   = 3,    // CAS latency; less where something outside adds the rest
  parameter int Rcd       = 3,
  parameter int Rp        = 3,
  parameter int Ras       = 6,
  parameter int RasMost   = 12500,
  parameter int Rc        = 9,
  parameter int Rfc       = 9,
  parameter int Rrd       = 2,
  parameter int Wr        = 2,
  parameter int Mrd       = 2,
  parameter int PowerUp   = 25000,
  parameter int Interval  = 977,  // from refresh to refresh, on average
  parameter int Postponed = 4,    // refreshes that may be late
  parameter bit Strict    = 1'b1
) (
  input  logic        clk_i,
  input  logic [2:0]  command0_i,  // {ras, cas, we}, low active
  input  logic [1:0]  bank0_i,
  input  logic [12:0] address0_i,
  input  logic [2:0]  command1_i,
  input  logic [1:0]  bank1_i,
  input  logic [12:0] address1_i,
  input  logic        oe_i,
  input  logic [31:0] dq_i,
  output logic [31:0] dq_o,
  output logic [1:0]  drives_o,    // in which of the two clocks
  output logic [13:0] broken_o
);
  localparam int RULE_START = 0, RULE_RCD = 1, RULE_RP = 2, RULE_RAS = 3, RULE_RC = 4;
  localparam int RULE_RFC = 5, RULE_WR = 6, RULE_MRD = 7, RULE_RRD = 8, RULE_REFRESH = 9;
  localparam int RULE_STATE = 10, RULE_CUT = 11, RULE_BUS = 12, RULE_RAS_MOST = 13;
  localparam int Burst = 4;
  localparam int Cells = 1 << (RowWidth + ColWidth + 2);

  logic [15:0] cells[0:Cells-1];
  longint      now, powered, refreshed, refreshes, mode_set;
  longint      activated[4], closed[4], read[4], written[4];
  longint      last_activated;
  bit [3:0]    open;
  logic [12:0] row[4];
  bit          set_up;
  int          first_refreshes;
  // The burst that is going on, and what is on its way out.
  bit          writing;
  int          done;
  logic [1:0]  bank;
  int          column;
  logic [15:0] coming[8];
  bit [7:0]    drives;
  logic [33:0] late[0:Delay];

  initial begin : p_power_up
    now = 0;
    powered = 0;
    refreshed = -1000;
    refreshes = 0;
    mode_set = 0;
    last_activated = -1000;
    open = '0;
    set_up = 0;
    first_refreshes = 0;
    writing = 0;
    done = 0;
    drives = '0;
    broken_o = '0;
    for (int b = 0; b < 4; b++) begin
      activated[b] = -1000;
      closed[b] = -1000;
      read[b] = -1000;
      written[b] = -1000;
    end
  end

  function automatic int cell_of(input logic [1:0] b, input int col);
    return int'({b, row[b][RowWidth-1:0], ColWidth'(col)});
  endfunction

  task automatic must(input bit good, input int rule, input string what);
    if (!good) begin
      broken_o[rule] = 1'b1;
      if (Strict) $error("sdram_chip, clock %0d: %s", now, what);
    end
  endtask

  task automatic precharge(input logic [1:0] b);
    if (open[b]) begin
      must(now - activated[b] >= Ras, RULE_RAS, "precharge before tRAS");
      must(now - written[b] >= Wr, RULE_WR, "precharge before tWR");
      must(now - read[b] >= Burst, RULE_CUT, "precharge cuts a burst that is read");
      must(now - activated[b] <= RasMost, RULE_RAS_MOST, "a row was open for too long");
      closed[b] = now;
      open[b] = 1'b0;
    end
  endtask

  task automatic activate(input logic [1:0] b, input logic [12:0] address);
    must(set_up, RULE_START, "activation before the mode register is set");
    must(!open[b], RULE_STATE, "activation of a bank that is open");
    must(now - closed[b] >= Rp, RULE_RP, "activation before tRP");
    must(now - activated[b] >= Rc, RULE_RC, "activation before tRC");
    must(now - last_activated >= Rrd, RULE_RRD, "activation before tRRD");
    must(now - refreshed >= Rfc, RULE_RFC, "activation before tRFC");
    must(now - mode_set >= Mrd, RULE_MRD, "activation before tMRD");
    open[b] = 1'b1;
    row[b] = address;
    activated[b] = now;
    last_activated = now;
  endtask

  task automatic access(input bit write, input logic [1:0] b, input logic [12:0] address);
    must(open[b], RULE_STATE, "column of a bank that is closed");
    must(now - activated[b] >= Rcd, RULE_RCD, "column before tRCD");
    must(!address[10], RULE_STATE, "auto precharge is not used");
    writing = write;
    bank = b;
    column = int'(address[ColWidth-1:0]);
    done = Burst;
    if (!write) begin
      read[b] = now;
      for (int k = 0; k < Burst; k++) begin
        coming[3'(now + Latency + longint'(k))] =
            cells[cell_of(b, (column & ~3) | ((column + k) & 3))];
        drives[3'(now + Latency + longint'(k))] = 1'b1;
      end
      done = 0;
    end
  endtask

  task automatic refresh();
    must(open == '0, RULE_STATE, "refresh with an open bank");
    must(now >= longint'(PowerUp), RULE_START, "refresh before the power-up time");
    for (int b = 0; b < 4; b++) must(now - closed[b] >= Rp, RULE_RP, "refresh before tRP");
    must(now - refreshed >= Rfc, RULE_RFC, "refresh before tRFC");
    if (!set_up) first_refreshes++;
    else refreshes++;
    refreshed = now;
  endtask

  task automatic mode(input logic [12:0] address);
    must(first_refreshes >= 2, RULE_START, "mode register before two refreshes");
    must(open == '0, RULE_STATE, "mode register with an open bank");
    must(now - refreshed >= Rfc, RULE_RFC, "mode register before tRFC");
    must(address == 13'h0032, RULE_STATE, "a mode other than bursts of 4 at CAS latency 3");
    set_up = 1'b1;
    mode_set = now;
    powered = now;
    refreshes = 1;
  endtask

  task automatic clock(input logic [2:0] command, input logic [1:0] b, input logic [12:0] address,
                       input bit driven, input logic [15:0] data, output logic [15:0] says,
                       output bit drives_now);
    case (command)
      3'b111: ;
      3'b011: activate(b, address);
      3'b101: access(1'b0, b, address);
      3'b100: access(1'b1, b, address);
      3'b010: begin
        must(now >= longint'(PowerUp), RULE_START, "a command before the power-up time");
        for (int k = 0; k < 4; k++) if (address[10] || b == 2'(k)) precharge(2'(k));
      end
      3'b001: refresh();
      3'b000: mode(address);
      default: must(1'b0, RULE_STATE, "a command that is not used");
    endcase
    if (writing && done > 0) begin
      must(driven, RULE_BUS, "nobody drives the data that are written");
      cells[cell_of(bank, (column & ~3) | ((column + Burst - done) & 3))] = data;
      written[bank] = now;
      done--;
    end
    must(!(driven && drives[3'(now)]), RULE_BUS, "both sides drive the data");
    drives_now = drives[3'(now)];
    says = drives_now ? coming[3'(now)] : 16'((now * 64'h9E37_79B9) >> 8);
    drives[3'(now)] = 1'b0;
    if (set_up) begin
      must((now - powered) / longint'(Interval) - refreshes < longint'(Postponed), RULE_REFRESH,
           "refreshes are late");
    end
    now++;
  endtask

  always @(posedge clk_i) begin : p_clocks
    logic [15:0] first, second;
    bit          drives_first, drives_second;
    clock(command0_i, bank0_i, address0_i, oe_i, dq_i[15:0], first,
          drives_first);
    clock(command1_i, bank1_i, address1_i, oe_i, dq_i[31:16], second,
          drives_second);
    for (int k = Delay; k > 0; k--) late[k] = late[k-1];
    late[0] = {drives_second, drives_first, second, first};
    {drives_o, dq_o} <= late[Delay - 1];
  end
endmodule
`default_nettype wire
