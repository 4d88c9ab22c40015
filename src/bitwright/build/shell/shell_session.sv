// SPDX-License-Identifier: Apache-2.0
// What the device makes of the host's packets: it opens sessions for the right design, and hands
// the bytes of the input stream to the core in order, each once, and only those of whole packets
// that follow what is there. Bytes of a packet are stored behind the stream's end, which moves
// when the packet turns out to be good. core_rst_no is low for 2^6 clocks when a session opens.
// For the answering side: what has been received and consumed, and which replies are wanted.
`default_nettype none
module shell_session #(
  parameter int          BufferBits = 11,
  parameter logic [63:0] Digest     = '0
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic [3:0]  kind_i,
  input  logic [7:0]  session_i,
  input  logic [7:0]  sequence_i,
  input  logic [7:0]  length_i,
  input  logic [15:0] offset_i,
  input  logic        payload_valid_i,
  input  logic [7:0]  payload_index_i,
  input  logic [7:0]  payload_data_i,
  input  logic        done_i,
  input  logic        good_i,
  output logic        core_rst_no,
  output logic        out_valid_o,
  input  logic        out_ready_i,
  output logic [7:0]  out_data_o,
  output logic [7:0]  session_o,
  output logic [7:0]  sequence_o,
  output logic [15:0] received_o,
  output logic [15:0] consumed_o,
  output logic [7:0]  damaged_o,
  output logic [7:0]  flags_o,
  output logic        want_hello_o,
  output logic        want_status_o,
  input  logic        hello_taken_i,
  input  logic        status_taken_i
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (BufferBits < 8 || BufferBits > 14) begin : gen_check
    $error("shell_session: BufferBits must be 8 to 14");
  end
`endif

  localparam logic [3:0] HELLO = 4'd1, OPEN = 4'd2, DATA = 4'd3;
  localparam logic [7:0] DIGEST_BYTES = 8'd8;
  localparam int STORED_BITS = BufferBits + 1, REACH_BITS = BufferBits + 2;

  logic        open_q, other_digest_q, refused_q, match_q, fits_q;
  logic [5:0]  hold_q;  // clocks of the core's reset still to come
  logic        rd_en, ready;

  // Bytes of the stream that are stored; some_q says whether there are any.
  logic [STORED_BITS-1:0] stored_q;
  logic                   some_q, wr_en_q;
  logic [7:0]             wr_data_q;
  logic [BufferBits-1:0]  wr_addr_q;

  // Bytes of the line are many clocks apart, so all that is asked of a packet is known a clock
  // after its fields, and what becomes of it a clock after its end.
  logic        first_q, room_q, own_q, follows_q;
  logic [7:0]  digest_byte_q;
  logic        done_q, good_q, opens_q, fresh_q, takes_q;
  logic        opens, takes;

  assign opens   = done_i && good_i && kind_i == OPEN && match_q && length_i == DIGEST_BYTES;
  assign takes   = done_i && good_i && kind_i == DATA && own_q && follows_q
                 && (fits_q || length_i == '0);
  assign flags_o = {5'd0, refused_q, other_digest_q, open_q};

  always_ff @(posedge clk_i) begin : p_asked
    first_q       <= payload_index_i == '0;
    digest_byte_q <= Digest[{payload_index_i[2:0], 3'b000} +: 8];
    room_q        <= (REACH_BITS'(stored_q) + REACH_BITS'(payload_index_i)) >> BufferBits == '0;
    own_q         <= open_q && session_i == session_o;
    follows_q     <= offset_i == received_o;
    if (payload_valid_i) begin
      match_q <= (match_q || first_q) && payload_data_i == digest_byte_q;
      fits_q  <= (fits_q || first_q) && room_q;
    end
  end

  always_ff @(posedge clk_i) begin : p_verdict
    done_q  <= done_i && rst_ni;
    good_q  <= good_i;
    opens_q <= opens;
    fresh_q <= opens && !own_q && rst_ni;
    takes_q <= takes;
  end

  // A register of its own, for it goes everywhere: low in just the clocks in which hold_q is not 0,
  // and from the start. Not always_ff: that would have to be the only process of what `initial` sets.
  logic core_rst_nq;

  initial core_rst_nq = 1'b0;
  assign core_rst_no = core_rst_nq;

  always @(posedge clk_i) begin : p_core_reset
    core_rst_nq <= rst_ni && !fresh_q && hold_q[5:1] == '0;
  end

  always_ff @(posedge clk_i) begin : p_session
    if (!rst_ni) begin
      open_q         <= 1'b0;
      other_digest_q <= 1'b0;
      refused_q      <= 1'b0;
      session_o      <= '0;
      sequence_o     <= '0;
      damaged_o      <= '0;
      hold_q         <= '0;
      want_hello_o   <= 1'b0;
      want_status_o  <= 1'b0;
    end else begin
      if (hold_q != '0) hold_q <= hold_q - 1'b1;
      if (hello_taken_i) want_hello_o <= 1'b0;
      if (status_taken_i) want_status_o <= 1'b0;
      if (done_q && !good_q) damaged_o <= damaged_o + 1'b1;
      if (done_q && good_q) begin
        sequence_o <= sequence_i;
        if (kind_i == OPEN) other_digest_q <= !opens_q;
        if (kind_i == DATA) refused_q <= !own_q;
        if (kind_i == HELLO) want_hello_o <= 1'b1;
      end
      if (done_q && !(good_q && kind_i == HELLO)) want_status_o <= 1'b1;
      if (fresh_q) begin
        open_q    <= 1'b1;
        refused_q <= 1'b0;
        session_o <= session_i;
        hold_q    <= '1;
      end
    end
  end

  assign ready = !out_valid_o || out_ready_i;
  assign rd_en = some_q && ready && core_rst_no;

  always_ff @(posedge clk_i) begin : p_stream
    if (!core_rst_no || fresh_q) begin
      received_o  <= '0;
      consumed_o  <= '0;
      stored_q    <= '0;
      some_q      <= 1'b0;
      out_valid_o <= 1'b0;
    end else begin
      if (takes_q) received_o <= received_o + 16'(length_i);
      if (rd_en) consumed_o <= consumed_o + 1'b1;
      stored_q   <= stored_q + (takes_q ? STORED_BITS'(length_i) : STORED_BITS'(0)) - STORED_BITS'(rd_en);
      if (takes_q && length_i != '0) some_q <= 1'b1;
      else if (rd_en) some_q <= stored_q != STORED_BITS'(1);
      if (rd_en) out_valid_o <= 1'b1;
      else if (out_ready_i) out_valid_o <= 1'b0;
    end
  end

  always_ff @(posedge clk_i) begin : p_write
    wr_en_q   <= payload_valid_i && kind_i == DATA && room_q;
    wr_addr_q <= received_o[BufferBits-1:0] + BufferBits'(payload_index_i);
    wr_data_q <= payload_data_i;
  end

  mem_ram #(.Width(8), .Depth(1 << BufferBits), .Style(1)) i_store (
    .clk_i,
    .wr_en_i(wr_en_q), .wr_addr_i(wr_addr_q), .wr_data_i(wr_data_q),
    .rd_en_i(rd_en), .rd_addr_i(consumed_o[BufferBits-1:0]), .rd_data_o(out_data_o)
  );

`ifdef BITWRIGHT_CHECKS
  never_more_than_fits: assert property (@(posedge clk_i) disable iff (!rst_ni)
    int'(16'(received_o - consumed_o)) == int'(stored_q) && int'(stored_q) <= 1 << BufferBits
    && some_q == (stored_q != '0));
`endif
endmodule
`default_nettype wire
