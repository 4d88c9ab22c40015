// SPDX-License-Identifier: Apache-2.0
// A register of its own, a cycle later: where several hold the same, synthesis keeps them all, so
// that each can stand beside the memory that it addresses. (Yosys takes "keep" of a process to its
// flip-flops; of a net it would only keep the name.)
`default_nettype none
module engine_own #(
  parameter int Width = 8
) (
  input  logic             clk_i,
  input  logic [Width-1:0] data_i,
  output logic [Width-1:0] data_o
);
  (* keep *)
  always_ff @(posedge clk_i) begin : p_own
    data_o <= data_i;
  end
endmodule
`default_nettype wire
