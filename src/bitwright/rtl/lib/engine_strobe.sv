// SPDX-License-Identifier: Apache-2.0
// A flag Cycles cycles later, cleared by reset.
`default_nettype none
module engine_strobe #(
  parameter int Cycles = 2
) (
  input  logic clk_i,
  input  logic rst_ni,
  input  logic data_i,
  output logic data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Cycles < 1) begin : gen_check
    $error("engine_strobe: Cycles must be at least 1");
  end
`endif

  logic [Cycles:0] line;
  logic [Cycles-1:0] line_q;
  assign line   = {line_q, data_i};
  assign data_o = line[Cycles];

  always_ff @(posedge clk_i) begin : p_line
    if (!rst_ni) line_q <= '0;
    else line_q <= line[Cycles-1:0];
  end
endmodule
`default_nettype wire
