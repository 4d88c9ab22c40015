// SPDX-License-Identifier: Apache-2.0
// Weight memory of the engine: Rows rows of Lanes words of Lanes bytes, read by the row with
// latency 3, written word by word (word in the row lowest in the address) or, with diagonal_i 1 or
// 2, as a whole row: bank b gets those of the word's lanes of 8 (1) or 4 (2) bits whose number mod
// Lanes is b, the rest is 0. What the banks do stands in registers of every bank first.
`default_nettype none
module engine_weights #(
  parameter int Lanes = 8,
  parameter int Rows  = 1024,
  localparam int Width     = 8 * Lanes,
  localparam int BankWidth = $clog2(Lanes),
  localparam int RowWidth  = $clog2(Rows),
  localparam int AddrWidth = $clog2(Lanes * Rows)
) (
  input  logic                   clk_i,
  input  logic                   write_i,
  input  logic [1:0]             diagonal_i,
  input  logic [AddrWidth-1:0]   write_addr_i,
  input  logic [Width-1:0]       write_data_i,
  input  logic                   read_i,
  input  logic [RowWidth-1:0]    row_i,
  output logic [Lanes*Width-1:0] words_o
);
  for (genvar b = 0; b < Lanes; b++) begin : gen_bank
    logic [Width-1:0]    mask, word, data;
    logic                here, wr_en, rd_en;
    logic [RowWidth-1:0] wr_row, rd_row;

    always_comb begin : p_mask
      mask = '1;
      for (int n = 0; n < 2 * Lanes; n++) begin
        if (diagonal_i == 2'd1) mask[4*n +: 4] = n / 2 == b ? 4'hf : 4'h0;
        if (diagonal_i == 2'd2) mask[4*n +: 4] = n % Lanes == b ? 4'hf : 4'h0;
      end
    end

    assign here = write_i && (diagonal_i != '0 || write_addr_i[BankWidth-1:0] == BankWidth'(b));
    engine_own #(.Width(2 * RowWidth + 2)) i_own (
      .clk_i, .data_i({here, write_addr_i[AddrWidth-1 -: RowWidth], read_i, row_i}),
      .data_o({wr_en, wr_row, rd_en, rd_row})
    );
    engine_delay #(.Width(Width), .Cycles(1)) i_data (
      .clk_i, .data_i(write_data_i & mask), .data_o(data)
    );
    mem_ram #(.Width(Width), .Depth(Rows), .Style(1)) i_ram (
      .clk_i, .wr_en_i(wr_en), .wr_addr_i(wr_row), .wr_data_i(data), .rd_en_i(rd_en),
      .rd_addr_i(rd_row), .rd_data_o(word)
    );

    always_ff @(posedge clk_i) begin : p_word
      words_o[b*Width +: Width] <= word;
    end
  end
endmodule
`default_nettype wire
