// SPDX-License-Identifier: Apache-2.0
// engine_walk with what it takes of the instructions INPUT, OUTPUT and EXEC, which must hold from
// start_i until ready_o.
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

  // Whether a group has fewer steps than its results take cycles.
  logic [4*ShortWidth-1:0] steps;
  logic [7:0]              kh_less, kw_less, passes_less;
  logic [11:0]             kc_less;
  logic                    wide, is_short;
  assign kc_less     = kc - 12'd1;
  assign kh_less     = kh - 8'd1;
  assign kw_less     = kw - 8'd1;
  assign passes_less = passes - 8'd1;
  assign wide        = (kc_less >> ShortWidth) != '0 || (kh_less >> ShortWidth) != '0
                       || (kw_less >> ShortWidth) != '0 || (passes_less >> ShortWidth) != '0;
  assign steps       = (4*ShortWidth)'(kc) * (4*ShortWidth)'(kh) * (4*ShortWidth)'(kw)
                       * (4*ShortWidth)'(passes);
  assign is_short    = !wide && (steps >> ShortWidth) == '0;

  engine_walk #(
    .AddrWidth(AddrWidth), .CoordWidth(CoordWidth), .WeightWidth(WeightWidth), .Drain(Drain),
    .Gap(Gap)
  ) i_walk (
    .clk_i, .rst_ni, .start_i, .ready_o, .over_o,
    .outputs_i(12'(outputs) - 12'd1), .groups_y_i(groups_y - 12'd1), .groups_x_i(groups_x - 12'd1),
    .taps_c_i(kc_less), .taps_y_i(kh_less), .taps_x_i(kw_less), .passes_i(passes_less),
    .short_i(is_short),
    .fast_i(PostLanes == 2 && post == '0 && result != 4'd2 && !lookup[0]),
    .start_addr_i(AddrWidth'(features)),
    .steps_i({AddrWidth'(out), AddrWidth'(row) << down, AddrWidth'(pixel) << patch,
              AddrWidth'(plane), AddrWidth'(tap_y), AddrWidth'(tap_x)}),
    .origin_x_i(CoordWidth'($signed(x))), .origin_y_i(CoordWidth'($signed(y))),
    .moves_i({CoordWidth'(stride_y) << down, CoordWidth'(stride_x) << patch,
              CoordWidth'(dilation_y), CoordWidth'(dilation_x)}),
    .weight_i(WeightWidth'(weights)), .order_i(order[1:0]), .pairs_i(bits[0]),
    .halves_i(result[1:0] == 2'd1), .place_i(AddrWidth'(place)),
    .place_steps_i({AddrWidth'(place_plane) << (result[1] ? 2 : 0), AddrWidth'(place_row) << down,
                    AddrWidth'(place_pixel) << patch}),
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
