// SPDX-License-Identifier: Apache-2.0
// One accumulator of the sample design: two products a beat, cleared after the last beat.
`default_nettype none
module dots_lane (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic               valid_i,
  input  logic               clear_i,
  input  logic [7:0]         act_i,
  input  logic [7:0]         weight_i,
  output logic signed [15:0] sum_o
);
  logic signed [15:0] product;

  always_comb begin : p_product
    product = 16'($signed(act_i[3:0]) * $signed(weight_i[3:0]))
            + 16'($signed(act_i[7:4]) * $signed(weight_i[7:4]));
  end

  always_ff @(posedge clk_i) begin : p_sum
    if (!rst_ni || clear_i) sum_o <= '0;
    else if (valid_i) sum_o <= sum_o + product;
  end
endmodule
`default_nettype wire
