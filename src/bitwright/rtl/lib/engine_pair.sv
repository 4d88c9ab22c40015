// SPDX-License-Identifier: Apache-2.0
// One lane of a dot product: the product of a byte and a byte, or the sum of the two products of
// two nibbles each, exact. The factors are those of engine_feature and engine_weight. nibbles_i:
// bit k is that of the factors k cycles ago. Latency 3. With UseDsp one multiplier makes both
// products: (a0 + a1 * 2^10) * (b1 + b0 * 2^10) has a0 * b0 + a1 * b1 in bits 19 .. 10 once 2^9 is
// added, since a0 * b1 lies in -512 .. 511.
`default_nettype none
module engine_pair #(
  parameter bit UseDsp = 1'b1
) (
  input  logic        clk_i,
  input  logic [2:0]  nibbles_i,
  input  logic [17:0] feature_i,
  input  logic [14:0] weight_i,
  output logic [16:0] product_o
);
  if (UseDsp) begin : gen_dsp
    logic signed [29:0] product_q;
    logic [16:0]        early_q;
    logic signed [9:0]  both;
    assign both = product_q[19:10] + 10'(product_q[9]);

    always_ff @(posedge clk_i) begin : p_product
      product_q <= $signed(feature_i[14:0]) * $signed(weight_i);
      early_q   <= nibbles_i[1] ? 17'(both) : product_q[16:0];
      product_o <= early_q;
    end

    logic unused;
    assign unused = ^{feature_i[17:15], product_q[29:20], product_q[8:0], nibbles_i};
  end else begin : gen_lut
    // Four terms of two weight bits each; the top bit of a byte or nibble counts negative.
    logic [4*11-1:0] terms_q;
    logic signed [16:0] low_q, high_q;

    for (genvar d = 0; d < 4; d++) begin : gen_digit
      logic signed [8:0]  factor;
      logic signed [10:0] one, two;
      logic               minus;
      assign factor = feature_i[(d/2)*9 +: 9];
      assign one    = 11'(factor) & {11{weight_i[2*d]}};
      assign two    = (11'(factor) <<< 1) & {11{weight_i[2*d+1]}};
      assign minus  = d == 3 || (d == 1 && nibbles_i[0]);
      always_ff @(posedge clk_i) begin : p_term
        terms_q[d*11 +: 11] <= minus ? one - two : one + two;
      end
    end

    always_ff @(posedge clk_i) begin : p_product
      low_q     <= 17'($signed(terms_q[0 +: 11])) + (17'($signed(terms_q[11 +: 11])) <<< 2);
      high_q    <= 17'($signed(terms_q[22 +: 11])) + (17'($signed(terms_q[33 +: 11])) <<< 2);
      product_o <= low_q + (nibbles_i[2] ? high_q : high_q <<< 4);
    end

    logic unused;
    assign unused = ^{weight_i[14:8], nibbles_i[1]};
  end
endmodule
`default_nettype wire
