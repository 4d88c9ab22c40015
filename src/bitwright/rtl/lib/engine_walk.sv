// SPDX-License-Identifier: Apache-2.0
// The loop nest of EXEC, one tap a cycle (with 2^k passes: one in 2^k cycles):
//   for o, gy, gx: for kc, kh, kw: tap
// All counts are given less one. A group of pixels takes max(taps * passes, Drain) cycles (fast_i:
// Drain / 2), an instruction its groups and Gap cycles: start_i in cycle t, first tap in t + 1,
// ready_o again in t + groups + Gap; where a group has fewer than Drain steps (short_i), the first
// tap and all behind it come Drain - 1 cycles later. So from the last tap of an instruction to that
// of the first group of the next there are Drain + Gap + 1 cycles or more. Addresses, coordinates:
// those of pixel 0 of the group; they wrap. Inputs hold from start_i until ready_o.
`default_nettype none
module engine_walk #(
  parameter int AddrWidth   = 15,
  parameter int CoordWidth  = 12,
  parameter int WeightWidth = 10,
  parameter int CountWidth  = 12,
  parameter int Drain       = 8,
  parameter int Gap         = 8
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   start_i,
  output logic                   ready_o,
  input  logic [CountWidth-1:0]  outputs_i,   // counts, less one
  input  logic [CountWidth-1:0]  groups_y_i,
  input  logic [CountWidth-1:0]  groups_x_i,
  input  logic [CountWidth-1:0]  taps_c_i,
  input  logic [7:0]             taps_y_i,
  input  logic [7:0]             taps_x_i,
  input  logic [7:0]             passes_i,
  input  logic                   short_i,     // taps * passes < Drain
  input  logic                   fast_i,      // a group's results leave in Drain / 2 cycles
  input  logic [AddrWidth-1:0]   start_addr_i,
  input  logic [6*AddrWidth-1:0] steps_i,     // o, gy, gx, kc, kh, kw; kw lowest
  input  logic [CoordWidth-1:0]  origin_x_i,
  input  logic [CoordWidth-1:0]  origin_y_i,
  input  logic [4*CoordWidth-1:0] moves_i,    // gy, gx, kh, kw; kw lowest
  input  logic [WeightWidth-1:0] weight_i,
  input  logic [1:0]             order_i,     // of the weights
  input  logic                   pairs_i,     // two outputs share the planes they read
  input  logic                   halves_i,    // and the place of their results
  input  logic [AddrWidth-1:0]   place_i,
  input  logic [3*AddrWidth-1:0] place_steps_i,  // o, gy, gx; gx lowest
  output logic                   over_o,        // in the last cycle of the groups
  output logic                   tap_valid_o,
  output logic [7:0]             tap_pass_o,
  output logic                   tap_first_o,  // of a group
  output logic                   tap_last_o,   // last pass of the last tap of a group
  output logic                   tap_ready_o,  // last pass of a tap
  output logic [CountWidth-1:0]  tap_c_o,      // kc
  output logic [AddrWidth-1:0]   tap_addr_o,
  output logic [CoordWidth-1:0]  tap_x_o,
  output logic [CoordWidth-1:0]  tap_y_o,
  output logic [WeightWidth-1:0] tap_weight_o,
  output logic                   group_begin_o,  // of the first group of an instruction
  output logic                   group_right_o,  // last group of a row
  output logic                   group_below_o,  // of the last row of groups
  output logic [CountWidth-1:0]  group_output_o,
  output logic [AddrWidth-1:0]   group_place_o
);
  localparam int DrainWidth = Drain > 1 ? $clog2(Drain) : 1;
  localparam int GapWidth   = Gap > 1 ? $clog2(Gap) : 1;
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Gap < 2 || Drain < 2) begin : gen_check
    $error("engine_walk: Gap and Drain must be at least 2");
  end
`endif

  // Where the instruction is. Every "over" of a loop is a register.
  logic                  run_q, lead_q, tapping_q, gap_q, begin_q, first_q, drained_q, go;
  logic [GapWidth-1:0]   gap_left_q;
  logic [DrainWidth-1:0] drain_left_q, lead_left_q;
  logic [7:0]            pass_q;

  logic pass_over, kw_over, kh_over, kc_over, gx_over, gy_over, o_over, tap, taps_over, group_over;
  assign tap        = run_q & tapping_q & pass_over;
  assign taps_over  = kw_over & kh_over & kc_over;
  assign group_over = run_q & drained_q & (~tapping_q | (pass_over & taps_over));
  assign ready_o    = ~run_q & ~gap_q & ~lead_q;
  assign go         = (start_i & ~short_i) | (lead_q & (lead_left_q == '0));

  engine_count #(.Width(8)) i_pass (
    .clk_i, .load_i(start_i), .step_i(run_q && tapping_q), .count_i(passes_i), .over_o(pass_over)
  );
  engine_count #(.Width(8)) i_kw (
    .clk_i, .load_i(start_i), .step_i(tap), .count_i(taps_x_i), .over_o(kw_over)
  );
  engine_count #(.Width(8)) i_kh (
    .clk_i, .load_i(start_i), .step_i(tap && kw_over), .count_i(taps_y_i), .over_o(kh_over)
  );
  engine_count #(.Width(CountWidth)) i_kc (
    .clk_i, .load_i(start_i), .step_i(tap && kw_over && kh_over), .count_i(taps_c_i),
    .over_o(kc_over)
  );
  engine_count #(.Width(CountWidth)) i_gx (
    .clk_i, .load_i(start_i), .step_i(group_over), .count_i(groups_x_i), .over_o(gx_over)
  );
  engine_count #(.Width(CountWidth)) i_gy (
    .clk_i, .load_i(start_i), .step_i(group_over && gx_over), .count_i(groups_y_i),
    .over_o(gy_over)
  );
  engine_count #(.Width(CountWidth)) i_o (
    .clk_i, .load_i(start_i), .step_i(group_over && gx_over && gy_over), .count_i(outputs_i),
    .over_o(o_over)
  );

  logic over;
  assign over   = group_over & gx_over & gy_over & o_over;
  assign over_o = over;

  always_ff @(posedge clk_i) begin : p_state
    if (!rst_ni) begin
      run_q  <= 1'b0;
      lead_q <= 1'b0;
      gap_q  <= 1'b0;
    end else begin
      lead_q <= (start_i & short_i) | (lead_q & ~go);
      if (go) run_q <= 1'b1;
      else if (over) run_q <= 1'b0;
      if (over) gap_q <= 1'b1;
      else if (gap_left_q == '0) gap_q <= 1'b0;
    end
  end

  always_ff @(posedge clk_i) begin : p_count
    lead_left_q <= lead_q ? lead_left_q - 1'b1 : DrainWidth'(Drain - 2);
    gap_left_q <= gap_q ? gap_left_q - 1'b1 : GapWidth'(Gap - 2);
    if (start_i || group_over) begin
      tapping_q    <= 1'b1;
      first_q      <= 1'b1;
      drain_left_q <= DrainWidth'(fast_i ? Drain / 2 - 1 : Drain - 1);
      drained_q    <= fast_i && Drain < 4;
    end else begin
      if (tap) first_q <= 1'b0;
      if (tap && taps_over) tapping_q <= 1'b0;
      if (run_q && !drained_q) drain_left_q <= drain_left_q - 1'b1;
      if (run_q) drained_q <= drained_q || drain_left_q == DrainWidth'(1);
    end
    if (start_i) begin_q <= 1'b1;
    else if (group_over) begin_q <= 1'b0;
    if (start_i || tap) pass_q <= '0;
    else if (run_q && tapping_q) pass_q <= pass_q + 1'b1;
    if (start_i || (tap && taps_over)) tap_c_o <= '0;
    else if (tap && kw_over && kh_over) tap_c_o <= tap_c_o + 1'b1;
  end

  // Which loop moves on; those inside it start again.
  logic move_kw, move_kh, move_kc, move_gx, move_gy, move_o;
  assign move_kw = tap & ~kw_over;
  assign move_kh = tap & kw_over & ~kh_over;
  assign move_kc = tap & kw_over & kh_over & ~kc_over;
  assign move_gx = group_over & ~gx_over;
  assign move_gy = group_over & gx_over & ~gy_over;
  assign move_o  = group_over & gx_over & gy_over;

  engine_address #(.Width(AddrWidth)) i_address (
    .clk_i, .start_i, .start_addr_i, .steps_i, .move_kw_i(move_kw), .move_kh_i(move_kh),
    .move_kc_i(move_kc), .move_gx_i(move_gx), .move_gy_i(move_gy), .move_o_i(move_o),
    .again_i(group_over), .stay_i(pairs_i && !group_output_o[0]), .addr_o(tap_addr_o)
  );
  engine_coord #(.Width(CoordWidth)) i_x (
    .clk_i, .restart_i(start_i || move_gy || move_o), .outer_i(move_gx), .inner_i(move_kw),
    .back_i(move_kh || move_kc), .origin_i(origin_x_i),
    .outer_step_i(moves_i[2*CoordWidth +: CoordWidth]), .inner_step_i(moves_i[0 +: CoordWidth]),
    .coord_o(tap_x_o)
  );
  engine_coord #(.Width(CoordWidth)) i_y (
    .clk_i, .restart_i(start_i || move_o), .outer_i(move_gy), .inner_i(move_kh),
    .back_i(move_kc || move_gx), .origin_i(origin_y_i),
    .outer_step_i(moves_i[3*CoordWidth +: CoordWidth]),
    .inner_step_i(moves_i[CoordWidth +: CoordWidth]), .coord_o(tap_y_o)
  );

  engine_places #(
    .AddrWidth(AddrWidth), .WeightWidth(WeightWidth), .CountWidth(CountWidth)
  ) i_places (
    .clk_i, .start_i, .tap_i(tap), .group_i(group_over), .move_o_i(move_o), .move_gy_i(move_gy),
    .weight_i, .order_i, .halves_i, .place_i, .place_steps_i,
    .weight_o(tap_weight_o), .output_o(group_output_o), .place_o(group_place_o)
  );

  assign tap_valid_o   = run_q & tapping_q;
  assign tap_pass_o    = pass_q;
  assign tap_first_o   = first_q;
  assign tap_ready_o   = tap;
  assign tap_last_o    = tap & taps_over;
  assign group_begin_o = begin_q;
  assign group_right_o = gx_over;
  assign group_below_o = gy_over;

`ifdef BITWRIGHT_CHECKS
  logic [6:0] ways;
  assign ways = {start_i, move_kw, move_kh, move_kc, move_gx, move_gy, move_o};
  one_way: assert property (@(posedge clk_i) rst_ni |-> (ways & (ways - 1'b1)) == '0);
`endif
endmodule
`default_nettype wire
