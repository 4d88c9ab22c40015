// SPDX-License-Identifier: Apache-2.0
// top_k: indices of the two largest scores, of equals the first.
`default_nettype none
module prove_top_k #(
  parameter int Classes  = 3,
  parameter int Width    = 2
) (
  input logic clk_i,
  input logic rst_ni,
  input logic mark_i,
  input logic in_valid_i,
  input logic [Width-1:0] in_data_i,
  input logic out_ready_i
);
  logic            in_ready, out_valid, in_fire, out_fire;
  logic [2-1:0] out_data;
  assign in_fire  = in_valid_i & in_ready;
  assign out_fire = out_valid & out_ready_i;

  top_k #(.Classes(Classes), .K(2), .Width(Width), .Signed(1'b1), .IndexWidth(2)) i_dut (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o(in_ready), .in_data_i,
    .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data)
  );
  fv_rules #(.Width(2), .Limit(Classes + 4)) i_rules (
    .clk_i, .rst_ni, .offered_i(in_valid_i),
    .out_valid_i(out_valid), .out_ready_i, .out_data_i(out_data)
  );
  logic [$clog2(Classes+1)-1:0] pos;
  logic [1:0]                   pick, first_q, second_q;
  logic                         takes, over_first, over_second;
  logic [Width-1:0]             best_q, next_q;
  assign over_first  = pos == '0 || $signed(in_data_i) > $signed(best_q);
  assign over_second = int'(pos) == 1 || $signed(in_data_i) > $signed(next_q);
  always @(posedge clk_i) begin
    if (takes && over_first) begin
      best_q   <= in_data_i;
      first_q  <= 2'(pos);
      next_q   <= best_q;
      second_q <= first_q;
    end else if (takes && over_second) begin
      next_q   <= in_data_i;
      second_q <= 2'(pos);
    end
  end
  fv_group #(.Width(2), .InBeats(Classes), .OutBeats(2)) i_group (
    .clk_i, .rst_ni, .mark_i, .in_fire_i(in_fire), .out_fire_i(out_fire), .out_data_i(out_data),
    .expect_i(pick == '0 ? first_q : second_q), .in_pos_o(pos), .takes_o(takes), .pick_o(pick)
  );
endmodule
`default_nettype wire
