// SPDX-License-Identifier: Apache-2.0
// stream_pad: a frame of 2 x 2 pixels in its border.
`default_nettype none
module prove_pad #(
  parameter int Fold     = 1,
  parameter int Top      = 1,
  parameter int Left     = 1,
  parameter int Bottom   = 1,
  parameter int Right    = 0,
  parameter int Wait     = 0
) (
  input logic clk_i,
  input logic rst_ni,
  input logic mark_i,
  input logic in_valid_i,
  input logic [2-1:0] in_data_i,
  input logic out_ready_i
);
  logic            in_ready, out_valid, in_fire, out_fire;
  logic [2-1:0] out_data;
  assign in_fire  = in_valid_i & in_ready;
  assign out_fire = out_valid & out_ready_i;

  stream_pad #(.Height(2), .Cols(2), .Fold(Fold), .DataWidth(2), .Top(Top), .Left(Left), .Bottom(Bottom), .Right(Right), .WaitForInput(Wait), .PadValue(2'd2)) i_dut (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o(in_ready), .in_data_i,
    .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data)
  );
  fv_rules #(.Width(2), .Limit(2)) i_rules (
    .clk_i, .rst_ni, .offered_i(in_valid_i),
    .out_valid_i(out_valid), .out_ready_i, .out_data_i(out_data)
  );
  localparam int ColsOut = Left + 2 + Right;
  localparam int Out     = (Top + 2 + Bottom) * ColsOut * Fold;
  logic [$clog2(Out+1)-1:0] pos;
  logic [2:0] row_q, col_q, fold_q;  // of the next output beat
  logic [3:0] inner;
  logic       inside;
  initial {row_q, col_q, fold_q} = '0;
  always @(posedge clk_i) begin
    if (!rst_ni) {row_q, col_q, fold_q} <= '0;
    else if (out_fire) begin
      fold_q <= fold_q == 3'(Fold - 1) ? '0 : fold_q + 1'b1;
      if (fold_q == 3'(Fold - 1)) col_q <= col_q == 3'(ColsOut - 1) ? '0 : col_q + 1'b1;
      if (fold_q == 3'(Fold - 1) && col_q == 3'(ColsOut - 1)) begin
        row_q <= row_q == 3'(Top + Bottom + 1) ? '0 : row_q + 1'b1;
      end
    end
  end
  assign inside = row_q >= 3'(Top) && row_q < 3'(Top + 2) && col_q >= 3'(Left) && col_q < 3'(Left + 2);
  assign inner  = Fold == 1 ? {2'b0, 1'(row_q - 3'(Top)), 1'(col_q - 3'(Left))}
                            : {1'b0, 1'(row_q - 3'(Top)), 1'(col_q - 3'(Left)), fold_q[0]};
  fv_route #(.Width(2), .InBeats(4 * Fold), .OutBeats(Out)) i_route (
    .clk_i, .rst_ni, .mark_i, .in_fire_i(in_fire), .in_data_i, .out_fire_i(out_fire),
    .out_data_i(out_data), .out_pos_o(pos), .copies_i(inside),
    .source_i($clog2(4*Fold+1)'(inner)), .made_i(2'd2)
  );
endmodule
`default_nettype wire
