// SPDX-License-Identifier: Apache-2.0
// Packets of the host out of bytes (docs/board-protocol.md): it hunts for the two bytes of magic,
// takes header, payload and CRC, and says with done_o whether the packet is whole; the fields hold
// until the next packet. Payload bytes are offered before that is known. A pause of 2^PauseBits
// clocks inside a packet ends it. Bytes must be at least 16 clocks apart.
`default_nettype none
module shell_receive #(
  parameter int PauseBits = 20
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        in_valid_i,
  input  logic [7:0]  in_data_i,
  output logic [3:0]  kind_o,
  output logic [7:0]  session_o,
  output logic [7:0]  sequence_o,
  output logic [7:0]  length_o,
  output logic [15:0] offset_o,
  output logic        payload_valid_o,
  output logic [7:0]  payload_index_o,
  output logic [7:0]  payload_data_o,
  output logic        done_o,
  output logic        good_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (PauseBits < 8) begin : gen_check
    $error("shell_receive: PauseBits must be at least 8");
  end
`endif

  localparam logic [7:0] MAGIC_0 = 8'h62, MAGIC_1 = 8'h57;
  localparam logic [31:0] RESIDUE = 32'h2144DF1C;  // CRC of any message that ends with its CRC
  localparam logic [3:0] VERSION = 4'd1;
  localparam logic [7:0] HEADER_LAST = 8'd5, CRC_LAST = 8'd3;

  typedef enum logic [2:0] {HUNT, MAGIC, HEADER, PAYLOAD, CHECK, JUDGE, SAY} state_t;

  state_t             state_q, state_d;
  logic [7:0]         count_q, count_d;
  logic [47:0]        header_q;
  logic [PauseBits:0] pause_q;
  logic               in_header, in_packet, crc_busy, too_long;
  logic               last_q, empty_q, good_q;  // a clock late: bytes are many clocks apart
  logic [31:0]        crc;

  assign kind_o          = header_q[3:0];
  assign session_o       = header_q[15:8];
  assign sequence_o      = header_q[23:16];
  assign length_o        = header_q[31:24];
  assign offset_o        = header_q[47:32];
  assign payload_valid_o = in_valid_i && state_q == PAYLOAD;
  assign payload_index_o = count_q;
  assign payload_data_o  = in_data_i;
  assign in_header       = state_q == HEADER;
  assign in_packet       = in_header || state_q == PAYLOAD || state_q == CHECK;
  assign too_long        = in_packet && pause_q[PauseBits];
  assign done_o          = state_q == SAY || too_long;
  assign good_o          = state_q == SAY && good_q;

  always_comb begin : p_next
    state_d = state_q;
    count_d = count_q;
    if (in_valid_i) count_d = last_q ? '0 : count_q + 8'd1;
    unique case (state_q)
      HUNT:    if (in_valid_i && in_data_i == MAGIC_0) state_d = MAGIC;
      MAGIC:   if (in_valid_i && in_data_i != MAGIC_0) begin
        if (in_data_i == MAGIC_1) state_d = HEADER;
        else state_d = HUNT;
        count_d = '0;
      end
      HEADER:  if (in_valid_i && last_q) begin
        if (empty_q) state_d = CHECK;
        else state_d = PAYLOAD;
      end
      PAYLOAD: if (in_valid_i && last_q) state_d = CHECK;
      CHECK:   if (in_valid_i && last_q) state_d = JUDGE;
      JUDGE:   if (!crc_busy) state_d = SAY;
      default: state_d = HUNT;
    endcase
    if (too_long) state_d = HUNT;
  end

  always_ff @(posedge clk_i) begin : p_state
    if (!rst_ni) state_q <= HUNT;
    else state_q <= state_d;
  end

  always_ff @(posedge clk_i) begin : p_data
    count_q <= count_d;
    if (in_valid_i && in_header) header_q <= {in_data_i, header_q[47:8]};
    if (in_valid_i || !in_packet) pause_q <= '0;
    else pause_q <= pause_q + 1'b1;
  end

  always_ff @(posedge clk_i) begin : p_settle
    empty_q <= header_q[39:32] == '0;  // the length, before the last shift
    good_q  <= crc == RESIDUE && header_q[7:4] == VERSION;
    unique case (state_q)
      HEADER:  last_q <= count_q == HEADER_LAST;
      PAYLOAD: last_q <= count_q + 8'd1 == length_o;
      default: last_q <= count_q == CRC_LAST;
    endcase
  end

  shell_crc i_crc (
    .clk_i, .clear_i(state_q == HUNT || state_q == MAGIC),
    .valid_i(in_valid_i & in_packet), .data_i(in_data_i),
    .busy_o(crc_busy), .crc_o(crc)
  );
endmodule
`default_nettype wire
