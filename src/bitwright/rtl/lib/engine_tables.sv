// SPDX-License-Identifier: Apache-2.0
// Lookup tables of the engine: Tables tables of 256 bytes, in words of Tables bytes, with as many
// read ports as there are Readers, each a copy. Every reader looks up its byte in the same table:
// table and bytes in cycle t, results in t + 2.
`default_nettype none
module engine_tables #(
  parameter int Readers = 4,
  parameter int Tables  = 8,
  localparam int Width      = 8 * Tables,
  localparam int TableWidth = $clog2(Tables)
) (
  input  logic                  clk_i,
  input  logic                  write_i,
  input  logic [7:0]            write_addr_i,
  input  logic [Width-1:0]      write_data_i,
  input  logic                  read_i,
  input  logic [TableWidth-1:0] table_i,
  input  logic [Readers*8-1:0]  bytes_i,
  output logic [Readers*8-1:0]  bytes_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Tables < 2 || Tables > 128 || (Tables & (Tables - 1)) != 0) begin : gen_check
    $error("engine_tables: Tables must be a power of two from 2 to 128");
  end
`endif

  for (genvar n = 0; n < Readers; n++) begin : gen_reader
    logic [Width-1:0]      word;
    logic [TableWidth-1:0] place_q;

    // Byte 256 * table + b is byte b mod Tables of word (256 * table + b) / Tables.
    mem_ram #(.Width(Width), .Depth(256), .Style(1)) i_ram (
      .clk_i, .wr_en_i(write_i), .wr_addr_i(write_addr_i), .wr_data_i(write_data_i),
      .rd_en_i(read_i), .rd_addr_i({table_i, bytes_i[n*8+TableWidth +: 8-TableWidth]}),
      .rd_data_o(word)
    );

    always_ff @(posedge clk_i) begin : p_byte
      place_q             <= bytes_i[n*8 +: TableWidth];
      bytes_o[n*8 +: 8] <= word[int'(place_q)*8 +: 8];
    end
  end
endmodule
`default_nettype wire
