// SPDX-License-Identifier: Apache-2.0
// Synchronous-read ROM, contents from File by $readmemh. Latency 1 + Wait: the word of addr_i is on
// data_o after as many clock edges with en_i high. Style: 0 the tool chooses, 1 block RAM, 2
// look-up tables. An address at or above Depth reads an undefined word; without a File all words
// are zero. AddrReg: of look-up tables, the register holds the address and not the word; for users
// that have a register behind data_o anyway. It begins at 0, so that Yosys does not move it behind
// the tables.
// Rows > 1: a deep memory as a wide one. A line of the File has a word of each row, word a that of
// row a / Lines, at [row*Width +: Width] of line a % Lines. Behind the memory stands a plain
// register, which a block RAM can take in, and behind that the choice, of Group at a time: data_o
// comes out of the last choice. Each choice takes a cycle of Wait; the cycles that are left the
// address waits.
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
  parameter int Rows  = 1,
  parameter int Wait  = 0,
  localparam int AddrWidth = Depth > 1 ? $clog2(Depth) : 1
) (
  input  logic                 clk_i,
  input  logic                 en_i,
  input  logic [AddrWidth-1:0] addr_i,
  output logic [Width-1:0]     data_o
);
  localparam int Group     = 16;  // words that one choice takes one of
  localparam int Choices   = Rows == 1 ? 0 : Rows <= Group ? 1 : 2;
  localparam int Front     = Wait > Choices ? Wait - Choices : 0;
  localparam int Lines     = Rows == 1 ? Depth : 1 << $clog2((Depth + Rows - 1) / Rows);
  localparam int LineWidth = Rows * Width;
  localparam int LineBits  = Lines > 1 ? $clog2(Lines) : 1;

`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Width < 1 || Depth < 1 || Style < 0 || Style > 2) begin : gen_check
    $error("mem_rom: Width and Depth must be at least 1 and Style one of 0, 1, 2");
  end
  if (Rows < 1 || Rows > Group * Group || Wait < Choices ||
      (Rows > 1 && (Lines < 2 || (Depth + Lines - 1) / Lines != Rows))) begin : gen_check_rows
    $error("mem_rom: 1 to 256 Rows of 2 words or more, full but the last; Wait has their choices");
  end
`endif

  logic [AddrWidth-1:0] addr;
  logic [LineBits-1:0]  line_addr;
  logic [LineWidth-1:0] line;

  if (Front > 0) begin : gen_front
    logic [Front*AddrWidth-1:0]     front_q;
    logic [(Front+1)*AddrWidth-1:0] front;
    assign front = {front_q, addr_i};
    assign addr  = front[Front*AddrWidth +: AddrWidth];
    always_ff @(posedge clk_i) begin : p_front
      if (en_i) front_q <= front[0 +: Front*AddrWidth];
    end
  end else begin : gen_no_front
    assign addr = addr_i;
  end
  assign line_addr = addr[LineBits-1:0];

  if (Style == 1) begin : gen_block
    (* `MEM_ROM_BLOCK *) logic [LineWidth-1:0] mem [0:Lines-1];
    if (File != "") begin : gen_init
      initial $readmemh(File, mem);
    end else begin : gen_zero
      initial for (int i = 0; i < Lines; i++) mem[i] = '0;
    end
    always_ff @(posedge clk_i) begin : p_read
      if (en_i) line <= mem[line_addr];
    end
  end else if (Style == 2) begin : gen_lut
    (* `MEM_ROM_LUT *) logic [LineWidth-1:0] mem [0:Lines-1];
    if (File != "") begin : gen_init
      initial $readmemh(File, mem);
    end else begin : gen_zero
      initial for (int i = 0; i < Lines; i++) mem[i] = '0;
    end
    if (AddrReg) begin : gen_address
      // A wide word has a register for each part of some 256 tables of 16 words (512 where it has
      // 32 words), which synthesis keeps: wires to thousands of them are slower than what follows,
      // and logic that deep tables share is more than a tree of multiplexers for each.
      localparam int Part = Lines <= 32 ? 256 : Lines < 4096 ? 4096 / Lines : 1;
      for (genvar p = 0; p < (LineWidth + Part - 1) / Part; p++) begin : gen_part
        localparam int From = p * Part;
        localparam int Bits = LineWidth - From < Part ? LineWidth - From : Part;
        logic [LineBits-1:0] addr_q;
        initial addr_q = '0;
        (* keep *)
        always @(posedge clk_i) begin : p_address
          if (en_i) addr_q <= line_addr;
        end
        assign line[From +: Bits] = mem[addr_q][From +: Bits];
      end
    end else begin : gen_choice
      always_ff @(posedge clk_i) begin : p_read
        if (en_i) line <= mem[line_addr];
      end
    end
  end else begin : gen_auto
    logic [LineWidth-1:0] mem [0:Lines-1];
    if (File != "") begin : gen_init
      initial $readmemh(File, mem);
    end else begin : gen_zero
      initial for (int i = 0; i < Lines; i++) mem[i] = '0;
    end
    always_ff @(posedge clk_i) begin : p_read
      if (en_i) line <= mem[line_addr];
    end
  end

  if (Rows > 1) begin : gen_rows
    localparam int RowBits = AddrWidth - LineBits;
    localparam int First   = RowBits < 4 ? RowBits : 4;
    localparam int Groups  = (Rows + Group - 1) / Group;
    logic [RowBits-1:0]      row1_q, row2_q;
    logic [LineWidth-1:0]    line_q;
    logic [Groups*Width-1:0] group;

    always_ff @(posedge clk_i) begin : p_line
      if (en_i) begin
        row1_q <= addr[AddrWidth-1:LineBits];
        row2_q <= row1_q;
        line_q <= line;
      end
    end

    for (genvar g = 0; g < Groups; g++) begin : gen_group
      localparam int From = g * Group;
      localparam int Size = Rows - From < Group ? Rows - From : Group;
      for (genvar b = 0; b < Width; b++) begin : gen_bit
        if (Size == 1) begin : gen_one
          assign group[g*Width + b] = line_q[From*Width + b];
        end else begin : gen_choice
          localparam int Index = $clog2(Size);
          logic [Size-1:0] column;
          for (genvar r = 0; r < Size; r++) begin : gen_row
            assign column[r] = line_q[(From + r)*Width + b];
          end
          assign group[g*Width + b] = column[row2_q[Index-1:0]];
        end
      end
    end

    if (Groups > 1) begin : gen_second
      logic [RowBits-First-1:0] row3_q;
      logic [Groups*Width-1:0]  group_q;
      always_ff @(posedge clk_i) begin : p_group
        if (en_i) begin
          row3_q  <= row2_q[RowBits-1:First];
          group_q <= group;
        end
      end
      for (genvar b = 0; b < Width; b++) begin : gen_bit
        logic [Groups-1:0] column;
        for (genvar g = 0; g < Groups; g++) begin : gen_row
          assign column[g] = group_q[g*Width + b];
        end
        assign data_o[b] = column[row3_q];
      end
    end else begin : gen_last
      assign data_o = group;
    end
  end else begin : gen_word
    assign data_o = line;
  end
endmodule
`undef MEM_ROM_BLOCK
`undef MEM_ROM_LUT
`default_nettype wire
