// SPDX-License-Identifier: Apache-2.0
// Product of an activation and a weight as Digits partial products: product = sum of
// term[d] * 4^d. UseDsp: one term, written as a multiplication for the tool to map; else look-up
// tables: one term for every two weight bits. Registered: latency 1, else 0; Operands: with UseDsp
// a register at each operand, too, which DSP blocks have inside: one more.
// WeightBipolar: the weight is one bit, 1 = +1 and 0 = -1. ActSigned, WeightSigned = 0: unsigned.
// Terms are signed; those of digits but the last are unsigned where the activation is.
`default_nettype none
module mul_terms #(
  parameter int ActWidth      = 5,
  parameter bit ActSigned     = 1'b1,
  parameter int WeightWidth   = 4,
  parameter bit WeightBipolar = 1'b0,
  parameter bit UseDsp        = 1'b0,
  parameter bit WeightSigned  = 1'b1,
  parameter bit Registered    = 1'b1,
  parameter bit Operands      = 1'b0,
  localparam int Digits    = (UseDsp || WeightBipolar) ? 1 : (WeightWidth + 1) / 2,
  localparam int TermWidth = ActWidth + (WeightBipolar ? 1 : UseDsp ? WeightWidth : 2)
) (
  input  logic                        clk_i,
  input  logic                        en_i,
  input  logic [ActWidth-1:0]         act_i,
  input  logic [WeightWidth-1:0]      weight_i,
  output logic [Digits*TermWidth-1:0] terms_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (ActWidth < 1 || WeightWidth < 1) begin : gen_check
    $error("mul_terms: widths must be at least 1");
  end
`endif

  logic [Digits*TermWidth-1:0]        terms;
  logic [TermWidth+ActWidth-1:0]      act_wide;
  logic signed [TermWidth-1:0]        act_ext;

  assign act_wide = {{TermWidth{ActSigned & act_i[ActWidth-1]}}, act_i};
  assign act_ext  = act_wide[TermWidth-1:0];

  if (WeightBipolar) begin : gen_bipolar
    assign terms = weight_i[0] ? act_ext : -act_ext;
  end else if (UseDsp) begin : gen_dsp
    localparam int ActExt = ActWidth + (ActSigned ? 0 : 1);
    logic signed [ActExt-1:0]    act;
    logic signed [TermWidth-1:0] product;
    logic [ActWidth-1:0]         act_in;
    logic [WeightWidth-1:0]      weight_in;

    if (Operands) begin : gen_operands
      logic [ActWidth-1:0]    act_q;
      logic [WeightWidth-1:0] weight_q;
      always_ff @(posedge clk_i) begin : p_operands
        if (en_i) {act_q, weight_q} <= {act_i, weight_i};
      end
      assign {act_in, weight_in} = {act_q, weight_q};
    end else begin : gen_no_operands
      assign {act_in, weight_in} = {act_i, weight_i};
    end
    if (ActSigned) begin : gen_act_signed
      assign act = act_in;
    end else begin : gen_act_unsigned
      assign act = {1'b0, act_in};
    end
    if (WeightSigned) begin : gen_signed
      assign product = TermWidth'(act * $signed(weight_in));
    end else begin : gen_unsigned
      logic signed [WeightWidth:0] weight;
      assign weight  = {1'b0, weight_in};
      assign product = TermWidth'(act * weight);
    end
    assign terms = product;
  end else begin : gen_lut
    for (genvar d = 0; d < Digits; d++) begin : gen_digit
      logic [TermWidth-1:0] low;
      assign low = act_ext & {TermWidth{weight_i[2*d]}};

      // A signed weight's top bit counts negative.
      if (2 * d == WeightWidth - 1) begin : gen_sign_one
        assign terms[d*TermWidth +: TermWidth] = WeightSigned ? -low : low;
      end else begin : gen_two
        logic [TermWidth-1:0] high;
        assign high = (act_ext <<< 1) & {TermWidth{weight_i[2*d+1]}};
        assign terms[d*TermWidth +: TermWidth] =
          WeightSigned && 2 * d + 1 == WeightWidth - 1 ? low - high : low + high;
      end
    end
  end

  if (Registered) begin : gen_register
    logic [Digits*TermWidth-1:0] terms_q;
    always_ff @(posedge clk_i) begin : p_terms
      if (en_i) terms_q <= terms;
    end
    assign terms_o = terms_q;
  end else begin : gen_through
    assign terms_o = terms;
    logic unused;
    assign unused = clk_i ^ en_i;
  end

  logic unused_wide;
  assign unused_wide = ^{act_wide, act_ext};
endmodule
`default_nettype wire
