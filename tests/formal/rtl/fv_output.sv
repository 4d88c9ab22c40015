// SPDX-License-Identifier: Apache-2.0
// The rules of a stream, asserted of an output: what is offered holds until it is taken, and nothing
// is offered in the cycle behind a reset.
`default_nettype none
module fv_output #(
  parameter int Width = 1
) (
  input logic             clk_i,
  input logic             rst_ni,
  input logic             valid_i,
  input logic             ready_i,
  input logic [Width-1:0] data_i
);
  logic             begun_q, reset_q, waits_q;
  logic [Width-1:0] data_q;
  initial {begun_q, reset_q, waits_q} = '0;
  always @(posedge clk_i) begin
    begun_q <= 1'b1;
    reset_q <= ~rst_ni;
    waits_q <= rst_ni & valid_i & ~ready_i;
    data_q  <= data_i;
  end
  always_comb begin
    if (waits_q) hold: assert (valid_i && data_i == data_q);
    if (begun_q && reset_q) silent_after_reset: assert (!valid_i);
  end
endmodule
`default_nettype wire
