// SPDX-License-Identifier: Apache-2.0
// A signal that changes at any time, as one of the clock domain: two flip-flops in a row, two
// clocks late, Start before. The attributes keep the pair together, whole, and out of shift
// registers: of Vivado, of Synplify and Lattice LSE, of Quartus, of Yosys.
`default_nettype none
module shell_sync #(
  parameter bit Start = 1'b0
) (
  input  logic clk_i,
  input  logic in_i,
  output logic out_o
);
  (* ASYNC_REG = "TRUE", syn_keep = 1, syn_preserve = 1, preserve, dont_replicate,
     altera_attribute = "-name SYNCHRONIZER_IDENTIFICATION FORCED", keep *)
  logic meta_q, settled_q;

  initial begin : p_power_up
    meta_q    = Start;
    settled_q = Start;
  end

  // Not always_ff: that would have to be the only process of what `initial` sets.
  always @(posedge clk_i) begin : p_settle
    meta_q    <= in_i;
    settled_q <= meta_q;
  end

  assign out_o = settled_q;
endmodule
`default_nettype wire
