// SPDX-License-Identifier: Apache-2.0
// Product of a signed activation and a signed weight as Terms partial products whose sum is the
// product, registered (latency 1). UseDsp: one term, written as a multiplication for the tool to
// map; else look-up tables: one term for every four weight bits, by shift and add.
// WeightBipolar: the weight is one bit, 1 = +1 and 0 = -1.
`default_nettype none
module mul_terms #(
  parameter int ActWidth      = 5,
  parameter int WeightWidth   = 4,
  parameter bit WeightBipolar = 1'b0,
  parameter bit UseDsp        = 1'b0,
  localparam int Terms     = (UseDsp || WeightBipolar) ? 1 : (WeightWidth + 3) / 4,
  localparam int TermWidth = WeightBipolar ? ActWidth + 1 : ActWidth + WeightWidth
) (
  input  logic                       clk_i,
  input  logic                       en_i,
  input  logic [ActWidth-1:0]        act_i,
  input  logic [WeightWidth-1:0]     weight_i,
  output logic [Terms*TermWidth-1:0] terms_o
);
  if (ActWidth < 1 || WeightWidth < 1) begin : gen_check
    $error("mul_terms: widths must be at least 1");
  end

  if (WeightBipolar) begin : gen_bipolar
    logic signed [TermWidth-1:0] act_ext;
    assign act_ext = TermWidth'($signed(act_i));
    always_ff @(posedge clk_i) begin : p_term
      if (en_i) terms_o <= weight_i[0] ? act_ext : -act_ext;
    end
  end else if (UseDsp) begin : gen_dsp
    logic signed [TermWidth-1:0] product;
    assign product = $signed(act_i) * $signed(weight_i);
    always_ff @(posedge clk_i) begin : p_term
      if (en_i) terms_o <= product;
    end
  end else begin : gen_lut
    logic signed [TermWidth-1:0] act_ext;
    assign act_ext = TermWidth'($signed(act_i));
    for (genvar k = 0; k < Terms; k++) begin : gen_term
      logic signed [TermWidth-1:0] sum;

      // The weight's top bit counts negative; all others add the shifted activation.
      always_comb begin : p_sum
        sum = '0;
        for (int j = 4 * k; j < 4 * k + 4; j++) begin
          if (j < WeightWidth - 1) begin
            sum = sum + ((act_ext <<< j) & {TermWidth{weight_i[j]}});
          end else if (j == WeightWidth - 1) begin
            sum = sum - ((act_ext <<< j) & {TermWidth{weight_i[j]}});
          end
        end
      end

      always_ff @(posedge clk_i) begin : p_term
        if (en_i) terms_o[k*TermWidth +: TermWidth] <= sum;
      end
    end
  end
endmodule
`default_nettype wire
