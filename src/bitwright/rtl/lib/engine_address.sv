// SPDX-License-Identifier: Apache-2.0
// Address of the tap: six nested loops, each with a step, as engine_walk drives them. The loop that
// moves adds its step to where it stood; those inside it start again there. stay_i: the outermost
// one moves without its step. again_i: a group begins, which one of gx, gy and o moves. At most one
// of start_i and the moves at a time.
`default_nettype none
module engine_address #(
  parameter int Width = 15
) (
  input  logic               clk_i,
  input  logic               start_i,
  input  logic [Width-1:0]   start_addr_i,
  input  logic [6*Width-1:0] steps_i,  // o, gy, gx, kc, kh, kw; kw lowest
  input  logic               move_kw_i,
  input  logic               move_kh_i,
  input  logic               move_kc_i,
  input  logic               move_gx_i,
  input  logic               move_gy_i,
  input  logic               move_o_i,
  input  logic               again_i,
  input  logic               stay_i,
  output logic [Width-1:0]   addr_o
);
  logic [Width-1:0] kh_q, kc_q, gx_q, gy_q, o_q, next;

  logic [Width-1:0] step_o, step_gy, step_gx, step_kc, step_kh, step_kw;
  assign {step_o, step_gy, step_gx, step_kc, step_kh, step_kw} = steps_i;

  // Which loop moves is known last: all six sums are ready by then.
  always_comb begin : p_next
    next = ({Width{start_i}} & start_addr_i)
         | ({Width{move_kw_i}} & (addr_o + step_kw))
         | ({Width{move_kh_i}} & (kh_q + step_kh))
         | ({Width{move_kc_i}} & (kc_q + step_kc))
         | ({Width{move_gx_i}} & (gx_q + step_gx))
         | ({Width{move_gy_i}} & (gy_q + step_gy))
         | ({Width{move_o_i}} & (o_q + (stay_i ? '0 : step_o)));
  end

  always_ff @(posedge clk_i) begin : p_starts
    if (start_i || move_kw_i || move_kh_i || move_kc_i || again_i) addr_o <= next;
    if (start_i || move_kh_i || move_kc_i || again_i) kh_q <= next;
    if (start_i || move_kc_i || again_i) kc_q <= next;
    if (start_i || again_i) gx_q <= next;
    if (start_i || move_gy_i || move_o_i) gy_q <= next;
    if (start_i || move_o_i) o_q <= next;
  end
endmodule
`default_nettype wire
