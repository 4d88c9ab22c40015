// SPDX-License-Identifier: Apache-2.0
// Unit S: STORE, one at a time. Reads a burst from the features, a word in every cycle with slot_i,
// as soon as the FIFO of Places words has room for Burst; when the last word is read, asks the
// memory to write it and sends the words behind the address. Complete (done_o) when every burst is
// answered; at most 32 are not. Answers to what was asked before a reset carry another AWID and do
// not count.
`default_nettype none
module engine_store #(
  parameter int Width     = 64,
  parameter int AddrWidth = 32,
  parameter int CellWidth = 16,
  parameter int Burst     = 16,
  parameter int Places    = 32
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic                 slot_i,
  input  logic                 valid_i,
  output logic                 ready_o,
  input  logic [255:0]         word_i,
  input  logic                 ready_i,   // tokens
  output logic                 go_o,
  output logic                 done_o,
  output logic [3:0]           signal_o,
  input  logic [AddrWidth-1:0] base_i,    // bytes
  output logic                 read_o,
  output logic [CellWidth-1:0] addr_o,
  input  logic [Width-1:0]     data_i,    // 4 cycles later
  output logic                 aw_valid_o,
  input  logic                 aw_ready_i,
  output logic [AddrWidth-1:0] aw_addr_o,
  output logic [7:0]           aw_len_o,
  output logic [1:0]           aw_id_o,
  output logic                 w_valid_o,
  input  logic                 w_ready_i,
  output logic [Width-1:0]     w_data_o,
  output logic                 w_last_o,
  input  logic                 b_valid_i,
  input  logic [1:0]           b_id_i
);
  localparam int ByteWidth = $clog2(Width / 8);
  localparam int WordWidth = AddrWidth - ByteWidth;
  localparam int LenWidth  = $clog2(Burst + 1);
  localparam int FreeWidth = $clog2(Places + 1);

  // The instruction.
  logic                 run_q, asking_q, last, begin_burst, answered;
  logic [5:0]           pending_q;  // bursts begun and not answered
  logic [255:0]         held_q, now;
  logic [31:0]          memory;
  logic [15:0]          x, address, buffer_y, buffer_z;
  logic [11:0]          y, z;
  logic [23:0]          memory_y, memory_z;

  assign go_o    = valid_i & ready_i & ~run_q;
  assign ready_o = go_o;
  assign now     = run_q ? held_q : word_i;

  engine_fields_store i_fields (
    .word_i(now), .signal_o, .memory_o(memory), .x_o(x), .y_o(y), .z_o(z), .memory_y_o(memory_y),
    .memory_z_o(memory_z), .address_o(address), .buffer_y_o(buffer_y), .buffer_z_o(buffer_z),
    .wait_o(), .base_o()
  );

  assign done_o = run_q & ~asking_q & (pending_q == '0);

  always_ff @(posedge clk_i) begin : p_run
    if (!rst_ni) begin
      run_q     <= 1'b0;
      asking_q  <= 1'b0;
      pending_q <= '0;
    end else begin
      run_q     <= go_o | (run_q & ~done_o);
      asking_q  <= go_o | (asking_q & ~(begin_burst & last));
      pending_q <= pending_q + 6'(begin_burst) - 6'(answered);
    end
    if (go_o) held_q <= word_i;
  end

  // Reading.
  logic                 burst_q, arrive, burst_last, room, cell_last;
  logic [LenWidth-1:0]  len, len_q, left_q;
  logic [WordWidth-1:0] burst_addr, addr_q;
  logic [FreeWidth-1:0] free_q;
  logic                 sent;

  assign begin_burst = asking_q & ~burst_q & room & ~pending_q[5] & (free_q >= FreeWidth'(Burst));
  assign read_o      = burst_q & slot_i;
  assign burst_last  = read_o & (left_q == LenWidth'(1));

  engine_bursts #(.AddrWidth(WordWidth), .Words(Burst)) i_bursts (
    .clk_i, .start_i(go_o), .addr_i(base_i[AddrWidth-1:ByteWidth] + WordWidth'(memory)),
    .x_i(x), .y_i(y), .z_i(z), .step_y_i(WordWidth'($signed(memory_y))),
    .step_z_i(WordWidth'($signed(memory_z))), .next_i(begin_burst), .addr_o(burst_addr),
    .len_o(len), .last_o(last)
  );
  engine_cells #(.AddrWidth(CellWidth)) i_cells (
    .clk_i, .start_i(go_o), .addr_i(CellWidth'(address)), .x_i(x), .y_i(y), .z_i(z),
    .step_x_i(CellWidth'(1)), .step_y_i(CellWidth'(buffer_y)), .step_z_i(CellWidth'(buffer_z)),
    .next_i(read_o), .addr_o, .last_o(cell_last)
  );

  always_ff @(posedge clk_i) begin : p_read
    if (!rst_ni) begin
      burst_q  <= 1'b0;
      free_q   <= FreeWidth'(Places);
    end else begin
      burst_q  <= begin_burst | (burst_q & ~burst_last);
      free_q   <= free_q - (begin_burst ? FreeWidth'(len) : '0) + FreeWidth'(sent);
    end
    if (begin_burst) begin
      left_q <= len;
      len_q  <= len;
      addr_q <= burst_addr;
    end else if (read_o) begin
      left_q <= left_q - 1'b1;
    end
  end

  // Words come 4 cycles behind their addresses.
  engine_strobe #(.Cycles(4)) i_arrive (.clk_i, .rst_ni, .data_i(read_o), .data_o(arrive));

  // Writing.
  logic                sending_q, taken, word_valid, word_room;
  logic [LenWidth-1:0] aw_len, send_left_q;
  logic [1:0]          epoch_q;
  logic                asked_q, queued;

  stream_fifo #(.Width(WordWidth + LenWidth), .Depth(4), .RamStyle(2)) i_bursts_read (
    .clk_i, .rst_ni, .in_valid_i(burst_last), .in_ready_o(room), .in_data_i({addr_q, len_q}),
    .out_valid_o(queued), .out_ready_i(taken),
    .out_data_o({aw_addr_o[AddrWidth-1:ByteWidth], aw_len})
  );
  stream_fifo #(.Width(Width), .Depth(Places), .RamStyle(2)) i_words (
    .clk_i, .rst_ni, .in_valid_i(arrive), .in_ready_o(word_room), .in_data_i(data_i),
    .out_valid_o(word_valid), .out_ready_i(sent), .out_data_o(w_data_o)
  );

  assign aw_valid_o               = queued & ~sending_q;
  assign aw_addr_o[ByteWidth-1:0] = '0;
  assign aw_len_o                 = 8'(aw_len) - 8'd1;
  assign aw_id_o                  = epoch_q;
  assign taken                    = aw_valid_o & aw_ready_i;
  assign w_valid_o                = sending_q & word_valid;
  assign w_last_o                 = send_left_q == LenWidth'(1);
  assign sent                     = w_valid_o & w_ready_i;
  assign answered                 = b_valid_i & (b_id_i == epoch_q);

  always_ff @(posedge clk_i) begin : p_send
    if (!rst_ni) sending_q <= 1'b0;
    else sending_q <= taken | (sending_q & ~(sent & w_last_o));
    if (taken) send_left_q <= aw_len;
    else if (sent) send_left_q <= send_left_q - 1'b1;
  end

  // A reset behind which something was asked ends an epoch. The number itself is never reset.
  initial begin : p_power_up
    epoch_q = '0;
    asked_q = 1'b0;
  end

  // Not always_ff: that would have to be the only process of what `initial` sets.
  always @(posedge clk_i) begin : p_epoch
    asked_q <= (asked_q | taken) & rst_ni;
    if (!rst_ni) epoch_q <= epoch_q + 2'(asked_q);
  end

  logic unused;
  assign unused = ^{memory, address, buffer_y, buffer_z, base_i[ByteWidth-1:0], cell_last,
                    word_room};

`ifdef BITWRIGHT_CHECKS
  always_room: assert property (@(posedge clk_i) disable iff (!rst_ni) arrive |-> word_room);
`endif
endmodule
`default_nettype wire
