// SPDX-License-Identifier: Apache-2.0
// The rules of a stream, assumed of an input: what is offered holds until it is taken.
`default_nettype none
module fv_input #(
  parameter int Width = 1
) (
  input logic             clk_i,
  input logic             rst_ni,
  input logic             valid_i,
  input logic             ready_i,
  input logic [Width-1:0] data_i
);
  logic             waits_q;
  logic [Width-1:0] data_q;
  initial waits_q = 1'b0;
  always @(posedge clk_i) begin
    waits_q <= rst_ni & valid_i & ~ready_i;
    data_q  <= data_i;
  end
  always_comb if (waits_q) assume (valid_i && data_i == data_q);
endmodule
`default_nettype wire
