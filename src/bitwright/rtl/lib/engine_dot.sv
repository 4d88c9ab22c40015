// SPDX-License-Identifier: Apache-2.0
// Dot product of Lanes features and Lanes weights of 8 bits, or twice as many of 4, exact, from the
// factors that engine_feature and engine_weight make of them. The first Dsps lanes are
// multiplications for the tool to map, the others look-up tables. nibbles_i: bit k is that of the
// factors k cycles ago. Latency 3 + $clog2(Lanes), one sum a cycle.
`default_nettype none
module engine_dot #(
  parameter int Lanes = 8,
  parameter int Dsps  = 8,
  localparam int SumWidth = 17 + $clog2(Lanes)
) (
  input  logic                clk_i,
  input  logic [2:0]          nibbles_i,
  input  logic [Lanes*18-1:0] features_i,
  input  logic [Lanes*15-1:0] weights_i,
  output logic [SumWidth-1:0] sum_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Lanes < 1 || Dsps < 0 || Dsps > Lanes) begin : gen_check
    $error("engine_dot: Lanes must be at least 1 and Dsps at most as many");
  end
`endif

  logic [Lanes*17-1:0] products;

  for (genvar n = 0; n < Lanes; n++) begin : gen_lane
    engine_pair #(.UseDsp(n < Dsps)) i_pair (
      .clk_i, .nibbles_i, .feature_i(features_i[n*18 +: 18]), .weight_i(weights_i[n*15 +: 15]),
      .product_o(products[n*17 +: 17])
    );
  end

  adder_tree #(.Terms(Lanes), .Width(17)) i_tree (
    .clk_i, .en_i(1'b1), .terms_i(products), .sum_o
  );
endmodule
`default_nettype wire
