// SPDX-License-Identifier: Apache-2.0
// Two rows of `mac_array` whose products share multiplications (`mul_shared`): of each activation
// with a weight of either row. Integers only; otherwise as two of `matvec_lane`. Row 0 is in the
// low half of weights_i, init_i and acc_o.
`default_nettype none
module matvec_pair #(
  parameter int SIMD        = 4,
  parameter int WeightWidth = 8,
  parameter int ActWidth    = 8,
  parameter int AccWidth    = 24,
  parameter bit AccSigned   = 1'b1,
  parameter bit ActSigned   = 1'b0,
  parameter int Step        = 1,
  parameter int Drop        = -1,
  parameter int Delay       = 0,
  parameter int InitWidth   = 17
) (
  input  logic                          clk_i,
  input  logic                          rst_ni,
  input  logic                          en_i,
  input  logic [SIMD*ActWidth-1:0]      acts_i,
  input  logic [2*SIMD*WeightWidth-1:0] weights_i,
  input  logic                          valid_i,
  input  logic                          first_i,
  input  logic                          last_i,
  input  logic [2*InitWidth-1:0]        init_i,
  output logic [2*AccWidth-1:0]         acc_o
);
  localparam int TermWidth = ActWidth + WeightWidth;
  localparam int Exact     = TermWidth + (SIMD > 1 ? $clog2(SIMD) : 0);

  logic [2*SIMD*TermWidth-1:0] terms;  // row by row
  logic [2*SIMD-1:0]           carries;

  for (genvar s = 0; s < SIMD; s++) begin : gen_lane
    mul_shared #(
      .ActWidth(ActWidth), .WeightWidth(WeightWidth), .ActSigned(ActSigned)
    ) i_mul (
      .clk_i, .en_i, .act_i(acts_i[s*ActWidth +: ActWidth]),
      .weights_i({weights_i[(SIMD+s)*WeightWidth +: WeightWidth],
                  weights_i[s*WeightWidth +: WeightWidth]}),
      .terms_o({terms[(SIMD+s)*TermWidth +: TermWidth], terms[s*TermWidth +: TermWidth]}),
      .carry_o(carries[SIMD+s])
    );
    assign carries[s] = 1'b0;
  end

  for (genvar r = 0; r < 2; r++) begin : gen_row
    mac_sum #(
      .Terms(SIMD), .TermWidth(TermWidth), .Digits(1), .Step(Step), .Delay(Delay), .Exact(Exact),
      .Drop(Drop),
      .AccWidth(AccWidth), .AccSigned(AccSigned), .InitWidth(InitWidth)
    ) i_sum (
      .clk_i, .rst_ni, .en_i, .terms_i(terms[r*SIMD*TermWidth +: SIMD*TermWidth]),
      .carries_i(carries[r*SIMD +: SIMD]), .valid_i, .first_i, .last_i,
      .init_i(init_i[r*InitWidth +: InitWidth]), .acc_o(acc_o[r*AccWidth +: AccWidth])
    );
  end
endmodule
`default_nettype wire
