// SPDX-License-Identifier: Apache-2.0
// What engine_walk counts beside the address of the tap: the number of the output group, the place
// of the results, and the weight word. halves_i: outputs 2n and 2n + 1 share a place, in its
// halves. order_i: the weight of tap k of K of output o is word o * K + k (0), k (1) or 0 (2) from
// weight_i on.
`default_nettype none
module engine_places #(
  parameter int AddrWidth   = 15,
  parameter int WeightWidth = 10,
  parameter int CountWidth  = 12
) (
  input  logic                   clk_i,
  input  logic                   start_i,
  input  logic                   tap_i,      // a tap is over
  input  logic                   group_i,    // a group is over
  input  logic                   move_o_i,   // and all of its output, or all of its row
  input  logic                   move_gy_i,
  input  logic [WeightWidth-1:0] weight_i,
  input  logic [1:0]             order_i,
  input  logic                   halves_i,
  input  logic [AddrWidth-1:0]   place_i,
  input  logic [3*AddrWidth-1:0] place_steps_i,  // o, gy, gx; gx lowest
  output logic [WeightWidth-1:0] weight_o,
  output logic [CountWidth-1:0]  output_o,
  output logic [AddrWidth-1:0]   place_o
);
  // The word behind the last tap of an output is the first one of the next. A group that waits for
  // the drain ends after its last tap, one that does not in the same cycle.
  logic [WeightWidth-1:0] weight_start_q, weight_next;
  assign weight_next = weight_o + WeightWidth'(tap_i && order_i != 2'd2);

  always_ff @(posedge clk_i) begin : p_weight
    if (start_i) weight_o <= weight_i;
    else weight_o <= group_i && !(move_o_i && order_i == 2'd0) ? weight_start_q : weight_next;
    if (start_i) weight_start_q <= weight_i;
    else if (move_o_i && order_i == 2'd0) weight_start_q <= weight_next;
  end

  logic                 stay;  // the next output has the upper half of the same place
  logic [AddrWidth-1:0] place_gy_q, place_o_q, place_next;
  assign stay = halves_i & ~output_o[0];

  logic [AddrWidth-1:0] step_o, step_gy, step_gx;
  assign {step_o, step_gy, step_gx} = place_steps_i;

  always_comb begin : p_next
    place_next = place_o + step_gx;
    if (move_o_i) place_next = place_o_q + (stay ? '0 : step_o);
    else if (move_gy_i) place_next = place_gy_q + step_gy;
  end

  always_ff @(posedge clk_i) begin : p_place
    if (start_i) begin
      place_o    <= place_i;
      place_gy_q <= place_i;
      place_o_q  <= place_i;
      output_o   <= '0;
    end else if (group_i) begin
      place_o <= place_next;
      if (move_o_i || move_gy_i) place_gy_q <= place_next;
      if (move_o_i) place_o_q <= place_next;
      if (move_o_i) output_o <= output_o + 1'b1;
    end
  end
endmodule
`default_nettype wire
