// SPDX-License-Identifier: Apache-2.0
// Clocks that the core takes for a frame, from the first beat it takes to the last byte it gives,
// both counted; those in which it has a beat that is not taken do not count. Timed are frames that
// come when all before are answered, and for which it never waits for the line. cycles_o is zero
// where the frame that is answered was not timed. It holds from the frame's end to sent_i.
`default_nettype none
module shell_stopwatch (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        in_fire_i,   // a beat is taken,
  input  logic        in_last_i,   // the last one of its frame
  input  logic        hungry_i,    // a beat is wanted, and its bytes are not there
  input  logic        blocked_i,   // a beat is there and not taken
  input  logic        out_last_i,  // the last byte of a frame is taken
  input  logic        sent_i,      // the answer is on its way
  output logic [31:0] cycles_o
);
  typedef enum logic [1:0] {IDLE, RUNNING, DONE} state_t;

  state_t      state_q;
  logic        inside_q;  // of a frame
  logic [15:0] frames_q;  // begun and not answered
  logic        begins;
  logic [31:0] count_q;
  // A clock late, all together: some of them come out of the core.
  logic        in_fire_q, in_last_q, hungry_q, blocked_q, out_last_q, sent_q;

  assign begins   = in_fire_q & ~inside_q;
  assign cycles_o = state_q == DONE ? count_q : '0;

  always_ff @(posedge clk_i) begin : p_inputs
    in_fire_q  <= in_fire_i;
    in_last_q  <= in_last_i;
    hungry_q   <= hungry_i;
    blocked_q  <= blocked_i;
    out_last_q <= out_last_i;
    sent_q     <= sent_i;
  end

  always_ff @(posedge clk_i) begin : p_state
    if (!rst_ni) begin
      state_q  <= IDLE;
      inside_q <= 1'b0;
      frames_q <= '0;
    end else begin
      if (in_fire_q) inside_q <= ~in_last_q;
      if (begins && !sent_q) frames_q <= frames_q + 1'b1;
      if (!begins && sent_q) frames_q <= frames_q - 1'b1;
      unique case (state_q)
        IDLE:    if (begins && frames_q == '0) state_q <= RUNNING;
        RUNNING: if (hungry_q && inside_q) state_q <= IDLE;
        else if (out_last_q) state_q <= DONE;
        default: if (sent_q) state_q <= IDLE;
      endcase
    end
  end

  always_ff @(posedge clk_i) begin : p_count
    if (state_q == IDLE) count_q <= 32'd1;
    else if (state_q == RUNNING && !blocked_q) count_q <= count_q + 1'b1;
  end
endmodule
`default_nettype wire
