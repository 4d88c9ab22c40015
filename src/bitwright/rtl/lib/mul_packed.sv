// SPDX-License-Identifier: Apache-2.0
// Sum of Products products of an activation and a signed weight by one multiplication, with
// registers at its operands, which DSP blocks have inside, and behind it (latency 2):
// (a0 + a1*2^F) * (w1 + w0*2^F) has a0*w0 + a1*w1 as its field of F bits at place F, and so on for
// more, the operands a0 .. and w.. in opposite orders. Fields hold signed sums
// (F = ActWidth + WeightWidth + $clog2(Products)), so a negative field below takes one from it:
// sum = term_o + carry_o, carry_o the top bit of the field below.
`default_nettype none
module mul_packed #(
  parameter int ActWidth    = 4,
  parameter int WeightWidth = 4,
  parameter bit ActSigned   = 1'b0,
  parameter int Products    = 2,
  localparam int Field = ActWidth + WeightWidth + (Products > 1 ? $clog2(Products) : 0)
) (
  input  logic                            clk_i,
  input  logic                            en_i,
  input  logic [Products*ActWidth-1:0]    acts_i,
  input  logic [Products*WeightWidth-1:0] weights_i,
  output logic [Field-1:0]                term_o,
  output logic                            carry_o
);
`ifndef __ICARUS__
  if (ActWidth < 1 || WeightWidth < 1 || Products < 1) begin : gen_check
    $error("mul_packed: widths and Products must be at least 1");
  end
`endif

  localparam int Place    = Field * (Products - 1);
  localparam int ActWide  = Place + ActWidth + 1;
  localparam int WeightWide = Place + WeightWidth + 1;

  logic signed [ActWide-1:0]    act;
  logic signed [WeightWide-1:0] weight;

  // Numbers side by side: a negative one takes one from its neighbour above.
  always_comb begin : p_pack
    act    = '0;
    weight = '0;
    for (int n = 0; n < Products; n++) begin
      if (ActSigned) begin
        act = act + (ActWide'($signed(acts_i[n*ActWidth +: ActWidth])) <<< (Field * n));
      end else begin
        act = act | (ActWide'(acts_i[n*ActWidth +: ActWidth]) << (Field * n));
      end
      weight = weight + (WeightWide'($signed(weights_i[n*WeightWidth +: WeightWidth]))
                         <<< (Field * (Products - 1 - n)));
    end
  end

  localparam int Whole = ActWide + WeightWide;
  logic signed [ActWide-1:0]    act_q;
  logic signed [WeightWide-1:0] weight_q;
  logic signed [Whole-1:0]      product, product_q;

  assign product = act_q * weight_q;

  always_ff @(posedge clk_i) begin : p_product
    if (en_i) begin
      act_q     <= act;
      weight_q  <= weight;
      product_q <= product;
    end
  end

  assign term_o = product_q[Place +: Field];
  if (Products > 1) begin : gen_carry
    assign carry_o = product_q[Place-1];
  end else begin : gen_no_carry
    assign carry_o = 1'b0;
  end

  logic unused;
  assign unused = ^product_q;
endmodule
`default_nettype wire
