// SPDX-License-Identifier: Apache-2.0
// From the taps of engine_walk to the words that go into the features: operands, array, drain,
// writer. Of a tap in cycle t the array has the words in t + 6; the group that ends there drains in
// t + Flight + 1 and its last result is written by t + Total. Values of the instruction:
// input_i must hold with every tap, output_i and exec_i in the cycle of the last tap of an
// instruction's first group. Two such taps are 16 cycles apart or more.
`default_nettype none
module engine_datapath #(
  parameter int Pixels     = 4,
  parameter int Lanes      = 8,
  parameter int Dsps       = 8,
  parameter bit Nibbles    = 1'b1,
  parameter bit Paired     = 1'b0,
  parameter int AddrWidth  = 15,
  parameter int CoordWidth = 17,
  parameter int Rows       = 512,
  parameter int OutWidth   = 12,
  parameter int PostLanes  = 1,
  localparam int Width     = 8 * Lanes,
  localparam int Flight    = 6 + 4 + $clog2(Lanes),
  localparam int BankWidth = $clog2(Pixels),
  localparam int RowWidth  = AddrWidth - BankWidth,
  localparam int InfoWidth = 4 + AddrWidth
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,
  input  logic                       slot_i,
  // Taps and groups.
  input  logic                       tap_valid_i,
  input  logic [7:0]                 tap_pass_i,
  input  logic                       tap_first_i,
  input  logic                       tap_last_i,
  input  logic                       tap_ready_i,
  input  logic                       tap_signed_i,
  input  logic                       tap_max_i,
  input  logic [AddrWidth-1:0]       tap_addr_i,
  input  logic [CoordWidth-1:0]      tap_x_i,
  input  logic [CoordWidth-1:0]      tap_y_i,
  input  logic                       group_begin_i,
  input  logic                       group_right_i,
  input  logic                       group_below_i,
  input  logic [OutWidth-1:0]        group_output_i,
  input  logic [AddrWidth-1:0]       group_place_i,
  // Values of the instruction.
  input  logic [255:0]               input_i,
  input  logic [255:0]               output_i,
  input  logic [255:0]               exec_i,
  // Memories.
  output logic [Pixels-1:0]          read_o,
  output logic [Pixels*RowWidth-1:0] read_rows_o,
  input  logic [Pixels*Width-1:0]    read_data_i,
  input  logic [Lanes*Width-1:0]     weights_i,
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
  // Operands.
  logic [15:0]             pixel, row, height, width;
  logic [7:0]              stride_y, stride_x, passes;
  logic [3:0]              patch, bits;
  logic [Pixels*Width-1:0] features;
  logic [Pixels-1:0]       kept;

  engine_fields_input i_input (
    .word_i(input_i), .pixel_o(pixel), .row_o(row), .height_o(height), .width_o(width),
    .stride_y_o(stride_y), .stride_x_o(stride_x), .patch_o(patch), .passes_o(passes),
    .wait_o(), .signal_o(), .tap_x_o(), .tap_y_o(), .plane_o(), .output_o(), .dilation_y_o(),
    .dilation_x_o(), .bits_o(bits), .signed_first_o(), .signed_rest_o(), .first_o()
  );

  engine_operands #(
    .Pixels(Pixels), .Width(Width), .AddrWidth(AddrWidth), .CoordWidth(CoordWidth)
  ) i_operands (
    .clk_i, .rst_ni, .valid_i(tap_valid_i), .pass_i(tap_pass_i), .addr_i(tap_addr_i),
    .x_i(tap_x_i), .y_i(tap_y_i), .columns_i(group_right_i ? exec_i[159:152] : 8'hff),
    .lines_i(group_below_i ? exec_i[151:144] : 8'hff), .passes_i(passes - 8'd1), .patch_i(patch),
    .pixel_step_i(AddrWidth'(pixel)), .row_step_i(AddrWidth'(row)),
    .stride_x_i(CoordWidth'(stride_x)), .stride_y_i(CoordWidth'(stride_y)),
    .width_i(CoordWidth'(width)), .height_i(CoordWidth'(height)),
    .read_o, .rows_o(read_rows_o), .data_i(read_data_i), .kept_o(kept), .words_o(features)
  );

  // Array.
  logic ready, first, last, is_signed, is_max, nibbles, valid, drain, fast;
  logic [PostLanes*Pixels*32-1:0] sums;

  engine_delay #(.Width(6), .Cycles(6)) i_flags (
    .clk_i, .data_i({tap_ready_i, tap_first_i, tap_last_i, tap_signed_i, tap_max_i, bits[0]}),
    .data_o({ready, first, last, is_signed, is_max, nibbles})
  );
  engine_strobe #(.Cycles(6)) i_valid (.clk_i, .rst_ni, .data_i(tap_valid_i), .data_o(valid));

  engine_array #(
    .Pixels(Pixels), .Outputs(Lanes), .Lanes(Lanes), .Dsps(Dsps), .Nibbles(Nibbles),
    .Paired(Paired), .PostLanes(PostLanes)
  ) i_array (
    .clk_i, .rst_ni, .valid_i(valid && ready), .first_i(first), .last_i(last),
    .signed_i(is_signed), .nibbles_i(nibbles), .max_i(is_max), .kept_i(kept),
    .features_i(features), .weights_i, .fast_i(fast), .drain_o(drain),
    .sums_o(sums)
  );

  // What goes with a group to its results, and values of an instruction on their way.
  logic [255:0]          output_1_q, output_2_q, output_3_q, exec_1_q, exec_2_q, exec_3_q;
  logic [255:0]          output_now, exec_now;
  logic [3:0]            patch_1_q, patch_2_q, patch_3_q;
  logic                  began, drain_begin;
  logic [InfoWidth-1:0]  group_info, info;
  logic [OutWidth-1:0]   group;

  assign group_info = {group_place_i, group_output_i[0], group_below_i, group_right_i,
                       group_begin_i};
  engine_delay #(.Width(InfoWidth + OutWidth), .Cycles(Flight + 1)) i_info (
    .clk_i, .data_i({group_output_i, group_info}), .data_o({group, info})
  );
  assign began = drain & info[0];

  // Of the group that begins to drain: the first row of its parameters.
  logic [3:0]              post;
  logic [15:0]             parameters;
  logic [$clog2(Rows)-1:0] row_first;
  int                      rows_ahead;
  assign output_now = info[0] ? output_1_q : output_2_q;
  assign exec_now   = info[0] ? exec_1_q : exec_2_q;
  assign rows_ahead = post[0] ? int'(group) * Lanes : int'(group) * Lanes / 8;
  assign row_first  = $clog2(Rows)'(parameters) + $clog2(Rows)'(rows_ahead);

  engine_fields_output i_output (
    .word_i(output_now), .post_o(post),
    .rounding_o(), .shift_o(), .low_o(), .high_o(), .base_o(), .step_o(), .lookup_o(), .result_o(),
    .wait_o(), .signal_o(), .plane_o(), .row_o(), .pixel_o(), .weights_o()
  );
  engine_fields_exec i_exec (
    .word_i(exec_now), .parameters_o(parameters),
    .wait_o(), .signal_o(), .features_o(), .weights_o(), .out_o(), .y_o(), .x_o(), .groups_y_o(),
    .groups_x_o(), .last_y_o(), .last_x_o(), .kh_o(), .kw_o(), .kc_o(), .outputs_o(), .init_o(),
    .reduce_o(), .place_o()
  );

  always_ff @(posedge clk_i) begin : p_values
    if (tap_valid_i && tap_last_i && group_begin_i) begin
      output_1_q <= output_i;
      exec_1_q   <= exec_i;
      patch_1_q  <= patch;
    end
    if (began) begin
      output_2_q <= output_1_q;
      exec_2_q   <= exec_1_q;
      patch_2_q  <= patch_1_q;
    end
    if (drain_begin) begin
      output_3_q <= output_2_q;
      exec_3_q   <= exec_2_q;
      patch_3_q  <= patch_2_q;
    end
  end

  engine_finish #(
    .Pixels(Pixels), .Lanes(Lanes), .AddrWidth(AddrWidth), .Rows(Rows),
    .PostLanes(PostLanes)
  ) i_finish (
    .clk_i, .rst_ni, .slot_i, .drain_i(drain), .sums_i(sums), .row_i(row_first), .info_i(info),
    .fast_o(fast), .output_i(output_2_q), .begin_o(drain_begin),
    .late_output_i(output_3_q),
    .late_exec_i(exec_3_q), .late_patch_i(patch_3_q), .parameter_o, .parameter_row_o,
    .parameter_slot_o, .flip_i, .parameters_i, .records_i, .look_o, .table_o, .bytes_o, .bytes_i,
    .write_o, .write_banks_o, .write_rows_o, .write_strobes_o, .write_data_o
  );

  logic unused;
  assign unused = ^{pixel, row, bits, post, parameters, rows_ahead};
endmodule
`default_nettype wire
