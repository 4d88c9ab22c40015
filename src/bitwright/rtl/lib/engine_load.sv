// SPDX-License-Identifier: Apache-2.0
// Unit L: LOAD. Two machines: one asks the memory for a block, burst after burst, as long as the
// FIFO of Places words has room for Burst; the other writes what comes into the buffer. The first
// one may be at the next LOAD while the second is still at the one before. A LOAD is taken (go_o,
// with its tokens) when the first machine is free and the second has at most one LOAD; it is
// complete (done_o) with its last word. Words go into the features in cycles with slot_i, into the
// others in any cycle.
`default_nettype none
module engine_load #(
  parameter int Width     = 64,
  parameter int AddrWidth = 32,
  parameter int Burst     = 16,
  parameter int Places    = 64
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
  output logic                 idle_o,
  input  logic [AddrWidth-1:0] base_i,    // bytes
  output logic                 ar_valid_o,
  input  logic                 ar_ready_i,
  output logic [AddrWidth-1:0] ar_addr_o,
  output logic [7:0]           ar_len_o,
  input  logic                 r_valid_i,
  input  logic [Width-1:0]     r_data_i,
  output logic [3:0]           write_o,   // features, weights, parameters, tables
  output logic [1:0]           diagonal_o,
  output logic [15:0]          addr_o,
  output logic [Width-1:0]     data_o
);
  localparam int ByteWidth = $clog2(Width / 8);
  localparam int WordWidth = AddrWidth - ByteWidth;
  localparam int LenWidth  = $clog2(Burst + 1);
  localparam int FreeWidth = $clog2(Places + 1);

  // Requests.
  logic                 asking_q, next_free, last, request, taken;
  logic [255:0]         ask_q;
  logic [31:0]          memory, ask_memory;
  logic [15:0]          x, ask_x;
  logic [11:0]          y, z, ask_y, ask_z;
  logic [23:0]          memory_y, memory_z;
  logic [WordWidth-1:0] burst_addr;
  logic [LenWidth-1:0]  len;
  logic [FreeWidth-1:0] free_q;

  engine_fields_load i_head (
    .word_i, .memory_o(memory), .x_o(x), .y_o(y), .z_o(z),
    .wait_o(), .signal_o(), .buffer_o(), .mode_o(), .base_o(), .memory_y_o(), .memory_z_o(),
    .address_o(), .buffer_y_o(), .buffer_z_o()
  );
  engine_fields_load i_ask (
    .word_i(ask_q), .memory_o(ask_memory), .x_o(ask_x), .y_o(ask_y), .z_o(ask_z),
    .memory_y_o(memory_y), .memory_z_o(memory_z),
    .wait_o(), .signal_o(), .buffer_o(), .mode_o(), .base_o(), .address_o(), .buffer_y_o(),
    .buffer_z_o()
  );
  assign go_o    = valid_i & ready_i & ~asking_q & next_free;
  assign ready_o = go_o;
  assign request = asking_q & (~ar_valid_o | ar_ready_i) & (free_q >= FreeWidth'(Burst));

  engine_bursts #(.AddrWidth(WordWidth), .Words(Burst)) i_bursts (
    .clk_i, .start_i(go_o), .addr_i(base_i[AddrWidth-1:ByteWidth] + WordWidth'(memory)),
    .x_i(asking_q ? ask_x : x), .y_i(asking_q ? ask_y : y), .z_i(asking_q ? ask_z : z),
    .step_y_i(WordWidth'($signed(memory_y))), .step_z_i(WordWidth'($signed(memory_z))),
    .next_i(request), .addr_o(burst_addr), .len_o(len), .last_o(last)
  );

  always_ff @(posedge clk_i) begin : p_request
    if (!rst_ni) begin
      asking_q   <= 1'b0;
      ar_valid_o <= 1'b0;
      free_q     <= FreeWidth'(Places);
    end else begin
      asking_q <= go_o | (asking_q & ~(request & last));
      if (request) ar_valid_o <= 1'b1;
      else if (ar_ready_i) ar_valid_o <= 1'b0;
      free_q <= free_q - (request ? FreeWidth'(len) : '0) + FreeWidth'(taken);
    end
    if (go_o) ask_q <= word_i;
    if (request) begin
      ar_addr_o <= {burst_addr, {ByteWidth{1'b0}}};
      ar_len_o  <= 8'(len) - 8'd1;
    end
  end

  // Data.
  logic beat_valid, room;

  stream_fifo #(.Width(Width), .Depth(Places), .RamStyle(1)) i_fifo (
    .clk_i, .rst_ni, .in_valid_i(r_valid_i), .in_ready_o(room), .in_data_i(r_data_i),
    .out_valid_o(beat_valid), .out_ready_i(taken), .out_data_o(data_o)
  );

  logic         next_valid_q, fill_q, start, fill_last;
  logic [255:0] next_q, fill_word_q, fill;
  logic [15:0]  fill_x, address, buffer_y, buffer_z;
  logic [11:0]  fill_y, fill_z;
  logic [3:0]   buffer, mode, signal;

  assign next_free = ~next_valid_q;
  assign start     = next_valid_q & ~fill_q;
  assign fill      = fill_q ? fill_word_q : next_q;

  engine_fields_load i_fill (
    .word_i(fill), .signal_o(signal), .buffer_o(buffer), .mode_o(mode), .x_o(fill_x), .y_o(fill_y),
    .z_o(fill_z), .address_o(address), .buffer_y_o(buffer_y), .buffer_z_o(buffer_z),
    .wait_o(), .base_o(), .memory_o(), .memory_y_o(), .memory_z_o()
  );
  engine_cells i_cells (
    .clk_i, .start_i(start), .addr_i(address), .x_i(fill_x), .y_i(fill_y), .z_i(fill_z),
    .step_x_i(mode == '0 ? 16'd1 : 16'(Width / 8)), .step_y_i(buffer_y), .step_z_i(buffer_z),
    .next_i(taken), .addr_o, .last_o(fill_last)
  );

  assign taken      = beat_valid & fill_q & (slot_i | (buffer[1:0] != 2'd0));
  assign diagonal_o = mode[1:0];
  assign idle_o     = ~asking_q & ~next_valid_q & ~fill_q;

  for (genvar b = 0; b < 4; b++) begin : gen_write
    assign write_o[b] = taken && buffer[1:0] == 2'(b);
  end

  always_ff @(posedge clk_i) begin : p_fill
    if (!rst_ni) begin
      next_valid_q <= 1'b0;
      fill_q       <= 1'b0;
      done_o       <= 1'b0;
    end else begin
      next_valid_q <= go_o | (next_valid_q & ~start);
      fill_q       <= start | (fill_q & ~(taken & fill_last));
      done_o       <= taken & fill_last;
    end
    if (go_o) next_q <= word_i;
    if (start) fill_word_q <= next_q;
    signal_o <= signal;
  end

  logic unused;
  assign unused = ^{buffer, mode, room, memory, ask_memory, base_i[ByteWidth-1:0]};

`ifdef BITWRIGHT_CHECKS
  always_room: assert property (@(posedge clk_i) disable iff (!rst_ni) r_valid_i |-> room);
`endif
endmodule
`default_nettype wire
