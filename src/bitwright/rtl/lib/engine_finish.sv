// SPDX-License-Identifier: Apache-2.0
// engine_drain and engine_writer with what they take of the instructions: output_i is that of the
// sums, late_output_i and late_exec_i (taken with begin_o) those of the words.
// info_i, with drain_i: place, odd output, bottom, right, first group of an instruction.
`default_nettype none
module engine_finish #(
  parameter int Pixels    = 4,
  parameter int Lanes     = 8,
  parameter int AddrWidth = 15,
  parameter int Rows      = 512,
  parameter int PostLanes = 1,
  localparam int Width     = 8 * Lanes,
  localparam int BankWidth = $clog2(Pixels),
  localparam int RowWidth  = AddrWidth - BankWidth,
  localparam int InfoWidth = 4 + AddrWidth
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,
  input  logic                       slot_i,
  input  logic                       drain_i,
  input  logic [PostLanes*Pixels*32-1:0] sums_i,
  input  logic [$clog2(Rows)-1:0]    row_i,     // of the group's first parameters
  input  logic [InfoWidth-1:0]       info_i,
  output logic                       fast_o,
  input  logic [255:0]               output_i,
  output logic                       begin_o,
  input  logic [255:0]               late_output_i,
  input  logic [255:0]               late_exec_i,
  input  logic [3:0]                 late_patch_i,
  output logic                       parameter_o,
  output logic [$clog2(Rows)-1:0]    parameter_row_o,
  output logic [2:0]                 parameter_slot_o,
  input  logic                       flip_i,
  input  logic [511:0]               parameters_i,
  input  logic [127:0]               records_i,
  output logic                       look_o,
  output logic [$clog2(Lanes)-1:0]   table_o,
  output logic [Pixels*8-1:0]        bytes_o,
  input  logic [Pixels*8-1:0]        bytes_i,
  output logic                       write_o,
  output logic [Pixels-1:0]          write_banks_o,
  output logic [Pixels*RowWidth-1:0] write_rows_o,
  output logic [Lanes-1:0]           write_strobes_o,
  output logic [Pixels*Width-1:0]    write_data_o
);
  logic [3:0]  post, rounding, step, lookup, result, late_post;
  logic        late_fast;
  logic [7:0]  shift;
  logic [15:0] low, high, base;

  engine_fields_output i_output (
    .word_i(output_i), .post_o(post), .rounding_o(rounding), .shift_o(shift), .low_o(low),
    .high_o(high), .base_o(base), .step_o(step),
    .lookup_o(lookup), .result_o(result),
    .wait_o(), .signal_o(), .plane_o(), .row_o(), .pixel_o(), .weights_o()
  );

  logic                    valid;
  logic [3:0]              late_result, late_lookup;
  logic [1:0]              number;
  logic [InfoWidth-1:0]    info;
  logic [Pixels*Width-1:0] words;

  // Two outputs a cycle: where there are lanes, records in the parameters, and words to fill.
  assign fast_o    = PostLanes == 2 && post == '0 && result != 4'd2 && !lookup[0];
  assign late_fast = PostLanes == 2 && late_post == '0 && late_result != 4'd2 && !late_lookup[0];

  engine_drain #(
    .Pixels(Pixels), .Outputs(Lanes), .Rows(Rows), .InfoWidth(InfoWidth),
    .PostLanes(PostLanes)
  ) i_drain (
    .clk_i, .rst_ni, .drain_i, .sums_i, .row_i, .info_i, .threshold_i(post[0]),
    .rounding_i(rounding[2:0]), .shift_i(shift[5:0]), .low_i(low), .high_i(high),
    .base_i(base[7:0]), .step_i(step[0]), .lookup_i(lookup[0]), .fast_i(fast_o),
    .late_fast_i(late_fast), .read_o(parameter_o),
    .row_o(parameter_row_o), .slot_o(parameter_slot_o), .flip_i, .row_data_i(parameters_i),
    .records_i, .look_o, .table_o, .bytes_o, .bytes_i, .late_result_i(late_result[1:0]),
    .late_lookup_i(late_lookup[0]), .begin_o, .valid_o(valid), .number_o(number), .info_o(info),
    .words_o(words)
  );

  logic [7:0]  last_y, last_x;
  logic [15:0] plane, row, pixel;

  engine_fields_output i_late_output (
    .word_i(late_output_i), .plane_o(plane), .row_o(row), .pixel_o(pixel), .result_o(late_result),
    .lookup_o(late_lookup), .post_o(late_post), .wait_o(), .signal_o(), .weights_o(),
    .rounding_o(),
    .shift_o(), .low_o(), .high_o(), .base_o(), .step_o()
  );
  engine_fields_exec i_late_exec (
    .word_i(late_exec_i), .last_y_o(last_y), .last_x_o(last_x), .place_o(),
    .wait_o(), .signal_o(), .features_o(), .weights_o(), .parameters_o(), .out_o(), .y_o(), .x_o(),
    .groups_y_o(), .groups_x_o(), .kh_o(), .kw_o(), .kc_o(), .outputs_o(), .init_o(), .reduce_o()
  );

  engine_writer #(.Pixels(Pixels), .Lanes(Lanes), .AddrWidth(AddrWidth)) i_writer (
    .clk_i, .rst_ni, .slot_i, .valid_i(valid), .place_i(info[4 +: AddrWidth]), .number_i(number),
    .half_i(late_result[1:0] == 2'd1 ? {1'b0, info[3]} : 2'd2), .words_i(words),
    .patch_i(late_patch_i), .columns_i(info[1] ? last_x : 8'hff), .rows_i(info[2] ? last_y : 8'hff),
    .pixel_step_i(AddrWidth'(pixel)), .row_step_i(AddrWidth'(row)), .plane_i(AddrWidth'(plane)),
    .valid_o(write_o), .banks_o(write_banks_o), .rows_o(write_rows_o),
    .strobes_o(write_strobes_o), .words_o(write_data_o)
  );

  logic unused;
  assign unused = ^{result, late_post, post, rounding, step, lookup, late_lookup, shift, base,
                    late_result, info[0], plane, row, pixel};
endmodule
`default_nettype wire
