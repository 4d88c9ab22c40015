// SPDX-License-Identifier: Apache-2.0
// XNOR of two bit vectors, counted by pairs: term n (3 bits, never negative) is the number of
// equal positions among bits 2n and 2n+1. Registered, latency 1.
`default_nettype none
module popcount_pairs #(
  parameter int Bits = 8,
  localparam int Terms = (Bits + 1) / 2
) (
  input  logic               clk_i,
  input  logic               en_i,
  input  logic [Bits-1:0]    a_i,
  input  logic [Bits-1:0]    b_i,
  output logic [Terms*3-1:0] terms_o
);
  // An odd last position is padded with "not equal".
  logic [Bits-1:0]    same;
  logic [2*Terms-1:0] equal;

  assign same  = a_i ~^ b_i;
  assign equal = (2 * Terms)'(same);

  for (genvar n = 0; n < Terms; n++) begin : gen_term
    logic low, high;
    assign low  = equal[2*n];
    assign high = equal[2*n+1];
    always_ff @(posedge clk_i) begin : p_term
      if (en_i) terms_o[n*3 +: 3] <= {1'b0, low & high, low ^ high};
    end
  end
endmodule
`default_nettype wire
