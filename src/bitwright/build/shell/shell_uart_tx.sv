// SPDX-License-Identifier: Apache-2.0
// Serial transmitter: 8 data bits, no parity, one stop bit, ClocksPerBit clocks a bit.
// One byte each 10 * ClocksPerBit + 1 clocks.
`default_nettype none
module shell_uart_tx #(
  parameter int ClocksPerBit = 100
) (
  input  logic       clk_i,
  input  logic       rst_ni,
  input  logic       in_valid_i,
  output logic       in_ready_o,
  input  logic [7:0] in_data_i,
  output logic       tx_o
);
  if (ClocksPerBit < 4) begin : gen_check
    $error("shell_uart_tx: ClocksPerBit must be at least 4");
  end

  localparam int TimerWidth = $clog2(ClocksPerBit);

  logic [TimerWidth-1:0] timer_q;
  logic [3:0]            left_q;   // bits still to send, start and stop included
  logic [9:0]            shift_q;  // the bit on the line is the lowest

  assign in_ready_o = left_q == 4'd0;

  always_ff @(posedge clk_i) begin : p_control
    if (!rst_ni) begin
      timer_q <= '0;
      left_q  <= '0;
      shift_q <= '1;
    end else if (left_q == 4'd0) begin
      timer_q <= TimerWidth'(ClocksPerBit - 1);
      if (in_valid_i) begin
        left_q  <= 4'd10;
        shift_q <= {1'b1, in_data_i, 1'b0};
      end
    end else if (timer_q == '0) begin
      timer_q <= TimerWidth'(ClocksPerBit - 1);
      left_q  <= left_q - 4'd1;
      shift_q <= {1'b1, shift_q[9:1]};
    end else begin
      timer_q <= timer_q - 1'b1;
    end
  end

  always_ff @(posedge clk_i) begin : p_line
    tx_o <= !rst_ni || shift_q[0];
  end
endmodule
`default_nettype wire
