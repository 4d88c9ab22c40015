// SPDX-License-Identifier: Apache-2.0
// Simple dual-port RAM, one write and one synchronous read port, latency 1. The user never reads
// an address in the cycle in which it is written (asserted in simulation), so no bypass is built.
// Row: a row of a deeper memory (`mem_rows`), which is read although another row is meant; that
// module has the checker.
// Style: 0 the tool chooses, but block RAM beyond 256 words (Yosys 0.70 gives up on a deeper LUT
// RAM of UltraScale+ with one address), 1 block RAM, 2 LUT RAM. Contents are undefined at start.
// Attributes: of Vivado and Yosys, or, where Quartus reads this file, its own (names of Cyclone V).
`default_nettype none
`ifdef ALTERA_RESERVED_QIS
`define MEM_RAM_BLOCK ramstyle = "M10K, no_rw_check"
`define MEM_RAM_LUT ramstyle = "MLAB, no_rw_check"
`define MEM_RAM_AUTO ramstyle = "no_rw_check"
`else
`define MEM_RAM_BLOCK ram_style = "block", no_rw_check
`define MEM_RAM_LUT ram_style = "distributed", no_rw_check
`define MEM_RAM_AUTO no_rw_check
`endif
module mem_ram #(
  parameter int Width = 8,
  parameter int Depth = 16,
  parameter int Style = 0,
  parameter bit Row   = 1'b0,
  localparam int AddrWidth = Depth > 1 ? $clog2(Depth) : 1
) (
  input  logic                 clk_i,
  input  logic                 wr_en_i,
  input  logic [AddrWidth-1:0] wr_addr_i,
  input  logic [Width-1:0]     wr_data_i,
  input  logic                 rd_en_i,
  input  logic [AddrWidth-1:0] rd_addr_i,
  output logic [Width-1:0]     rd_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Width < 1 || Depth < 1 || Style < 0 || Style > 2) begin : gen_check
    $error("mem_ram: Width and Depth must be at least 1 and Style one of 0, 1, 2");
  end
`endif

  if (Style == 1 || (Style == 0 && Depth > 256)) begin : gen_block
    (* `MEM_RAM_BLOCK *) logic [Width-1:0] mem [0:Depth-1];
    always_ff @(posedge clk_i) begin : p_access
      if (wr_en_i) mem[wr_addr_i] <= wr_data_i;
      if (rd_en_i) rd_data_o <= mem[rd_addr_i];
    end
  end else if (Style == 2) begin : gen_lut
    (* `MEM_RAM_LUT *) logic [Width-1:0] mem [0:Depth-1];
    always_ff @(posedge clk_i) begin : p_access
      if (wr_en_i) mem[wr_addr_i] <= wr_data_i;
      if (rd_en_i) rd_data_o <= mem[rd_addr_i];
    end
  end else begin : gen_auto
    (* `MEM_RAM_AUTO *) logic [Width-1:0] mem [0:Depth-1];
    always_ff @(posedge clk_i) begin : p_access
      if (wr_en_i) mem[wr_addr_i] <= wr_data_i;
      if (rd_en_i) rd_data_o <= mem[rd_addr_i];
    end
  end

`ifdef BITWRIGHT_CHECKS
  if (!Row) begin : gen_whole
    mem_check #(.AddrWidth(AddrWidth)) i_check (
      .clk_i, .wr_en_i, .wr_addr_i, .rd_en_i, .rd_addr_i
    );
  end
`else
  logic unused;
  assign unused = &{1'b0, Row};
`endif
endmodule
`undef MEM_RAM_BLOCK
`undef MEM_RAM_LUT
`undef MEM_RAM_AUTO
`default_nettype wire
