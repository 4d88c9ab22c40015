// SPDX-License-Identifier: Apache-2.0
// Progress: while all inputs are offered and all outputs are taken (willing_i), an output beat is
// taken (fire_i) within Limit cycles.
`default_nettype none
module fv_progress #(
  parameter int Limit = 4
) (
  input logic clk_i,
  input logic rst_ni,
  input logic willing_i,
  input logic fire_i
);
  localparam int Width = $clog2(Limit + 2);
  logic [Width-1:0] idle_q;
  initial idle_q = '0;
  always @(posedge clk_i) begin
    if (!rst_ni || !willing_i || fire_i) idle_q <= '0;
    else if (idle_q <= Width'(Limit)) idle_q <= idle_q + 1'b1;
  end
  always_comb progress: assert (idle_q <= Width'(Limit));
endmodule
`default_nettype wire
