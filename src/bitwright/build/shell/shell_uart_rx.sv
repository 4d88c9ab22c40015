// SPDX-License-Identifier: Apache-2.0
// Serial receiver: 8 data bits, no parity, one stop bit, Step / 2^16 bits a clock, 8 clocks a bit
// or more. Each bit is the majority of three samples, at 3, 4 and 5 eighths of it and up to a
// clock behind: the rates of both ends may differ by 3.7 %, and a disturbance of less than an
// eighth in every start and data bit does no harm. From the last sample of a stop bit on the next
// start bit may come. A byte is offered for one clock on out_valid_o; there is no way to refuse it.
// break_o is high for one clock when the line was low for a whole character: a break. After a
// break, a bad stop bit and reset it waits for a high line before it takes a start bit.
`default_nettype none
module shell_uart_rx #(
  parameter int Step = 655
) (
  input  logic       clk_i,
  input  logic       rst_ni,
  input  logic       rx_i,
  output logic       out_valid_o,
  output logic [7:0] out_data_o,
  output logic       break_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Step < 1 || Step > 8192) begin : gen_check
    $error("shell_uart_rx: Step must be 1 to 8192, which is 8 clocks a bit");
  end
`endif

  logic        rx, busy_q, free, tick_q, sample, vote, stop;
  logic [12:0] phase_q;   // a clock ahead, within an eighth of a bit; tick_q: that eighth ends
  logic [2:0]  eighth_q;  // of the bit
  logic [1:0]  heard_q;   // at the ends of the last two
  logic [3:0]  bit_q;  // 0: start, 1 to 8: data, 9: stop, 10: waiting for a high line
  logic [7:0]  data_q;

  shell_sync #(.Start(1'b1)) i_sync (.clk_i, .in_i(rx_i), .out_o(rx));

  assign sample     = busy_q && tick_q && eighth_q == 3'd4;
  assign vote       = (rx & heard_q[0]) | (rx & heard_q[1]) | (heard_q[0] & heard_q[1]);
  assign stop       = sample && bit_q == 4'd9;
  // A start bit that has gone again was a glitch.
  assign free       = !busy_q || (sample && vote && (bit_q == 4'd0 || bit_q >= 4'd9));
  assign out_data_o = data_q;

  always_ff @(posedge clk_i) begin : p_control
    if (!rst_ni) begin
      busy_q      <= 1'b1;
      bit_q       <= 4'd10;
      out_valid_o <= 1'b0;
      break_o     <= 1'b0;
    end else begin
      out_valid_o <= stop && vote;
      break_o     <= stop && !vote && data_q == 8'd0;
      if (free) begin
        busy_q <= !rx;
        bit_q  <= '0;
      end else if (sample) begin
        bit_q <= bit_q == 4'd10 ? 4'd10 : bit_q + 4'd1;
      end
    end
  end

  // A start bit is seen half a clock late on average.
  always_ff @(posedge clk_i) begin : p_phase
    if (!rst_ni || free) begin
      {tick_q, phase_q} <= 14'(Step + Step / 2);
      eighth_q          <= '0;
    end else begin
      {tick_q, phase_q} <= {1'b0, phase_q} + 14'(Step);
      if (tick_q) eighth_q <= eighth_q + 3'd1;
    end
    if (tick_q) heard_q <= {heard_q[0], rx};
  end

  always_ff @(posedge clk_i) begin : p_data
    if (sample && bit_q >= 4'd1 && bit_q <= 4'd8) data_q <= {vote, data_q[7:1]};
  end
endmodule
`default_nettype wire
