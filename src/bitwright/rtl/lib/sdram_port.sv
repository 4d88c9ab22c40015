// SPDX-License-Identifier: Apache-2.0
// An AXI4 port of 64 bits on an SDRAM of 16, which runs at twice the clock: two commands a cycle,
// rows in the first clock, columns in the second; a word is a burst of 4, so half a word a cycle. A
// burst is served while the row of the next one is opened, and rows stay open until another one of
// their bank is wanted or a refresh is due (every Refresh cycles). Where both kinds of requests
// wait, they are served in turn; a write is answered when its last word has been commanded, and
// what is asked behind that sees it. Neighbouring rows lie in different banks. Bursts are INCR, of
// whole words, and stay inside of a row (1 KiB with ColWidth 9). Read data and answers are not held
// back: there is no RREADY, no BREADY. Every ready depends on registers alone. rst_ni drops what
// has been asked; the chip keeps its contents. sync_i, synced_o: see sdram_sequence.
`default_nettype none
module sdram_port #(
  parameter int AddrWidth = 32,
  parameter int IdWidth   = 3,
  parameter int RowWidth  = 13,
  parameter int ColWidth  = 9,
  parameter int Rcd       = 1,
  parameter int Rp        = 2,
  parameter int Ras       = 3,
  parameter int Rfc       = 5,
  parameter int Rrd       = 1,
  parameter int Mrd       = 1,
  parameter int Close     = 3,
  parameter int Turn      = 5,
  parameter int PowerUp   = 12500,
  parameter int Refresh   = 486,
  parameter int Refreshes = 8,
  parameter int Delay     = 5
) (
  input  logic                 clk_i,
  input  logic                 power_ni,
  input  logic                 rst_ni,
  input  logic                 sync_i,
  output logic                 synced_o,
  output logic                 ready_o,    // powered up
  input  logic                 s_axi_arvalid,
  output logic                 s_axi_arready,
  input  logic [AddrWidth-1:0] s_axi_araddr,
  input  logic [7:0]           s_axi_arlen,
  input  logic [IdWidth-1:0]   s_axi_arid,
  output logic                 s_axi_rvalid,
  output logic [63:0]          s_axi_rdata,
  output logic [IdWidth-1:0]   s_axi_rid,
  output logic                 s_axi_rlast,
  input  logic                 s_axi_awvalid,
  output logic                 s_axi_awready,
  input  logic [AddrWidth-1:0] s_axi_awaddr,
  input  logic [7:0]           s_axi_awlen,
  input  logic [IdWidth-1:0]   s_axi_awid,
  input  logic                 s_axi_wvalid,
  output logic                 s_axi_wready,
  input  logic [63:0]          s_axi_wdata,
  input  logic                 s_axi_wlast,
  output logic                 s_axi_bvalid,
  output logic [IdWidth-1:0]   s_axi_bid,
  output logic [2:0]           row_command_o,     // {ras, cas, we}, low active: first clock
  output logic [1:0]           row_bank_o,
  output logic [RowWidth-1:0]  row_address_o,
  output logic [2:0]           column_command_o,  // second clock
  output logic [1:0]           column_bank_o,
  output logic [RowWidth-1:0]  column_address_o,
  output logic                 oe_o,
  output logic [31:0]          dq_o,
  input  logic [31:0]          dq_i
);
  localparam int ColWords = ColWidth - 2, PlaceWidth = RowWidth + 2 + ColWords;
  localparam logic [2:0] NOP = 3'b111, READ = 3'b101, WRITE = 3'b100;
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (RowWidth != 13 || ColWidth < 8 || ColWidth > 10 || AddrWidth < ColWidth + 16 || Turn < 2
      || Turn > 8) begin : gen_check
    $error("sdram_port: RowWidth 13, ColWidth 8 to 10, AddrWidth for all rows, Turn 2 to 8");
  end
`endif

  // What has been asked.
  logic                next_valid, next_write, give;
  logic [IdWidth-1:0]  next_id;
  logic [7:0]          next_length;
  logic [RowWidth-1:0] next_row;
  logic [1:0]          next_bank;
  logic [ColWords-1:0] next_col;

  sdram_asked #(.PlaceWidth(PlaceWidth), .ColWords(ColWords), .IdWidth(IdWidth)) i_asked (
    .clk_i, .power_ni, .rst_ni, .ready_i(ready_o), .fresh_i(synced_o),
    .ar_valid_i(s_axi_arvalid), .ar_ready_o(s_axi_arready),
    .ar_place_i(s_axi_araddr[3 +: PlaceWidth]), .ar_len_i(s_axi_arlen), .ar_id_i(s_axi_arid),
    .aw_valid_i(s_axi_awvalid), .aw_ready_o(s_axi_awready),
    .aw_place_i(s_axi_awaddr[3 +: PlaceWidth]), .aw_len_i(s_axi_awlen), .aw_id_i(s_axi_awid),
    .next_valid_o(next_valid), .give_i(give), .next_write_o(next_write), .next_id_o(next_id),
    .next_len_o(next_length), .next_place_o({next_row, next_bank, next_col})
  );

  // The burst that is served.
  logic                busy_q, write_q, column, last, can, row_open, hold;
  logic [IdWidth-1:0]  id_q;
  logic [7:0]          left_q;
  logic [1:0]          bank_q;
  logic [ColWords-1:0] col_q;
  logic [2:0]          gap_q, turn_q;  // until a column, a column to write may be commanded

  assign give         = next_valid & row_open & ~busy_q & ~hold;
  assign can          = busy_q & (gap_q == '0) & (~write_q | (turn_q == '0));
  assign s_axi_wready = can & write_q;
  assign column       = can & (~write_q | s_axi_wvalid);
  assign last         = left_q == '0;

  always_ff @(posedge clk_i) begin : p_serve
    if (!rst_ni) busy_q <= 1'b0;
    else busy_q <= give | (busy_q & ~(column & last));
    if (give) begin
      write_q <= next_write;
      id_q    <= next_id;
      left_q  <= next_length;
      bank_q  <= next_bank;
      col_q   <= next_col;
    end else if (column) begin
      left_q <= left_q - 1'b1;
      col_q  <= col_q + 1'b1;
    end
  end

  always_ff @(posedge clk_i) begin : p_gaps
    if (!power_ni) begin
      gap_q  <= '0;
      turn_q <= '0;
    end else begin
      gap_q <= column ? 3'd1 : gap_q == '0 ? '0 : gap_q - 1'b1;
      turn_q <= column && !write_q ? 3'(Turn - 1) : turn_q == '0 ? '0 : turn_q - 1'b1;
    end
  end

  always_ff @(posedge clk_i) begin : p_answer
    if (!rst_ni) s_axi_bvalid <= 1'b0;
    else s_axi_bvalid <= column & write_q & last;
    s_axi_bid <= id_q;
  end

  // Commands.
  logic                clear, quiet;
  logic [2:0]          bank_command, own_command;
  logic [1:0]          bank_bank;
  logic [RowWidth-1:0] bank_address;
  logic [12:0]         own_address;

  sdram_sequence #(
    .Rp(Rp), .Rfc(Rfc), .Mrd(Mrd), .PowerUp(PowerUp), .Refresh(Refresh), .Refreshes(Refreshes)
  ) i_sequence (
    .clk_i, .power_ni, .rst_ni, .quiet_i(quiet), .sync_i, .synced_o, .hold_o(hold),
    .clear_o(clear), .ready_o, .command_o(own_command), .address_o(own_address)
  );
  sdram_banks #(
    .RowWidth(RowWidth), .Rcd(Rcd), .Rp(Rp), .Ras(Ras), .Rrd(Rrd), .Close(Close)
  ) i_banks (
    .clk_i, .power_ni, .clear_i(clear), .hold_i(hold), .want_i(next_valid), .want_bank_i(next_bank),
    .want_row_i(next_row), .busy_i(busy_q), .busy_bank_i(bank_q), .column_i(column),
    .open_o(row_open), .quiet_o(quiet), .command_o(bank_command), .bank_o(bank_bank),
    .address_o(bank_address)
  );

  // The chip must see none before the first reset either. Not always_ff: that would have to be the
  // only process of what `initial` sets.
  initial begin : p_power_up
    row_command_o    = NOP;
    column_command_o = NOP;
  end

  always @(posedge clk_i) begin : p_commands
    if (!power_ni) begin
      row_command_o    <= NOP;
      column_command_o <= NOP;
    end else begin
      row_command_o    <= own_command & bank_command;
      column_command_o <= !column ? NOP : write_q ? WRITE : READ;
    end
  end
  always_ff @(posedge clk_i) begin : p_places
    row_bank_o       <= bank_bank;
    row_address_o    <= own_command != NOP ? RowWidth'(own_address) : bank_address;
    column_bank_o    <= bank_q;
    column_address_o <= RowWidth'({col_q, 2'b00});
  end

  sdram_data #(.TagWidth(IdWidth + 1), .Delay(Delay)) i_data (
    .clk_i, .rst_ni, .column_i(column), .write_i(write_q), .word_i(s_axi_wdata),
    .tag_i({last, id_q}), .valid_o(s_axi_rvalid), .word_o(s_axi_rdata),
    .tag_o({s_axi_rlast, s_axi_rid}), .oe_o, .dq_o, .dq_i
  );

`ifdef BITWRIGHT_CHECKS
  in_a_row: assert property (@(posedge clk_i) disable iff (!rst_ni)
    give |-> int'(next_col) + int'(next_length) < 1 << ColWords);
  wlast: assert property (@(posedge clk_i) disable iff (!rst_ni)
    column && write_q |-> s_axi_wlast == last);
  one_commands: assert property (@(posedge clk_i) disable iff (!power_ni)
    own_command == NOP || bank_command == NOP);
`endif
  logic unused;
  assign unused = ^{s_axi_araddr, s_axi_awaddr, s_axi_wlast};
endmodule
`default_nettype wire
