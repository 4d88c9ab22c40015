// SPDX-License-Identifier: Apache-2.0
// Serial receiver: 8 data bits, no parity, one stop bit, Step / 2^16 bits a clock, sampled in the
// middle to within a clock. A byte is offered for one clock on out_valid_o; there is no way to
// refuse it.
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
  if (Step < 1 || Step > 16384) begin : gen_check
    $error("shell_uart_rx: Step must be 1 to 16384, which is 4 clocks a bit");
  end
`endif

  logic        meta_q, rx_q, busy_q;
  logic [15:0] phase_q;  // of the bit; it is sampled when this overflows
  logic [16:0] phase_d;
  logic [3:0]  bit_q;  // 0: start, 1 to 8: data, 9: stop, 10: waiting for a high line
  logic [7:0]  data_q;
  logic        sample, stop;

  assign phase_d    = {1'b0, phase_q} + 17'(Step);
  assign sample     = busy_q & phase_d[16];
  assign stop       = sample && bit_q == 4'd9;
  assign out_data_o = data_q;

  always_ff @(posedge clk_i) begin : p_input
    meta_q <= rx_i;
    rx_q   <= meta_q;
  end

  always_ff @(posedge clk_i) begin : p_control
    if (!rst_ni) begin
      busy_q      <= 1'b1;
      phase_q     <= '0;
      bit_q       <= 4'd10;
      out_valid_o <= 1'b0;
      break_o     <= 1'b0;
    end else begin
      out_valid_o <= stop && rx_q;
      break_o     <= stop && !rx_q && data_q == 8'd0;
      if (!busy_q) begin
        busy_q  <= !rx_q;
        phase_q <= 16'h8000;
        bit_q   <= '0;
      end else begin
        phase_q <= phase_d[15:0];
        if (sample) begin
          bit_q <= bit_q == 4'd10 ? 4'd10 : bit_q + 4'd1;
          // A start bit that has gone again was a glitch.
          if (rx_q && (bit_q == 4'd0 || bit_q >= 4'd9)) busy_q <= 1'b0;
        end
      end
    end
  end

  always_ff @(posedge clk_i) begin : p_data
    if (sample && bit_q >= 4'd1 && bit_q <= 4'd8) data_q <= {rx_q, data_q[7:1]};
  end
endmodule
`default_nettype wire
