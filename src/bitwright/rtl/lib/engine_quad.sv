// SPDX-License-Identifier: Apache-2.0
// One lane of the dot products of two pixels and two outputs, in two multipliers of 25 x 18 bits
// (DSP48E1, DSP48E2): four products of bytes, or, of nibbles, four sums of two products, exact. The
// factors are those of engine_quad_feature and engine_quad_weight. nibbles_i: bit k is that of the
// factors k cycles ago. Products: pixel + 2 * output, the lowest first. Latency 3.
//
// Bytes: multiplier m makes (a0 + a1 * 2^16) * w of output m; a0 * w lies in -2^15 .. 2^15 - 1, so
// it is the lower half, and the upper half is a1 * w once the lower one's sign is added. Nibbles:
// multiplier m makes (a0 + a1 * 2^16) * (w0 + w1 * 2^8) of nibbles m of the lane: each half holds
// the products of both outputs, which lie in -120 .. 105, in the same way.
`default_nettype none
module engine_quad (
  input  logic            clk_i,
  input  logic [2:0]      nibbles_i,
  input  logic [2*25-1:0] features_i,
  input  logic [2*13-1:0] weights_i,
  output logic [4*17-1:0] products_o
);
  logic signed [2*38-1:0] product_q;
  logic [2*32-1:0]        halves_q;  // of multiplier m: a1's, a0's

  for (genvar m = 0; m < 2; m++) begin : gen_multiplier
    logic [37:0] product;
    assign product = product_q[m*38 +: 38];
    always_ff @(posedge clk_i) begin : p_product
      product_q[m*38 +: 38] <= $signed(features_i[m*25 +: 25]) * $signed(weights_i[m*13 +: 13]);
      halves_q[m*32 +: 32]  <= {product[31:16] + 16'(product[15]), product[15:0]};
    end
    logic unused_top;
    assign unused_top = ^product[37:32];
  end

  for (genvar p = 0; p < 2; p++) begin : gen_pixel
    logic [15:0]       first, second;
    logic signed [8:0] low, high;
    assign first  = halves_q[p*16 +: 16];
    assign second = halves_q[32+p*16 +: 16];
    assign low    = 9'($signed(first[7:0])) + 9'($signed(second[7:0]));
    assign high   = 9'($signed(first[15:8])) + 9'($signed(second[15:8])) + 9'(first[7])
                  + 9'(second[7]);
    always_ff @(posedge clk_i) begin : p_products
      products_o[p*17 +: 17]     <= nibbles_i[2] ? 17'(low) : 17'($signed(first));
      products_o[(2+p)*17 +: 17] <= nibbles_i[2] ? 17'(high) : 17'($signed(second));
    end
  end

  logic unused;
  assign unused = ^nibbles_i[1:0];
endmodule
`default_nettype wire
