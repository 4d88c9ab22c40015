// SPDX-License-Identifier: Apache-2.0
// Parameter memory of the engine: Rows rows of 512 bits, written word by word (linear address: word
// in the row lowest), read by the row. A row is one channel's thresholds, or the 64-bit records of
// 8 channels, of which slot_i chooses. Row and slot in cycle t, both results in t + 3; the flip of
// the thresholds in t + 2. What is read stands in registers of every word's memory first.
`default_nettype none
module engine_parameters #(
  parameter int Rows  = 512,
  parameter int Width = 64,
  localparam int Words     = 512 / Width,
  localparam int RowWidth  = $clog2(Rows),
  localparam int AddrWidth = $clog2(Rows * Words)
) (
  input  logic                 clk_i,
  input  logic                 write_i,
  input  logic [AddrWidth-1:0] write_addr_i,
  input  logic [Width-1:0]     write_data_i,
  input  logic                 read_i,
  input  logic [RowWidth-1:0]  row_i,
  input  logic [2:0]           slot_i,
  output logic                 flip_o,
  output logic [511:0]         row_o,
  output logic [127:0]         records_o  // the one of the slot, and its neighbour (slot | 1)
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Words * Width != 512 || Words < 2) begin : gen_check
    $error("engine_parameters: Width must divide 512, and be less");
  end
`endif
  localparam int WordWidth = $clog2(Words);

  logic [511:0] row;
  logic [2:0]   slot_q, slot_late_q, next;

  for (genvar w = 0; w < Words; w++) begin : gen_word
    logic                rd_en;
    logic [RowWidth-1:0] rd_row;
    engine_own #(.Width(RowWidth + 1)) i_own (
      .clk_i, .data_i({read_i, row_i}), .data_o({rd_en, rd_row})
    );
    mem_ram #(.Width(Width), .Depth(Rows), .Style(1)) i_ram (
      .clk_i,
      .wr_en_i(write_i && write_addr_i[WordWidth-1:0] == WordWidth'(w)),
      .wr_addr_i(write_addr_i[AddrWidth-1 -: RowWidth]), .wr_data_i(write_data_i),
      .rd_en_i(rd_en), .rd_addr_i(rd_row), .rd_data_o(row[w*Width +: Width])
    );
  end

  assign next   = slot_late_q | 3'd1;
  assign flip_o = row[480];

  always_ff @(posedge clk_i) begin : p_slot
    slot_q      <= slot_i;
    slot_late_q <= slot_q;
    row_o       <= row;
    records_o <= {row[int'(next)*64 +: 64], row[int'(slot_late_q)*64 +: 64]};
  end
endmodule
`default_nettype wire
