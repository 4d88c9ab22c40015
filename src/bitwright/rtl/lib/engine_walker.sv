// SPDX-License-Identifier: Apache-2.0
// engine_walk with what it takes of the instructions INPUT, OUTPUT and EXEC, which must hold from
// start_i until ready_o. What is computed of them is registered: the nest starts a cycle later.
`default_nettype none
module engine_walker #(
  parameter int Pixels      = 4,
  parameter int AddrWidth   = 15,
  parameter int CoordWidth  = 17,
  parameter int WeightWidth = 10,
  parameter int Drain       = 8,
  parameter int Gap         = 7,
  parameter int PostLanes   = 1,
  localparam int BankWidth  = $clog2(Pixels),
  localparam int ShortWidth = $clog2(Drain)
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   start_i,
  output logic                   ready_o,
  output logic                   over_o,
  input  logic [255:0]           input_i,
  input  logic [255:0]           output_i,
  input  logic [255:0]           exec_i,
  output logic                   tap_valid_o,
  output logic [7:0]             tap_pass_o,
  output logic                   tap_first_o,
  output logic                   tap_last_o,
  output logic                   tap_ready_o,
  output logic                   tap_signed_o,
  output logic                   tap_max_o,
  output logic [AddrWidth-1:0]   tap_addr_o,
  output logic [CoordWidth-1:0]  tap_x_o,
  output logic [CoordWidth-1:0]  tap_y_o,
  output logic [WeightWidth-1:0] tap_weight_o,
  output logic                   group_begin_o,
  output logic                   group_right_o,
  output logic                   group_below_o,
  output logic [11:0]            group_output_o,
  output logic [AddrWidth-1:0]   group_place_o
);
  logic [15:0] pixel, row, tap_x, tap_y, plane, out;
  logic [7:0]  stride_y, stride_x, dilation_y, dilation_x, passes;
  logic [3:0]  patch, bits, signed_first, signed_rest, down;
  logic [11:0] tap_c, first;

  engine_fields_input i_input (
    .word_i(input_i), .pixel_o(pixel), .row_o(row), .tap_x_o(tap_x), .tap_y_o(tap_y),
    .plane_o(plane), .output_o(out), .stride_y_o(stride_y), .stride_x_o(stride_x),
    .dilation_y_o(dilation_y), .dilation_x_o(dilation_x), .patch_o(patch), .passes_o(passes),
    .bits_o(bits), .signed_first_o(signed_first), .signed_rest_o(signed_rest),
    .first_o(first),
    .wait_o(), .signal_o(), .height_o(), .width_o()
  );
  assign down = 4'(BankWidth) - patch;

  logic [15:0] place_plane, place_row, place_pixel;
  logic [3:0]  order, result, post, lookup;

  engine_fields_output i_output (
    .word_i(output_i), .plane_o(place_plane), .row_o(place_row), .pixel_o(place_pixel),
    .weights_o(order), .result_o(result), .post_o(post), .lookup_o(lookup),
    .wait_o(), .signal_o(), .rounding_o(), .shift_o(), .low_o(), .high_o(),
    .base_o(), .step_o()
  );

  logic [15:0] features, weights, place, y, x;
  logic [11:0] groups_y, groups_x, kc;
  logic [7:0]  kh, kw, outputs;
  logic [3:0]  reduce;

  engine_fields_exec i_exec (
    .word_i(exec_i), .features_o(features), .weights_o(weights), .out_o(place), .y_o(y), .x_o(x),
    .groups_y_o(groups_y), .groups_x_o(groups_x), .kh_o(kh), .kw_o(kw), .kc_o(kc),
    .outputs_o(outputs), .reduce_o(reduce),
    .wait_o(), .signal_o(), .parameters_o(), .last_y_o(), .last_x_o(), .init_o(), .place_o()
  );

  // Whether a group has fewer steps than its results take cycles: then every factor is small.
  logic                    wide, is_short;
  logic [2*ShortWidth-1:0] planes, taps, steps;
  assign wide     = (kc >> ShortWidth) != '0 || (kh >> ShortWidth) != '0
                    || (kw >> ShortWidth) != '0 || (passes >> ShortWidth) != '0;

  // Sums, so that no tool takes a multiplier for a few bits.
  logic [2*ShortWidth-1:0] kc_low, kw_low, planes_low;
  assign kc_low     = (2*ShortWidth)'(kc[ShortWidth-1:0]);
  assign kw_low     = (2*ShortWidth)'(kw[ShortWidth-1:0]);
  assign planes_low = (2*ShortWidth)'(planes[ShortWidth-1:0]);
  always_comb begin : p_factors
    planes = '0;
    taps   = '0;
    for (int k = 0; k < ShortWidth; k++) begin
      if (kh[k]) planes = planes + (kc_low << k);
      if (passes[k]) taps = taps + (kw_low << k);
    end
  end
  always_comb begin : p_steps
    steps = '0;
    for (int k = 0; k < ShortWidth; k++) begin
      if (taps[k]) steps = steps + (planes_low << k);
    end
  end
  assign is_short = !wide && (planes >> ShortWidth) == '0 && (taps >> ShortWidth) == '0
                    && (steps >> ShortWidth) == '0;

  // What follows from the instructions, in registers: the nest takes it a cycle later.
  logic                    start_q, short_q, fast_q, walk_ready;
  logic [11:0]             outputs_q, groups_y_q, groups_x_q, kc_q;
  logic [7:0]              kh_q, kw_q, passes_q;
  logic [6*AddrWidth-1:0]  steps_q;
  logic [4*CoordWidth-1:0] moves_q;
  logic [3*AddrWidth-1:0]  place_steps_q;
  assign ready_o = walk_ready & ~start_q;

  always_ff @(posedge clk_i) begin : p_values
    if (!rst_ni) start_q <= 1'b0;
    else start_q <= start_i;
    short_q       <= is_short;
    fast_q        <= PostLanes == 2 && post == '0 && result != 4'd2 && !lookup[0];
    outputs_q     <= 12'(outputs) - 12'd1;
    groups_y_q    <= groups_y - 12'd1;
    groups_x_q    <= groups_x - 12'd1;
    kc_q          <= kc - 12'd1;
    kh_q          <= kh - 8'd1;
    kw_q          <= kw - 8'd1;
    passes_q      <= passes - 8'd1;
    steps_q       <= {AddrWidth'(out), AddrWidth'(row) << down, AddrWidth'(pixel) << patch,
                      AddrWidth'(plane), AddrWidth'(tap_y), AddrWidth'(tap_x)};
    moves_q       <= {CoordWidth'(stride_y) << down, CoordWidth'(stride_x) << patch,
                      CoordWidth'(dilation_y), CoordWidth'(dilation_x)};
    place_steps_q <= {AddrWidth'(place_plane) << (result[1] ? 2 : 0),
                      AddrWidth'(place_row) << down, AddrWidth'(place_pixel) << patch};
  end

  engine_walk #(
    .AddrWidth(AddrWidth), .CoordWidth(CoordWidth), .WeightWidth(WeightWidth), .Drain(Drain),
    .Gap(Gap)
  ) i_walk (
    .clk_i, .rst_ni, .start_i(start_q), .ready_o(walk_ready), .over_o, .outputs_i(outputs_q),
    .groups_y_i(groups_y_q), .groups_x_i(groups_x_q), .taps_c_i(kc_q), .taps_y_i(kh_q),
    .taps_x_i(kw_q), .passes_i(passes_q), .short_i(short_q), .fast_i(fast_q),
    .start_addr_i(AddrWidth'(features)), .steps_i(steps_q),
    .origin_x_i(CoordWidth'($signed(x))), .origin_y_i(CoordWidth'($signed(y))), .moves_i(moves_q),
    .weight_i(WeightWidth'(weights)), .order_i(order[1:0]), .pairs_i(bits[0]),
    .halves_i(result[1:0] == 2'd1), .place_i(AddrWidth'(place)), .place_steps_i(place_steps_q),
    .tap_valid_o, .tap_pass_o, .tap_first_o, .tap_last_o, .tap_ready_o, .tap_c_o(tap_c),
    .tap_addr_o, .tap_x_o, .tap_y_o, .tap_weight_o, .group_begin_o, .group_right_o, .group_below_o,
    .group_output_o, .group_place_o
  );

  assign tap_signed_o = tap_c < first ? signed_first[0] : signed_rest[0];
  assign tap_max_o    = reduce[0];

  logic unused;
  assign unused = ^{post, lookup, bits, signed_first, signed_rest, order, result, reduce, pixel,
                    row, tap_x, tap_y, plane, out, features, weights, place, place_plane,
                    place_row, place_pixel};
endmodule
`default_nettype wire
