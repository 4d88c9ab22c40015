// SPDX-License-Identifier: Apache-2.0
// Assumes a reset in the first cycle; later it comes at any time, or never.
`default_nettype none
module fv_reset (
  input logic clk_i,
  input logic rst_ni
);
  logic begun_q;
  initial begun_q = 1'b0;
  always @(posedge clk_i) begun_q <= 1'b1;
  always_comb if (!begun_q) assume (!rst_ni);
endmodule
`default_nettype wire
