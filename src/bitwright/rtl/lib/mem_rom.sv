// SPDX-License-Identifier: Apache-2.0
// Synchronous-read ROM, contents from File by $readmemh (one word a line). Latency 1: the word
// of addr_i is on data_o after the next clock edge with en_i high. Style: 0 the tool chooses,
// 1 block RAM, 2 look-up tables. An address at or above Depth reads an undefined
// word; without a File all words are zero. AddrReg: of look-up tables, the register holds the
// address and not the word; for users that have a register behind data_o anyway. It begins at 0,
// so that Yosys does not move it behind the tables.
// Attributes: of Vivado and Yosys, or, where Quartus reads this file, its own (names of Cyclone V).
`default_nettype none
`ifdef ALTERA_RESERVED_QIS
`define MEM_ROM_BLOCK romstyle = "M10K"
`define MEM_ROM_LUT romstyle = "logic"
`else
`define MEM_ROM_BLOCK ram_style = "block", rom_style = "block"
`define MEM_ROM_LUT ram_style = "logic", rom_style = "distributed"
`endif
module mem_rom #(
  parameter int Width = 8,
  parameter int Depth = 16,
  parameter int Style = 0,
  parameter     File  = "",
  parameter bit AddrReg = 1'b0,
  localparam int AddrWidth = Depth > 1 ? $clog2(Depth) : 1
) (
  input  logic                 clk_i,
  input  logic                 en_i,
  input  logic [AddrWidth-1:0] addr_i,
  output logic [Width-1:0]     data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Width < 1 || Depth < 1 || Style < 0 || Style > 2) begin : gen_check
    $error("mem_rom: Width and Depth must be at least 1 and Style one of 0, 1, 2");
  end
`endif

  if (Style == 1) begin : gen_block
    (* `MEM_ROM_BLOCK *) logic [Width-1:0] mem [0:Depth-1];
    if (File != "") begin : gen_init
      initial $readmemh(File, mem);
    end else begin : gen_zero
      initial for (int i = 0; i < Depth; i++) mem[i] = '0;
    end
    always_ff @(posedge clk_i) begin : p_read
      if (en_i) data_o <= mem[addr_i];
    end
  end else if (Style == 2) begin : gen_lut
    (* `MEM_ROM_LUT *) logic [Width-1:0] mem [0:Depth-1];
    if (File != "") begin : gen_init
      initial $readmemh(File, mem);
    end else begin : gen_zero
      initial for (int i = 0; i < Depth; i++) mem[i] = '0;
    end
    if (AddrReg) begin : gen_address
      // A wide word has a register for each part, which synthesis keeps: thousands of tables at
      // the ends of the wires of one register are slower than what follows them.
      localparam int Part = 256;
      for (genvar p = 0; p < (Width + Part - 1) / Part; p++) begin : gen_part
        localparam int From = p * Part;
        localparam int Bits = Width - From < Part ? Width - From : Part;
        logic [AddrWidth-1:0] addr_q;
        initial addr_q = '0;
        (* keep *)
        always @(posedge clk_i) begin : p_address
          if (en_i) addr_q <= addr_i;
        end
        assign data_o[From +: Bits] = mem[addr_q][From +: Bits];
      end
    end else begin : gen_word
      always_ff @(posedge clk_i) begin : p_read
        if (en_i) data_o <= mem[addr_i];
      end
    end
  end else begin : gen_auto
    logic [Width-1:0] mem [0:Depth-1];
    if (File != "") begin : gen_init
      initial $readmemh(File, mem);
    end else begin : gen_zero
      initial for (int i = 0; i < Depth; i++) mem[i] = '0;
    end
    always_ff @(posedge clk_i) begin : p_read
      if (en_i) data_o <= mem[addr_i];
    end
  end
endmodule
`undef MEM_ROM_BLOCK
`undef MEM_ROM_LUT
`default_nettype wire
