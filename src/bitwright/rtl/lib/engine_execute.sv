// SPDX-License-Identifier: Apache-2.0
// Unit X: takes INPUT and OUTPUT (one cycle each; kept for the EXECs behind them) and EXEC. An EXEC
// that is taken in cycle t keeps the unit for outputs * groups * max(taps * passes, Drain) + Start
// cycles (with two PostLanes, Drain / 2 for requantized results of 8 or 4 bits without a lookup),
// and Drain - 1 more if taps * passes < Drain; it is complete (done_o) Result cycles behind these.
// ready_i: its tokens are there; go_o: it takes them. Asserted: every EXEC takes just as long, its
// last result is written by then, and its values do not reach what is still drained of the EXEC
// before it.
`default_nettype none
module engine_execute #(
  parameter int Pixels     = 4,
  parameter int Lanes      = 8,
  parameter int Dsps       = 8,
  parameter bit Nibbles    = 1'b1,
  parameter bit Paired     = 1'b0,
  parameter int AddrWidth  = 15,
  parameter int WeightRows = 1024,
  parameter int Rows       = 512,
  parameter int PostLanes  = 1,
  localparam int Width     = 8 * Lanes,
  localparam int Drain     = Lanes > 8 ? Lanes : 8,
  localparam int Start     = 8,
  localparam int Total     = 29 + Drain,  // from the last tap to its last result
  localparam int BankWidth = $clog2(Pixels),
  localparam int RowWidth  = AddrWidth - BankWidth,
  localparam int WeightWidth = $clog2(WeightRows)
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,
  input  logic                       slot_i,
  input  logic                       valid_i,
  output logic                       ready_o,
  input  logic [255:0]               word_i,
  input  logic                       ready_i,
  output logic                       go_o,
  output logic                       done_o,
  output logic [3:0]                 signal_o,    // of the EXEC that is complete
  output logic                       idle_o,
  output logic [Pixels-1:0]          read_o,
  output logic [Pixels*RowWidth-1:0] read_rows_o,
  input  logic [Pixels*Width-1:0]    read_data_i,
  output logic                       weight_o,
  output logic [WeightWidth-1:0]     weight_row_o,
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
  // What comes next, and the instructions that hold now.
  logic [255:0] input_next_q, output_next_q, input_q, output_q, exec_q;
  logic         is_exec, free, start_q, over;
  logic [3:0]   pending_q;  // EXECs that are not complete

  assign is_exec = word_i[3:0] == 4'd5;
  assign go_o    = valid_i & is_exec & ready_i & free & ~start_q & (~word_i[5] | idle_o);
  assign ready_o = is_exec ? go_o : 1'b1;
  assign idle_o  = pending_q == '0;

  always_ff @(posedge clk_i) begin : p_take
    if (!rst_ni) begin
      start_q   <= 1'b0;
      pending_q <= '0;
    end else begin
      start_q   <= go_o;
      pending_q <= pending_q + 4'(go_o) - 4'(done_o);
    end
    if (valid_i && word_i[3:0] == 4'd1) input_next_q <= word_i;
    if (valid_i && word_i[3:0] == 4'd2) output_next_q <= word_i;
    if (go_o) begin
      input_q  <= input_next_q;
      output_q <= output_next_q;
      exec_q   <= word_i;
    end
  end

  // Taps and groups.
  logic                   tap_valid, tap_first, tap_last, tap_ready, tap_signed, tap_max;
  logic                   group_begin, group_right, group_below;
  logic [7:0]             tap_pass;
  logic [AddrWidth-1:0]   tap_addr, group_place;
  logic [16:0]            tap_x, tap_y;
  logic [WeightWidth-1:0] tap_weight;
  logic [11:0]            group_output;

  engine_walker #(
    .Pixels(Pixels), .AddrWidth(AddrWidth), .WeightWidth(WeightWidth), .Drain(Drain),
    .Gap(Start - 2), .PostLanes(PostLanes)
  ) i_walker (
    .clk_i, .rst_ni, .start_i(start_q), .ready_o(free), .over_o(over), .input_i(input_q),
    .output_i(output_q), .exec_i(exec_q), .tap_valid_o(tap_valid), .tap_pass_o(tap_pass),
    .tap_first_o(tap_first), .tap_last_o(tap_last), .tap_ready_o(tap_ready),
    .tap_signed_o(tap_signed), .tap_max_o(tap_max), .tap_addr_o(tap_addr), .tap_x_o(tap_x),
    .tap_y_o(tap_y), .tap_weight_o(tap_weight), .group_begin_o(group_begin),
    .group_right_o(group_right), .group_below_o(group_below), .group_output_o(group_output),
    .group_place_o(group_place)
  );

  engine_datapath #(
    .Pixels(Pixels), .Lanes(Lanes), .Dsps(Dsps), .Nibbles(Nibbles),
    .Paired(Paired), .AddrWidth(AddrWidth), .Rows(Rows), .PostLanes(PostLanes)
  ) i_datapath (
    .clk_i, .rst_ni, .slot_i, .tap_valid_i(tap_valid), .tap_pass_i(tap_pass),
    .tap_first_i(tap_first), .tap_last_i(tap_last), .tap_ready_i(tap_ready),
    .tap_signed_i(tap_signed), .tap_max_i(tap_max), .tap_addr_i(tap_addr), .tap_x_i(tap_x),
    .tap_y_i(tap_y), .group_begin_i(group_begin), .group_right_i(group_right),
    .group_below_i(group_below), .group_output_i(group_output), .group_place_i(group_place),
    .input_i(input_q), .output_i(output_q), .exec_i(exec_q), .read_o, .read_rows_o, .read_data_i,
    .weights_i, .parameter_o, .parameter_row_o, .parameter_slot_o, .flip_i, .parameters_i,
    .records_i, .look_o, .table_o, .bytes_o, .bytes_i, .write_o, .write_banks_o, .write_rows_o,
    .write_strobes_o, .write_data_o
  );

  // The row of weights is read while the features are: address in t + 3, words in t + 6.
  engine_delay #(.Width(WeightWidth), .Cycles(3)) i_row (
    .clk_i, .data_i(tap_weight), .data_o(weight_row_o)
  );
  engine_strobe #(.Cycles(3)) i_weight (.clk_i, .rst_ni, .data_i(tap_valid), .data_o(weight_o));

  // Completion.
  engine_strobe #(.Cycles(Total)) i_done (.clk_i, .rst_ni, .data_i(over), .data_o(done_o));
  engine_delay #(.Width(4), .Cycles(Total)) i_signal (
    .clk_i, .data_i(exec_q[11:8]), .data_o(signal_o)
  );

`ifdef BITWRIGHT_CHECKS
  // From the fields of the instruction, how long it takes; from its start on, how long it took.
  int expected_q, cycles_q, apart_q, steps, leaves;
  logic any_q;  // there was a group since the reset
  assign steps = int'(exec_q[187:176]) * int'(exec_q[167:160]) * int'(exec_q[175:168])
               * int'(input_q[191:184]);

  assign leaves = PostLanes == 2 && output_q[71:68] == '0 && output_q[75:72] != 4'd2
                  && !output_q[76] ? Drain / 2 : Drain;

  always_ff @(posedge clk_i) begin : p_expected
    cycles_q <= start_q ? 2 : cycles_q + 1;
    if (start_q) begin
      expected_q <= int'(exec_q[199:192]) * int'(exec_q[123:112]) * int'(exec_q[139:128])
                  * (steps > leaves ? steps : leaves) + Start + (steps < Drain ? Drain - 1 : 0);
    end
    apart_q <= tap_last ? 1 : apart_q + 1;
    any_q   <= rst_ni & (any_q | tap_last);
  end
  apart: assert property (@(posedge clk_i) disable iff (!rst_ni)
    tap_last && group_begin && any_q |-> apart_q >= Lanes + 8);
  exact: assert property (@(posedge clk_i) disable iff (!rst_ni)
    over |-> cycles_q + Start - 2 == expected_q);
  written: assert property (@(posedge clk_i) disable iff (!rst_ni) write_o |-> !idle_o);
`endif
endmodule
`default_nettype wire
