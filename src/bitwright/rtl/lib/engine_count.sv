// SPDX-License-Identifier: Apache-2.0
// A loop of engine_walk: load_i begins it, step_i moves it; behind the last step it begins again.
// over_o, a register of its own since everything waits for it: this is the last time round.
// count_i, less one, must hold from load_i on.
`default_nettype none
module engine_count #(
  parameter int Width = 12
) (
  input  logic             clk_i,
  input  logic             load_i,
  input  logic             step_i,
  input  logic [Width-1:0] count_i,
  output logic             over_o
);
  logic [Width-1:0] left_q;
  logic             single, single_q;
  assign single = count_i == '0;

  always_ff @(posedge clk_i) begin : p_count
    single_q <= single;
    if (load_i) begin
      left_q <= count_i;
      over_o <= single;
    end else if (step_i) begin
      left_q <= over_o ? count_i : left_q - 1'b1;
      over_o <= over_o ? single_q : left_q == Width'(1);
    end
  end
endmodule
`default_nettype wire
