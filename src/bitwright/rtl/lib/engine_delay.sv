// SPDX-License-Identifier: Apache-2.0
// A value Cycles cycles later (0: the same), without reset.
`default_nettype none
module engine_delay #(
  parameter int Width  = 8,
  parameter int Cycles = 1
) (
  input  logic             clk_i,
  input  logic [Width-1:0] data_i,
  output logic [Width-1:0] data_o
);
  if (Cycles == 0) begin : gen_none
    assign data_o = data_i;
    logic unused;
    assign unused = clk_i;
  end else begin : gen_line
    logic [(Cycles+1)*Width-1:0] line;
    logic [Cycles*Width-1:0]     line_q;
    assign line   = {line_q, data_i};
    assign data_o = line[Cycles*Width +: Width];
    always_ff @(posedge clk_i) begin : p_line
      line_q <= line[0 +: Cycles*Width];
    end
  end
endmodule
`default_nettype wire
