// SPDX-License-Identifier: Apache-2.0
// Dot product of Lanes features and Lanes weights of 8 bits, exact. Features have one bit more,
// their sign; weights are signed. The first Dsps lanes are multiplications for the tool to map, the
// others look-up tables. Latency 3 + $clog2(Lanes), one sum a cycle.
`default_nettype none
module engine_dot #(
  parameter int Lanes = 8,
  parameter int Dsps  = 8,
  localparam int SumWidth = 17 + $clog2(Lanes)
) (
  input  logic                clk_i,
  input  logic [Lanes*9-1:0]  features_i,
  input  logic [Lanes*8-1:0]  weights_i,
  output logic [SumWidth-1:0] sum_o
);
  if (Lanes < 1 || Dsps < 0 || Dsps > Lanes) begin : gen_check
    $error("engine_dot: Lanes must be at least 1 and Dsps at most as many");
  end

  logic [Lanes*17-1:0] products;

  for (genvar n = 0; n < Lanes; n++) begin : gen_lane
    if (n < Dsps) begin : gen_dsp
      logic [16:0] term, early_q, late_q;
      mul_terms #(.ActWidth(9), .WeightWidth(8), .UseDsp(1'b1)) i_mul (
        .clk_i, .en_i(1'b1), .act_i(features_i[n*9 +: 9]), .weight_i(weights_i[n*8 +: 8]),
        .terms_o(term)
      );
      always_ff @(posedge clk_i) begin : p_wait
        early_q <= term;
        late_q  <= early_q;
      end
      assign products[n*17 +: 17] = late_q;
    end else begin : gen_lut
      logic [4*11-1:0] terms;
      logic [4*17-1:0] wide;
      logic [18:0]     sum;
      mul_terms #(.ActWidth(9), .WeightWidth(8)) i_mul (
        .clk_i, .en_i(1'b1), .act_i(features_i[n*9 +: 9]), .weight_i(weights_i[n*8 +: 8]),
        .terms_o(terms)
      );
      for (genvar d = 0; d < 4; d++) begin : gen_digit
        assign wide[d*17 +: 17] = 17'($signed(terms[d*11 +: 11])) << (2 * d);
      end
      adder_tree #(.Terms(4), .Width(17)) i_tree (
        .clk_i, .en_i(1'b1), .terms_i(wide), .sum_o(sum)
      );
      assign products[n*17 +: 17] = sum[16:0];
      logic unused;
      assign unused = ^sum[18:17];
    end
  end

  adder_tree #(.Terms(Lanes), .Width(17)) i_tree (
    .clk_i, .en_i(1'b1), .terms_i(products), .sum_o
  );
endmodule
`default_nettype wire
