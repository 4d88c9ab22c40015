// SPDX-License-Identifier: Apache-2.0
// Serial receiver: 8 data bits, no parity, one stop bit, ClocksPerBit clocks a bit, sampled in the
// middle. A byte is offered for one clock on out_valid_o; there is no way to refuse it.
// break_o is high for one clock when the line was low for a whole character: a break. After a
// break, a bad stop bit and reset it waits for a high line before it takes a start bit.
`default_nettype none
module shell_uart_rx #(
  parameter int ClocksPerBit = 100
) (
  input  logic       clk_i,
  input  logic       rst_ni,
  input  logic       rx_i,
  output logic       out_valid_o,
  output logic [7:0] out_data_o,
  output logic       break_o
);
  if (ClocksPerBit < 4) begin : gen_check
    $error("shell_uart_rx: ClocksPerBit must be at least 4");
  end

  localparam int TimerWidth = $clog2(ClocksPerBit + 1);

  logic                  meta_q, rx_q, busy_q;
  logic [TimerWidth-1:0] timer_q;
  logic [3:0]            bit_q;  // 0: start, 1 to 8: data, 9: stop, 10: waiting for a high line
  logic [7:0]            data_q;
  logic                  sample, stop;

  assign sample     = busy_q && timer_q == '0;
  assign stop       = sample && bit_q == 4'd9;
  assign out_data_o = data_q;

  always_ff @(posedge clk_i) begin : p_input
    meta_q <= rx_i;
    rx_q   <= meta_q;
  end

  always_ff @(posedge clk_i) begin : p_control
    if (!rst_ni) begin
      busy_q      <= 1'b1;
      timer_q     <= '0;
      bit_q       <= 4'd10;
      out_valid_o <= 1'b0;
      break_o     <= 1'b0;
    end else begin
      out_valid_o <= stop && rx_q;
      break_o     <= stop && !rx_q && data_q == 8'd0;
      if (!busy_q) begin
        busy_q  <= !rx_q;
        timer_q <= TimerWidth'(ClocksPerBit / 2 - 1);
        bit_q   <= '0;
      end else if (sample) begin
        timer_q <= TimerWidth'(ClocksPerBit - 1);
        bit_q   <= bit_q + 4'd1;
        if (bit_q == 4'd10) bit_q <= 4'd10;
        // A start bit that has gone again was a glitch.
        if (rx_q && (bit_q == 4'd0 || bit_q >= 4'd9)) busy_q <= 1'b0;
      end else begin
        timer_q <= timer_q - 1'b1;
      end
    end
  end

  always_ff @(posedge clk_i) begin : p_data
    if (sample && bit_q >= 4'd1 && bit_q <= 4'd8) data_q <= {rx_q, data_q[7:1]};
  end
endmodule
`default_nettype wire
