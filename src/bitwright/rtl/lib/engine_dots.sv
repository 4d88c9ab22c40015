// SPDX-License-Identifier: Apache-2.0
// Pixels x Outputs dot products of a word, exact: Lanes products of bytes each, or twice as many of
// nibbles (nibbles_i). signed_i: the features. The first Dsps lanes are multiplications for the
// tool to map, the others look-up tables. Paired: a multiplication makes the products of two pixels
// (engine_quad). Sum of pixel p and output o: o * Pixels + p. Latency 4 + $clog2(Lanes), a word of
// each a cycle.
`default_nettype none
module engine_dots #(
  parameter int Pixels  = 4,
  parameter int Outputs = 8,
  parameter int Lanes   = 8,
  parameter int Dsps    = 8,
  parameter bit Paired  = 1'b0,
  localparam int SumWidth = 17 + $clog2(Lanes)
) (
  input  logic                               clk_i,
  input  logic                               signed_i,
  input  logic                               nibbles_i,
  input  logic [Pixels*Lanes*8-1:0]          features_i,
  input  logic [Outputs*Lanes*8-1:0]         weights_i,
  output logic [Outputs*Pixels*SumWidth-1:0] sums_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Dsps < 0 || Dsps > Lanes || Pixels % 2 != 0 || Outputs % 2 != 0) begin : gen_check
    $error("engine_dots: Dsps must be at most Lanes, Pixels and Outputs even");
  end
`endif

  localparam int Shared = Paired ? Dsps : 0;  // lanes whose multipliers have two pixels

  // Bit k: of the factors k cycles ago. These are made once for all that multiply them, and get a
  // register of their own: they go to many.
  logic [2:0] nibbles_q;
  always_ff @(posedge clk_i) begin : p_nibbles
    nibbles_q <= {nibbles_q[1:0], nibbles_i};
  end

  // Products by output, pixel and lane.
  logic [Outputs*Pixels*Lanes*17-1:0] products;

  for (genvar n = 0; n < Shared; n++) begin : gen_shared
    logic [Pixels*25-1:0]  features, features_q;
    logic [Outputs*13-1:0] weights, weights_q;
    for (genvar q = 0; q < Pixels / 2; q++) begin : gen_feature
      engine_quad_feature i_feature (
        .signed_i, .nibbles_i,
        .bytes_i({features_i[((2*q+1)*Lanes+n)*8 +: 8], features_i[(2*q*Lanes+n)*8 +: 8]}),
        .factors_o(features[q*50 +: 50])
      );
    end
    for (genvar r = 0; r < Outputs / 2; r++) begin : gen_weight
      engine_quad_weight i_weight (
        .nibbles_i,
        .bytes_i({weights_i[((2*r+1)*Lanes+n)*8 +: 8], weights_i[(2*r*Lanes+n)*8 +: 8]}),
        .factors_o(weights[r*26 +: 26])
      );
    end
    always_ff @(posedge clk_i) begin : p_words
      features_q <= features;
      weights_q  <= weights;
    end
    for (genvar r = 0; r < Outputs / 2; r++) begin : gen_outputs
      for (genvar q = 0; q < Pixels / 2; q++) begin : gen_pixels
        logic [4*17-1:0] four;
        engine_quad i_quad (
          .clk_i, .nibbles_i(nibbles_q), .features_i(features_q[q*50 +: 50]),
          .weights_i(weights_q[r*26 +: 26]), .products_o(four)
        );
        for (genvar k = 0; k < 4; k++) begin : gen_product
          assign products[(((2*r+k/2)*Pixels+2*q+k%2)*Lanes+n)*17 +: 17] = four[k*17 +: 17];
        end
      end
    end
  end

  for (genvar n = Shared; n < Lanes; n++) begin : gen_lane
    logic [Pixels*18-1:0]  features, features_q;
    logic [Outputs*15-1:0] weights, weights_q;
    for (genvar p = 0; p < Pixels; p++) begin : gen_feature
      engine_feature #(.UseDsp(n < Dsps)) i_feature (
        .signed_i, .nibbles_i, .byte_i(features_i[(p*Lanes+n)*8 +: 8]),
        .factor_o(features[p*18 +: 18])
      );
    end
    for (genvar o = 0; o < Outputs; o++) begin : gen_weight
      engine_weight #(.UseDsp(n < Dsps)) i_weight (
        .nibbles_i, .byte_i(weights_i[(o*Lanes+n)*8 +: 8]), .factor_o(weights[o*15 +: 15])
      );
    end
    always_ff @(posedge clk_i) begin : p_words
      features_q <= features;
      weights_q  <= weights;
    end
    for (genvar o = 0; o < Outputs; o++) begin : gen_output
      for (genvar p = 0; p < Pixels; p++) begin : gen_pixel
        engine_pair #(.UseDsp(n < Dsps)) i_pair (
          .clk_i, .nibbles_i(nibbles_q), .feature_i(features_q[p*18 +: 18]),
          .weight_i(weights_q[o*15 +: 15]),
          .product_o(products[((o*Pixels+p)*Lanes+n)*17 +: 17])
        );
      end
    end
  end

  for (genvar s = 0; s < Outputs * Pixels; s++) begin : gen_sum
    adder_tree #(.Terms(Lanes), .Width(17)) i_tree (
      .clk_i, .en_i(1'b1), .terms_i(products[s*Lanes*17 +: Lanes*17]),
      .sum_o(sums_o[s*SumWidth +: SumWidth])
    );
  end

  logic unused;
  assign unused = ^nibbles_q;
endmodule
`default_nettype wire
