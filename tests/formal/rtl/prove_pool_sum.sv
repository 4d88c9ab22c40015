// SPDX-License-Identifier: Apache-2.0
// pool_sum: the sum of each fold's beats in a window.
`default_nettype none
module prove_pool_sum #(
  parameter int Window   = 3,
  parameter int Fold     = 2,
  parameter int Width    = 2,
  parameter int Signed   = 0
) (
  input logic clk_i,
  input logic rst_ni,
  input logic mark_i,
  input logic in_valid_i,
  input logic [Width-1:0] in_data_i,
  input logic out_ready_i
);
  logic            in_ready, out_valid, in_fire, out_fire;
  logic [(Width+2)-1:0] out_data;
  assign in_fire  = in_valid_i & in_ready;
  assign out_fire = out_valid & out_ready_i;

  pool_sum #(.Window(Window), .Fold(Fold), .InWidth(Width), .Signed(Signed), .SumWidth(Width + 2)) i_dut (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o(in_ready), .in_data_i,
    .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data)
  );
  fv_rules #(.Width((Width+2)), .Limit(Window * Fold + 4)) i_rules (
    .clk_i, .rst_ni, .offered_i(in_valid_i),
    .out_valid_i(out_valid), .out_ready_i, .out_data_i(out_data)
  );
  logic [$clog2(Window*Fold+1)-1:0] pos;
  logic [$clog2(Fold+1)-1:0]        pick;
  logic                             takes;
  logic [(Width+2)-1:0]                  best_q, now;
  // Of the beats of the followed window, those of the picked fold.
  assign now = Signed != 0 ? {{2{in_data_i[Width-1]}}, in_data_i} : {2'b00, in_data_i};
  always @(posedge clk_i) begin
    if (takes && int'(pos) % Fold == int'(pick)) begin
      best_q <= int'(pos) < Fold ? now : best_q + now;
    end
  end
  fv_group #(.Width((Width+2)), .InBeats(Window * Fold), .OutBeats(Fold), .Early(1)) i_group (
    .clk_i, .rst_ni, .mark_i, .in_fire_i(in_fire), .out_fire_i(out_fire), .out_data_i(out_data),
    .expect_i(best_q), .in_pos_o(pos), .takes_o(takes), .pick_o(pick)
  );
endmodule
`default_nettype wire
