// SPDX-License-Identifier: Apache-2.0
// Serial transmitter: 8 data bits, no parity, one stop bit, Step / 2^16 bits a clock.
// One byte in ten bits and a clock.
`default_nettype none
module shell_uart_tx #(
  parameter int Step = 655
) (
  input  logic       clk_i,
  input  logic       rst_ni,
  input  logic       in_valid_i,
  output logic       in_ready_o,
  input  logic [7:0] in_data_i,
  output logic       tx_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Step < 1 || Step > 8192) begin : gen_check
    $error("shell_uart_tx: Step must be 1 to 8192, which is 8 clocks a bit");
  end
`endif

  logic [15:0] phase_q;  // of the bit; the next one follows when this overflows
  logic [16:0] phase_d;
  logic [3:0]  left_q;   // bits still to send, start and stop included
  logic        free_q;   // no bits are left: a register, for the sender asks every clock
  logic [9:0]  shift_q;  // the bit on the line is the lowest

  assign phase_d    = {1'b0, phase_q} + 17'(Step);
  assign in_ready_o = free_q;

  always_ff @(posedge clk_i) begin : p_control
    if (!rst_ni) begin
      phase_q <= '0;
      left_q  <= '0;
      free_q  <= 1'b1;
      shift_q <= '1;
    end else if (free_q) begin
      phase_q <= '0;
      if (in_valid_i) begin
        left_q  <= 4'd10;
        free_q  <= 1'b0;
        shift_q <= {1'b1, in_data_i, 1'b0};
      end
    end else begin
      phase_q <= phase_d[15:0];
      if (phase_d[16]) begin
        left_q  <= left_q - 4'd1;
        free_q  <= left_q == 4'd1;
        shift_q <= {1'b1, shift_q[9:1]};
      end
    end
  end

  always_ff @(posedge clk_i) begin : p_line
    tx_o <= !rst_ni || shift_q[0];
  end
endmodule
`default_nettype wire
