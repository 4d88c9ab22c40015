// SPDX-License-Identifier: Apache-2.0
// XNOR of two bit vectors, counted by pairs: term n (2 bits, unsigned) is the number of equal
// positions among bits 2n and 2n+1. Registered: latency 1, else 0.
`default_nettype none
module popcount_pairs #(
  parameter int Bits       = 8,
  parameter bit Registered = 1'b1,
  localparam int Terms = (Bits + 1) / 2
) (
  input  logic               clk_i,
  input  logic               en_i,
  input  logic [Bits-1:0]    a_i,
  input  logic [Bits-1:0]    b_i,
  output logic [Terms*2-1:0] terms_o
);
  // An odd last position is padded with "not equal".
  logic [Bits-1:0]    same;
  logic [2*Terms-1:0] equal, terms;

  assign same  = a_i ~^ b_i;
  assign equal = (2 * Terms)'(same);

  for (genvar n = 0; n < Terms; n++) begin : gen_term
    assign terms[n*2 +: 2] = {equal[2*n] & equal[2*n+1], equal[2*n] ^ equal[2*n+1]};
  end

  if (Registered) begin : gen_register
    logic [2*Terms-1:0] terms_q;
    always_ff @(posedge clk_i) begin : p_terms
      if (en_i) terms_q <= terms;
    end
    assign terms_o = terms_q;
  end else begin : gen_through
    assign terms_o = terms;
    logic unused;
    assign unused = clk_i ^ en_i;
  end
endmodule
`default_nettype wire
