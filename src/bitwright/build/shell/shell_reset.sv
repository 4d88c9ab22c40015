// SPDX-License-Identifier: Apache-2.0
// Reset of the shell and of the design behind it: low for 2^Bits clocks after power-up, after
// request_i (synchronous) and while button_i (asynchronous, high when pressed) or not locked_i
// (asynchronous). Both have a synchroniser of their own: a gate in front of one could make a pulse
// of two inputs that change together.
`default_nettype none
module shell_reset #(
  parameter int Bits = 6
) (
  input  logic clk_i,
  input  logic locked_i,
  input  logic button_i,
  input  logic request_i,
  output logic rst_no
);
  logic [Bits-1:0] count_q;
  logic            locked, button, hold, rst_nq;

  shell_sync #(.Start(1'b0)) i_locked (.clk_i, .in_i(locked_i), .out_o(locked));
  shell_sync #(.Start(1'b1)) i_button (.clk_i, .in_i(button_i), .out_o(button));

  assign hold = button | ~locked | request_i;

  initial begin : p_power_up
    count_q = '0;
    rst_nq  = 1'b0;
  end

  // Not always_ff: that would have to be the only process of what `initial` sets.
  always @(posedge clk_i) begin : p_count
    if (hold) count_q <= '0;
    else if (!rst_nq) count_q <= count_q + 1'b1;
    rst_nq <= (rst_nq | (&count_q)) & ~hold;
  end

  assign rst_no = rst_nq;
endmodule
`default_nettype wire
