// SPDX-License-Identifier: Apache-2.0
// mem_ram and the register behind it: the word of rd_addr_i is read with rd_en_i, and is on
// rd_data_o after the next clock edge with out_en_i high (latency 2 where both stay high). The
// user never reads an address in the cycle in which it is written.
// Lines > 0: a memory of more words is made of rows of so many, the last one of what is left. All
// rows are read, and what chooses one of them stands behind a register: of LUT RAM between the
// two, of block RAM behind both, as a block RAM takes the second one in, which hides most of its
// clock-to-output time. A deep memory that synthesis divides has the choice before any register.
`default_nettype none
module mem_rows #(
  parameter int Width = 8,
  parameter int Depth = 16,
  parameter int Style = 0,
  parameter int Lines = 0,
  localparam int AddrWidth = Depth > 1 ? $clog2(Depth) : 1
) (
  input  logic                 clk_i,
  input  logic                 wr_en_i,
  input  logic [AddrWidth-1:0] wr_addr_i,
  input  logic [Width-1:0]     wr_data_i,
  input  logic                 rd_en_i,
  input  logic [AddrWidth-1:0] rd_addr_i,
  input  logic                 out_en_i,
  output logic [Width-1:0]     rd_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Lines != 0 && (Lines < 2 || (Lines & (Lines - 1)) != 0)) begin : gen_check
    $error("mem_rows: Lines must be 0 or a power of two from 2 on");
  end
`endif

  if (Lines == 0 || Lines >= Depth) begin : gen_whole
    logic [Width-1:0] word;

    mem_ram #(.Width(Width), .Depth(Depth), .Style(Style)) i_ram (
      .clk_i, .wr_en_i, .wr_addr_i, .wr_data_i, .rd_en_i, .rd_addr_i, .rd_data_o(word)
    );
    always_ff @(posedge clk_i) begin : p_out
      if (out_en_i) rd_data_o <= word;
    end
  end else begin : gen_rows
    localparam int Rows     = (Depth + Lines - 1) / Lines;
    localparam int LineBits = $clog2(Lines);
    localparam int RowBits  = AddrWidth - LineBits;

    logic [RowBits-1:0]    wr_row, row_q, row;
    logic [Rows*Width-1:0] words, from;
    logic [Width-1:0]      chosen;

    assign wr_row = wr_addr_i[AddrWidth-1:LineBits];

    for (genvar r = 0; r < Rows; r++) begin : gen_row
      localparam int Own  = r < Rows - 1 ? Lines : Depth - r * Lines;
      localparam int Bits = Own > 1 ? $clog2(Own) : 1;
      mem_ram #(.Width(Width), .Depth(Own), .Style(Style), .Row(1'b1)) i_ram (
        .clk_i, .wr_en_i(wr_en_i & (wr_row == RowBits'(r))),
        .wr_addr_i(wr_addr_i[Bits-1:0]), .wr_data_i,
        .rd_en_i, .rd_addr_i(rd_addr_i[Bits-1:0]), .rd_data_o(words[r*Width +: Width])
      );
    end

    always_ff @(posedge clk_i) begin : p_row
      if (rd_en_i) row_q <= rd_addr_i[AddrWidth-1:LineBits];
    end

    for (genvar b = 0; b < Width; b++) begin : gen_bit
      logic [Rows-1:0] column;
      for (genvar r = 0; r < Rows; r++) begin : gen_column
        assign column[r] = from[r*Width + b];
      end
      assign chosen[b] = column[row];
    end

    if (Style == 2) begin : gen_lut
      assign from = words;
      assign row  = row_q;
      always_ff @(posedge clk_i) begin : p_out
        if (out_en_i) rd_data_o <= chosen;
      end
    end else begin : gen_block
      logic [RowBits-1:0]    row2_q;
      logic [Rows*Width-1:0] words_q;
      assign from      = words_q;
      assign row       = row2_q;
      assign rd_data_o = chosen;
      always_ff @(posedge clk_i) begin : p_out
        if (out_en_i) {row2_q, words_q} <= {row_q, words};
      end
    end

`ifdef BITWRIGHT_CHECKS
    mem_check #(.AddrWidth(AddrWidth)) i_check (
      .clk_i, .wr_en_i, .wr_addr_i, .rd_en_i, .rd_addr_i
    );
`endif
  end
endmodule
`default_nettype wire
