// SPDX-License-Identifier: Apache-2.0
// One coordinate of a tap: two nested loops that step it, as engine_walk drives them. restart_i:
// both start again at the origin; outer_i: the outer one moves, the inner one starts again;
// inner_i: the inner one moves; back_i: the inner one starts again.
`default_nettype none
module engine_coord #(
  parameter int Width = 12
) (
  input  logic             clk_i,
  input  logic             restart_i,
  input  logic             outer_i,
  input  logic             inner_i,
  input  logic             back_i,
  input  logic [Width-1:0] origin_i,
  input  logic [Width-1:0] outer_step_i,
  input  logic [Width-1:0] inner_step_i,
  output logic [Width-1:0] coord_o
);
  logic [Width-1:0] start_q, next;

  assign next = restart_i ? origin_i
              : outer_i ? start_q + outer_step_i
              : inner_i ? coord_o + inner_step_i : start_q;

  always_ff @(posedge clk_i) begin : p_coord
    if (restart_i || outer_i || inner_i || back_i) coord_o <= next;
    if (restart_i || outer_i) start_q <= next;
  end
endmodule
`default_nettype wire
