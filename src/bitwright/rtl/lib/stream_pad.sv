// SPDX-License-Identifier: Apache-2.0
// Adds a border of PadValue beats to frames of Height x Cols pixels of Fold beats. One output beat
// a cycle; border beats are made as soon as there is room, also before the frame's first input
// beat. With WaitForInput the frame's first input beat is taken together with the first border
// beat and held until its place comes: no border is made for a frame that does not come, as is
// needed where whole windows lie in the border in front of the first pixel.
// Latency 1. Interval (Top+Height+Bottom)*(Left+Cols+Right)*Fold cycles a frame.
`default_nettype none
module stream_pad #(
  parameter int Height    = 4,
  parameter int Cols      = 4,
  parameter int Fold      = 1,
  parameter int DataWidth = 8,
  parameter int Top       = 1,
  parameter int Left      = 1,
  parameter int Bottom    = 1,
  parameter int Right     = 1,
  parameter int WaitForInput = 0,
  parameter logic [DataWidth-1:0] PadValue = '0
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic                 in_valid_i,
  output logic                 in_ready_o,
  input  logic [DataWidth-1:0] in_data_i,
  output logic                 out_valid_o,
  input  logic                 out_ready_i,
  output logic [DataWidth-1:0] out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Height < 1 || Cols < 1 || Fold < 1 || DataWidth < 1
      || Top < 0 || Left < 0 || Bottom < 0 || Right < 0) begin : gen_check
    $error("stream_pad: sizes must be at least 1 and borders at least 0");
  end
  if (WaitForInput != 0 && Top == 0 && Left == 0) begin : gen_check_first
    $error("stream_pad: WaitForInput needs a border in front of the first pixel");
  end
`endif

  localparam int RowsOut   = Top + Height + Bottom;
  localparam int ColsOut   = Left + Cols + Right;
  localparam int RowWidth  = $clog2(RowsOut + 1);
  localparam int ColWidth  = $clog2(ColsOut + 1);
  localparam int FoldWidth = $clog2(Fold + 1);

  logic [RowWidth-1:0]  row_q;
  logic [ColWidth-1:0]  col_q;
  logic [FoldWidth-1:0] fold_q;
  logic fold_last, col_last, row_last, in_frame, fire, skid_ready, row_in_q, col_in_q;
  logic take, first_q, held_q;  // take: this step takes an input beat
  logic [DataWidth-1:0] held_data_q, inner_data;

  assign fold_last  = fold_q == FoldWidth'(Fold - 1);
  assign col_last   = col_q == ColWidth'(ColsOut - 1);
  assign row_last   = row_q == RowWidth'(RowsOut - 1);
  assign in_frame   = row_in_q & col_in_q;
  assign take       = first_q | (in_frame & ~held_q);
  assign inner_data = held_q ? held_data_q : in_data_i;
  assign in_ready_o = skid_ready & take;
  assign fire       = skid_ready & (~take | in_valid_i);

  // row_in_q and col_in_q say that the counters stand inside the frame: set where it begins,
  // cleared where it ends, so that ready is a function of registers only.
  always_ff @(posedge clk_i) begin : p_count
    if (!rst_ni) begin
      row_q    <= '0;
      col_q    <= '0;
      fold_q   <= '0;
      row_in_q <= Top == 0;
      col_in_q <= Left == 0;
    end else if (fire) begin
      fold_q <= fold_last ? '0 : fold_q + 1'b1;
      if (fold_last) begin
        col_q <= col_last ? '0 : col_q + 1'b1;
        if (col_last) col_in_q <= Left == 0;
        else if (col_q == ColWidth'(Left + Cols - 1)) col_in_q <= 1'b0;
        else if (Left > 0 && col_q == ColWidth'(Left - 1)) col_in_q <= 1'b1;
      end
      if (fold_last && col_last) begin
        row_q <= row_last ? '0 : row_q + 1'b1;
        if (row_last) row_in_q <= Top == 0;
        else if (row_q == RowWidth'(Top + Height - 1)) row_in_q <= 1'b0;
        else if (Top > 0 && row_q == RowWidth'(Top - 1)) row_in_q <= 1'b1;
      end
    end
  end

  // first_q: at the first step of a frame; held_q: its first input beat waits for its place.
  if (WaitForInput != 0) begin : gen_first
    always_ff @(posedge clk_i) begin : p_first
      if (!rst_ni) begin
        first_q <= 1'b1;
        held_q  <= 1'b0;
      end else if (fire) begin
        first_q <= fold_last & col_last & row_last;
        if (first_q) held_q <= 1'b1;
        else if (in_frame) held_q <= 1'b0;
      end
    end
    always_ff @(posedge clk_i) begin : p_held
      if (fire && first_q) held_data_q <= in_data_i;
    end
  end else begin : gen_no_first
    assign first_q     = 1'b0;
    assign held_q      = 1'b0;
    assign held_data_q = '0;
  end

  stream_skid #(.Width(DataWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(~take | in_valid_i), .in_ready_o(skid_ready),
    .in_data_i(in_frame ? inner_data : PadValue),
    .out_valid_o, .out_ready_i, .out_data_o
  );
endmodule
`default_nettype wire
