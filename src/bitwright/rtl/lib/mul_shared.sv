// SPDX-License-Identifier: Apache-2.0
// Products of one activation with two signed weights by one multiplication, with registers at its
// operands, which DSP blocks have inside, and behind it (latency 2):
// act * (w0 + w1*2^F), F = ActWidth + WeightWidth, has act*w0 as its low F bits, signed, and
// act*w1 above, less one where act*w0 is negative: product 1 is term 1 + carry_o.
`default_nettype none
module mul_shared #(
  parameter int ActWidth    = 8,
  parameter int WeightWidth = 8,
  parameter bit ActSigned   = 1'b0,
  localparam int Field = ActWidth + WeightWidth
) (
  input  logic                     clk_i,
  input  logic                     en_i,
  input  logic [ActWidth-1:0]      act_i,
  input  logic [2*WeightWidth-1:0] weights_i,
  output logic [2*Field-1:0]       terms_o,
  output logic                     carry_o
);
`ifndef __ICARUS__
  if (ActWidth < 1 || WeightWidth < 1) begin : gen_check
    $error("mul_shared: widths must be at least 1");
  end
`endif

  localparam int ActWide = ActWidth + (ActSigned ? 0 : 1);
  localparam int Wide    = Field + WeightWidth + 1;

  logic signed [ActWide-1:0]      act, act_q;
  logic signed [WeightWidth-1:0]  low, high;
  logic signed [Wide-1:0]         weight, weight_q;
  logic signed [ActWide+Wide-1:0] product, product_q;

  if (ActSigned) begin : gen_signed
    assign act = act_i;
  end else begin : gen_unsigned
    assign act = {1'b0, act_i};
  end
  assign {high, low} = weights_i;
  assign weight      = (Wide'(high) <<< Field) + Wide'(low);
  assign product     = act_q * weight_q;

  always_ff @(posedge clk_i) begin : p_product
    if (en_i) begin
      act_q     <= act;
      weight_q  <= weight;
      product_q <= product;
    end
  end

  assign terms_o = product_q[2*Field-1:0];
  assign carry_o = product_q[Field-1];

  logic unused;
  assign unused = ^product_q;
endmodule
`default_nettype wire
