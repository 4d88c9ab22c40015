// SPDX-License-Identifier: Apache-2.0
// Product of a signed activation and a signed weight as Digits partial products, registered
// (latency 1): product = sum of term[d] * 4^d. UseDsp: one term, written as a multiplication for
// the tool to map; else look-up tables: one term for every two weight bits.
// WeightBipolar: the weight is one bit, 1 = +1 and 0 = -1. WeightSigned = 0: it is unsigned.
`default_nettype none
module mul_terms #(
  parameter int ActWidth      = 5,
  parameter int WeightWidth   = 4,
  parameter bit WeightBipolar = 1'b0,
  parameter bit UseDsp        = 1'b0,
  parameter bit WeightSigned  = 1'b1,
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

  if (WeightBipolar) begin : gen_bipolar
    logic signed [TermWidth-1:0] act_ext;
    assign act_ext = TermWidth'($signed(act_i));
    always_ff @(posedge clk_i) begin : p_term
      if (en_i) terms_o <= weight_i[0] ? act_ext : -act_ext;
    end
  end else if (UseDsp) begin : gen_dsp
    logic signed [TermWidth-1:0] product;
    if (WeightSigned) begin : gen_signed
      assign product = $signed(act_i) * $signed(weight_i);
    end else begin : gen_unsigned
      logic signed [WeightWidth:0] weight;
      assign weight  = {1'b0, weight_i};
      assign product = TermWidth'($signed(act_i) * weight);
    end
    always_ff @(posedge clk_i) begin : p_term
      if (en_i) terms_o <= product;
    end
  end else begin : gen_lut
    logic signed [TermWidth-1:0] act_ext;
    assign act_ext = TermWidth'($signed(act_i));
    for (genvar d = 0; d < Digits; d++) begin : gen_digit
      logic signed [TermWidth-1:0] low;
      assign low = act_ext & {TermWidth{weight_i[2*d]}};

      // A signed weight's top bit counts negative.
      if (2 * d == WeightWidth - 1) begin : gen_sign_one
        always_ff @(posedge clk_i) begin : p_term
          if (en_i) terms_o[d*TermWidth +: TermWidth] <= WeightSigned ? -low : low;
        end
      end else begin : gen_two
        logic signed [TermWidth-1:0] high;
        assign high = (act_ext <<< 1) & {TermWidth{weight_i[2*d+1]}};
        always_ff @(posedge clk_i) begin : p_term
          if (en_i) begin
            terms_o[d*TermWidth +: TermWidth] <=
              WeightSigned && 2 * d + 1 == WeightWidth - 1 ? low - high : low + high;
          end
        end
      end
    end
  end
endmodule
`default_nettype wire
