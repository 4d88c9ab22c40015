// SPDX-License-Identifier: Apache-2.0
// The serial line of a board as two streams of bytes, of whole and checked packets alone
// (docs/board-protocol.md): input of the core, in order and without gaps, and its answers, of Bytes
// bytes each. A serial break is reported on break_o; core_rst_no also starts every session.
`default_nettype none
module shell_link #(
  parameter int           Step       = 655,
  parameter int           BufferBits = 11,
  parameter int           PauseBits  = 20,
  parameter int           Bytes      = 20,
  parameter int           Chunk      = 20,
  parameter logic [63:0]  Digest     = '0,
  parameter logic [255:0] Hello      = '0
) (
  input  logic       clk_i,
  input  logic       rst_ni,
  input  logic       rx_i,
  output logic       tx_o,
  output logic       break_o,
  output logic       open_o,
  output logic       core_rst_no,
  output logic       out_valid_o,
  input  logic       out_ready_i,
  output logic [7:0] out_data_o,
  input  logic       in_valid_i,
  output logic       in_ready_o,
  input  logic [7:0] in_data_i,
  input  logic       beat_fire_i,
  input  logic       beat_last_i,
  input  logic       hungry_i,
  input  logic       blocked_i,
  input  logic       frame_end_i
);
  logic        rx_valid, payload_valid, done, good, answered, tx_valid, tx_ready;
  logic        want_hello, want_status, hello_taken, status_taken;
  logic [3:0]  kind;
  logic [7:0]  rx_data, packet_session, packet_sequence, length, payload_index, payload_data;
  logic [7:0]  session, sequence_number, damaged, flags, tx_data;
  logic [15:0] offset, received, consumed;
  logic [31:0] cycles;

  assign open_o = flags[0];

  shell_uart_rx #(.Step(Step)) i_rx (
    .clk_i, .rst_ni, .rx_i, .out_valid_o(rx_valid), .out_data_o(rx_data), .break_o
  );
  shell_receive #(.PauseBits(PauseBits)) i_receive (
    .clk_i, .rst_ni, .in_valid_i(rx_valid), .in_data_i(rx_data),
    .kind_o(kind), .session_o(packet_session), .sequence_o(packet_sequence), .length_o(length),
    .offset_o(offset), .payload_valid_o(payload_valid), .payload_index_o(payload_index),
    .payload_data_o(payload_data), .done_o(done), .good_o(good)
  );
  shell_session #(.BufferBits(BufferBits), .Digest(Digest)) i_session (
    .clk_i, .rst_ni,
    .kind_i(kind), .session_i(packet_session), .sequence_i(packet_sequence), .length_i(length),
    .offset_i(offset), .payload_valid_i(payload_valid), .payload_index_i(payload_index),
    .payload_data_i(payload_data), .done_i(done), .good_i(good),
    .core_rst_no, .out_valid_o, .out_ready_i, .out_data_o,
    .session_o(session), .sequence_o(sequence_number), .received_o(received),
    .consumed_o(consumed), .damaged_o(damaged), .flags_o(flags),
    .want_hello_o(want_hello), .want_status_o(want_status),
    .hello_taken_i(hello_taken), .status_taken_i(status_taken)
  );
  shell_stopwatch i_stopwatch (
    .clk_i, .rst_ni(core_rst_no),
    .in_fire_i(beat_fire_i), .in_last_i(beat_last_i), .hungry_i, .blocked_i,
    .out_last_i(frame_end_i), .sent_i(answered), .cycles_o(cycles)
  );
  shell_send #(.Bytes(Bytes), .Chunk(Chunk), .Hello(Hello)) i_send (
    .clk_i, .rst_ni(core_rst_no),
    .in_valid_i, .in_ready_o, .in_data_i,
    .session_i(session), .sequence_i(sequence_number), .received_i(received),
    .consumed_i(consumed), .damaged_i(damaged), .flags_i(flags), .cycles_i(cycles),
    .want_hello_i(want_hello), .want_status_i(want_status),
    .hello_taken_o(hello_taken), .status_taken_o(status_taken), .answered_o(answered),
    .out_valid_o(tx_valid), .out_ready_i(tx_ready), .out_data_o(tx_data)
  );
  shell_uart_tx #(.Step(Step)) i_tx (
    .clk_i, .rst_ni, .in_valid_i(tx_valid), .in_ready_o(tx_ready), .in_data_i(tx_data), .tx_o
  );
endmodule
`default_nettype wire
