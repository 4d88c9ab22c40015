// SPDX-License-Identifier: Apache-2.0
// Feature memory of the engine: Banks banks (a power of two) of Depth words of 8 * Lanes bits; the
// word at address a lies in bank a mod Banks, row a / Banks.
// Port a reads a word of every bank in a cycle, at a row of each bank's own. Port b does one of: in
// a cycle with x_valid_i write a word of every bank of x_banks_i, byte by byte as x_strobes_i
// says; else read the word at s_addr_i (s_valid_i) or write the one at l_addr_i (l_valid_i). What
// port b does stands in registers first, what both do in registers of every lane, and behind the
// memory stand registers for both: latency of a is 3, of s 4, and a word that is written in cycle t
// can be read at port a from t + 2 on.
`default_nettype none
module engine_features #(
  parameter int Banks = 4,
  parameter int Lanes = 8,
  parameter int Depth = 1024,
  localparam int Width     = 8 * Lanes,
  localparam int RowWidth  = $clog2(Depth),
  localparam int BankWidth = Banks > 1 ? $clog2(Banks) : 1,
  localparam int AddrWidth = $clog2(Banks * Depth)
) (
  input  logic                      clk_i,
  input  logic [Banks-1:0]          a_en_i,
  input  logic [Banks*RowWidth-1:0] a_rows_i,
  output logic [Banks*Width-1:0]    a_data_o,
  input  logic                      x_valid_i,
  input  logic [Banks-1:0]          x_banks_i,
  input  logic [Banks*RowWidth-1:0] x_rows_i,
  input  logic [Lanes-1:0]          x_strobes_i,
  input  logic [Banks*Width-1:0]    x_data_i,
  input  logic                      s_valid_i,
  input  logic [AddrWidth-1:0]      s_addr_i,
  output logic [Width-1:0]          s_data_o,
  input  logic                      l_valid_i,
  input  logic [AddrWidth-1:0]      l_addr_i,
  input  logic [Width-1:0]          l_data_i
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Banks < 1 || (Banks & (Banks - 1)) != 0 || Depth < 2) begin : gen_check
    $error("engine_features: Banks must be a power of two and Depth at least 2");
  end
`endif

  logic [Banks*Width-1:0] a_data, b_data, b_data_q;
  logic [BankWidth-1:0]   s_bank, l_bank, s_bank_late;

  if (Banks > 1) begin : gen_bank_number
    assign s_bank = s_addr_i[BankWidth-1:0];
    assign l_bank = l_addr_i[BankWidth-1:0];
  end else begin : gen_one_bank
    assign s_bank = '0;
    assign l_bank = '0;
  end

  engine_delay #(.Width(BankWidth), .Cycles(4)) i_bank (
    .clk_i, .data_i(s_bank), .data_o(s_bank_late)
  );
  assign s_data_o = b_data_q[int'(s_bank_late)*Width +: Width];

  // Those of the block RAMs themselves, where a family has them.
  always_ff @(posedge clk_i) begin : p_data
    a_data_o <= a_data;
    b_data_q <= b_data;
  end

  for (genvar b = 0; b < Banks; b++) begin : gen_bank
    logic                s_here, l_here, read_q;
    logic [RowWidth-1:0] row_q;
    logic [Lanes-1:0]    write_q;
    logic [Width-1:0]    data_q;
    assign s_here = !x_valid_i && s_valid_i && s_bank == BankWidth'(b);
    assign l_here = !x_valid_i && l_valid_i && l_bank == BankWidth'(b);

    always_ff @(posedge clk_i) begin : p_port
      read_q  <= s_here;
      write_q <= l_here ? '1 : x_strobes_i & {Lanes{x_valid_i && x_banks_i[b]}};
      row_q   <= x_valid_i ? x_rows_i[b*RowWidth +: RowWidth]
               : s_valid_i ? s_addr_i[AddrWidth-1 -: RowWidth]
               : l_addr_i[AddrWidth-1 -: RowWidth];
      data_q  <= x_valid_i ? x_data_i[b*Width +: Width] : l_data_i;
    end

    for (genvar n = 0; n < Lanes; n++) begin : gen_lane
      logic                a_en, b_en, b_write;
      logic [RowWidth-1:0] a_row, b_row;
      logic [7:0]          b_byte;
      engine_own #(.Width(2 * RowWidth + 3)) i_own (
        .clk_i,
        .data_i({a_en_i[b], a_rows_i[b*RowWidth +: RowWidth], read_q || write_q[n], !read_q,
                 row_q}),
        .data_o({a_en, a_row, b_en, b_write, b_row})
      );
      engine_delay #(.Width(8), .Cycles(1)) i_byte (
        .clk_i, .data_i(data_q[n*8 +: 8]), .data_o(b_byte)
      );
      mem_dual #(.Width(8), .Depth(Depth)) i_column (
        .clk_i,
        .a_en_i(a_en), .a_addr_i(a_row), .a_data_o(a_data[b*Width+n*8 +: 8]),
        .b_en_i(b_en), .b_write_i(b_write), .b_addr_i(b_row), .b_data_i(b_byte),
        .b_data_o(b_data[b*Width+n*8 +: 8])
      );
    end
  end

`ifdef BITWRIGHT_CHECKS
  one_user: assert property (@(posedge clk_i) !(s_valid_i && l_valid_i && !x_valid_i));
  in_slot: assert property (@(posedge clk_i) !(x_valid_i && (s_valid_i || l_valid_i)));
`endif
endmodule
`default_nettype wire
