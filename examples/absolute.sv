// SPDX-License-Identifier: Apache-2.0
// Absolute value of PE signed lanes of InWidth bits, clipped to Most, on OutWidth bits. One beat a
// cycle; one register, then the two-entry register that ends every block: latency 2.
`default_nettype none
module absolute #(
  parameter int PE       = 2,
  parameter int InWidth  = 4,
  parameter int OutWidth = 3,
  parameter int Most     = 7
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   in_valid_i,
  output logic                   in_ready_o,
  input  logic [PE*InWidth-1:0]  in_data_i,
  output logic                   out_valid_o,
  input  logic                   out_ready_i,
  output logic [PE*OutWidth-1:0] out_data_o
);
  if (PE < 1 || InWidth < 2 || OutWidth < $clog2(Most + 1)) begin : gen_check
    $error("absolute: OutWidth must hold Most");
  end

  logic                   en, valid_q;
  logic [PE*OutWidth-1:0] code_q;

  assign in_ready_o = en;

  always_ff @(posedge clk_i) begin : p_valid
    if (!rst_ni) valid_q <= 1'b0;
    else if (en) valid_q <= in_valid_i;
  end

  for (genvar p = 0; p < PE; p++) begin : gen_lane
    logic signed [InWidth-1:0] x;
    logic [InWidth-1:0]        magnitude;

    assign x         = $signed(in_data_i[p*InWidth +: InWidth]);
    assign magnitude = x < 0 ? InWidth'(-x) : InWidth'(x);

    always_ff @(posedge clk_i) begin : p_code
      if (en) begin
        code_q[p*OutWidth +: OutWidth] <= int'(magnitude) > Most ? OutWidth'(Most)
                                                                 : OutWidth'(magnitude);
      end
    end
  end

  stream_skid #(.Width(PE * OutWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(valid_q), .in_ready_o(en), .in_data_i(code_q),
    .out_valid_o, .out_ready_i, .out_data_o
  );
endmodule
`default_nettype wire
