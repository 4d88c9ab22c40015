// SPDX-License-Identifier: Apache-2.0
// Packets of the device (docs/board-protocol.md): hello, status and answers. An answer of Bytes
// bytes goes in packets of at most Chunk, each when all of its bytes are here, so that a packet
// never waits for the core. Every packet tells what has been received, and so stands for a status.
`default_nettype none
module shell_send #(
  parameter int           Bytes = 20,
  parameter int           Chunk = 20,
  parameter logic [255:0] Hello = '0
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        in_valid_i,
  output logic        in_ready_o,
  input  logic [7:0]  in_data_i,
  input  logic [7:0]  session_i,
  input  logic [7:0]  sequence_i,
  input  logic [15:0] received_i,
  input  logic [15:0] consumed_i,
  input  logic [7:0]  damaged_i,
  input  logic [7:0]  flags_i,
  input  logic [31:0] cycles_i,
  input  logic        want_hello_i,
  input  logic        want_status_i,
  output logic        hello_taken_o,
  output logic        status_taken_o,
  output logic        answered_o,  // the last byte of an answer is on its way
  output logic        out_valid_o,
  input  logic        out_ready_i,
  output logic [7:0]  out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Bytes < 1 || Chunk < 1 || Chunk > 255 || (Bytes - 1) / Chunk > 65535) begin : gen_check
    $error("shell_send: Bytes must be at least 1, Chunk 1 to 255, chunks 2^16 at most");
  end
`endif

  localparam int CHUNKS = (Bytes + Chunk - 1) / Chunk;
  localparam int LAST   = Bytes - (CHUNKS - 1) * Chunk;  // bytes of the last chunk
  localparam int DEPTH  = Chunk < 8 ? 16 : 1 << $clog2(2 * Chunk);
  localparam int CHUNK_BITS = CHUNKS > 1 ? $clog2(CHUNKS) : 1;
  localparam logic [CHUNK_BITS-1:0] LAST_CHUNK = CHUNK_BITS'(CHUNKS - 1);
  localparam logic [7:0] HELLO_BYTES = 8'd32, HEADER_LAST = 8'd19, CRC_LAST = 8'd3;
  localparam logic [3:0] VERSION = 4'd1, HELLO = 4'd1, STATUS = 4'd2, ANSWER = 4'd3;

  typedef enum logic [1:0] {IDLE, HEADER, PAYLOAD, CHECK} state_t;

  state_t      state_q;
  logic [3:0]  kind_q;
  logic [7:0]  index_q, length_q;
  logic [15:0] received_q, consumed_q, frame_q, chunk;
  logic [CHUNK_BITS-1:0] chunk_q;
  logic [8:0]  have_q;  // bytes of answers that wait
  logic [7:0]  need, answer_byte, sequence_q, damaged_q, flags_q;
  logic [31:0] crc;
  logic        last_chunk, out_fire, idle, push, pop, fifo_valid, ends, crc_busy;

  // What follows from the state goes through registers, for bytes are many clocks apart on the
  // line: after each one, and while the CRC works, nothing is decided until these have settled.
  logic [2:0]  settle_q;
  logic        out_valid_q, last_q, empty_q, whole_q;

  assign last_chunk = chunk_q == LAST_CHUNK;
  assign chunk      = 16'(chunk_q);
  assign need       = last_chunk ? 8'(LAST) : 8'(Chunk);
  assign out_fire   = out_valid_q & out_ready_i;
  assign push       = in_valid_i & in_ready_o;
  assign pop        = out_fire && state_q == PAYLOAD && kind_q == ANSWER;
  assign ends       = out_fire && state_q == CHECK && last_q;
  assign answered_o = ends && kind_q == ANSWER && last_chunk;

  assign idle           = rst_ni && state_q == IDLE && !settle_q[0];
  assign hello_taken_o  = idle && want_hello_i;
  assign status_taken_o = idle && (want_hello_i || whole_q || want_status_i);
  assign out_valid_o    = out_valid_q;

  always_ff @(posedge clk_i) begin : p_state
    if (!rst_ni) begin
      state_q     <= IDLE;
      frame_q     <= '0;
      chunk_q     <= '0;
      have_q      <= '0;
      settle_q    <= '1;
      out_valid_q <= 1'b0;
    end else begin
      have_q      <= have_q + 9'(push) - 9'(pop);
      settle_q    <= out_fire || crc_busy || status_taken_o ? '1 : settle_q >> 1;
      out_valid_q <= state_q != IDLE && !settle_q[0] && !crc_busy && !out_fire;
      unique case (state_q)
        IDLE:    if (status_taken_o) state_q <= HEADER;
        HEADER:  if (out_fire && last_q) state_q <= empty_q ? CHECK : PAYLOAD;
        PAYLOAD: if (out_fire && last_q) state_q <= CHECK;
        default: if (ends) begin
          state_q <= IDLE;
          if (kind_q == ANSWER) chunk_q <= last_chunk ? '0 : chunk_q + 1'b1;
          if (answered_o) frame_q <= frame_q + 1'b1;
        end
      endcase
    end
  end

  always_ff @(posedge clk_i) begin : p_settle
    whole_q <= have_q >= 9'(need);
    empty_q <= length_q == '0;
    unique case (state_q)
      HEADER:  last_q <= index_q == HEADER_LAST;
      PAYLOAD: last_q <= index_q + 8'd1 == length_q;
      default: last_q <= index_q == CRC_LAST;
    endcase
  end

  always_ff @(posedge clk_i) begin : p_packet
    if (state_q == IDLE) begin
      index_q    <= '0;
      kind_q     <= want_hello_i ? HELLO : whole_q ? ANSWER : STATUS;
      length_q   <= want_hello_i ? HELLO_BYTES : whole_q ? need : '0;
      received_q <= received_i;
      consumed_q <= consumed_i;
      sequence_q <= sequence_i;
      damaged_q  <= damaged_i;
      flags_q    <= flags_i;
    end else if (out_fire) begin
      index_q <= last_q ? '0 : index_q + 8'd1;
    end
  end

  // All bytes of the header, the first lowest.
  logic [159:0] header;
  logic [7:0]   header_byte_q, hello_byte_q, crc_byte_q, out_data_q;

  assign header = {cycles_i, flags_q, damaged_q, chunk, frame_q, consumed_q, received_q, length_q,
                   sequence_q, session_i, VERSION, kind_q, 8'h77, 8'h42};
  assign out_data_o = out_data_q;

  always_ff @(posedge clk_i) begin : p_byte
    header_byte_q <= header[{index_q[4:0], 3'b000} +: 8];
    hello_byte_q  <= Hello[{index_q[4:0], 3'b000} +: 8];
    crc_byte_q    <= crc[{index_q[1:0], 3'b000} +: 8];
    unique case (state_q)
      HEADER:  out_data_q <= header_byte_q;
      PAYLOAD: out_data_q <= kind_q == HELLO ? hello_byte_q : answer_byte;
      default: out_data_q <= crc_byte_q;
    endcase
  end

  stream_fifo #(.Width(8), .Depth(DEPTH), .RamStyle(1)) i_fifo (
    .clk_i, .rst_ni,
    .in_valid_i, .in_ready_o, .in_data_i,
    .out_valid_o(fifo_valid), .out_ready_i(pop), .out_data_o(answer_byte)
  );
  shell_crc i_crc (
    .clk_i, .clear_i(state_q == IDLE || (state_q == HEADER && index_q < 8'd2)),
    .valid_i(out_fire && state_q != CHECK), .data_i(out_data_o),
    .busy_o(crc_busy), .crc_o(crc)
  );

`ifdef BITWRIGHT_CHECKS
  answer_is_here: assert property (@(posedge clk_i) disable iff (!rst_ni) pop |-> fifo_valid);
`else
  logic unused;
  assign unused = fifo_valid;
`endif
endmodule
`default_nettype wire
