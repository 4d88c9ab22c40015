// SPDX-License-Identifier: Apache-2.0
// Memory with two ports, both synchronous with latency 1: a reads, b reads or writes. The word of b
// read stays while b writes. The user never reads at port a what port b writes in the same cycle
// (asserted in simulation). Made for block RAM with two full ports (DP16KD, RAMB36); a word of 2, 4
// or 8 bits fills blocks of any depth without multiplexers. Contents are undefined at start.
`default_nettype none
module mem_dual #(
  parameter int Width = 8,
  parameter int Depth = 1024,
  localparam int AddrWidth = Depth > 1 ? $clog2(Depth) : 1
) (
  input  logic                 clk_i,
  input  logic                 a_en_i,
  input  logic [AddrWidth-1:0] a_addr_i,
  output logic [Width-1:0]     a_data_o,
  input  logic                 b_en_i,
  input  logic                 b_write_i,
  input  logic [AddrWidth-1:0] b_addr_i,
  input  logic [Width-1:0]     b_data_i,
  output logic [Width-1:0]     b_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Width < 1 || Depth < 1) begin : gen_check
    $error("mem_dual: Width and Depth must be at least 1");
  end
`endif

  (* ram_style = "block", no_rw_check *) logic [Width-1:0] mem [0:Depth-1];

  always_ff @(posedge clk_i) begin : p_a
    if (a_en_i) a_data_o <= mem[a_addr_i];
  end

  always_ff @(posedge clk_i) begin : p_b
    if (b_en_i) begin
      if (b_write_i) mem[b_addr_i] <= b_data_i;
      else b_data_o <= mem[b_addr_i];
    end
  end

`ifdef BITWRIGHT_CHECKS
  mem_check #(.AddrWidth(AddrWidth)) i_check (
    .clk_i, .wr_en_i(b_en_i & b_write_i), .wr_addr_i(b_addr_i),
    .rd_en_i(a_en_i), .rd_addr_i(a_addr_i)
  );
`endif
endmodule
`default_nettype wire
