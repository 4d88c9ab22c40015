// SPDX-License-Identifier: Apache-2.0
// Nearest neighbour: every pixel FactorH times in its row, every row FactorV times. Frames of Cols
// pixels a row, Fold beats a pixel. One output beat a cycle: FactorV*FactorH output beats for each
// input beat, no bubble. A beat is accepted when it is first needed (first copy of its row, first
// copy of its pixel) and is on the output 3 cycles later; copies come from a buffer of one row, or
// of one pixel for FactorV = 1; in_ready_o is low meanwhile. Output stalls stop the pipeline.
// RamStyle and RamLines: Style and Lines of `mem_rows`.
`default_nettype none
module stream_upsample #(
  parameter int Cols      = 4,
  parameter int Fold      = 1,
  parameter int DataWidth = 8,
  parameter int FactorV   = 2,
  parameter int FactorH   = 2,
  parameter int RamStyle  = 0,
  parameter int RamLines  = 0
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic                 in_valid_i,
  output logic                 in_ready_o,
  input  logic [DataWidth-1:0] in_data_i,
  output logic                 out_valid_o,
  input  logic                 out_ready_i,
  output logic [DataWidth-1:0] out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Cols < 1 || Fold < 1 || DataWidth < 1 || FactorV < 1 || FactorH < 1) begin : gen_check
    $error("stream_upsample: sizes must be at least 1");
  end
`endif

  localparam int Words     = FactorV > 1 ? Cols * Fold : Fold;
  localparam int AddrWidth = Words > 1 ? $clog2(Words) : 1;
  localparam int FoldWidth = $clog2(Fold + 1);
  localparam int HWidth    = $clog2(FactorH + 1);
  localparam int VWidth    = $clog2(FactorV + 1);

  logic [FoldWidth-1:0] fold_q;
  logic [HWidth-1:0]    copy_q;
  logic [VWidth-1:0]    row_copy_q;
  logic [AddrWidth-1:0] addr_q, base_q, next_addr;
  logic fresh_q, fold_last, pixel_last, row_last, rows_last, en, issue;

  // fresh_q: the step takes a beat, it is no copy.
  assign fold_last  = fold_q == FoldWidth'(Fold - 1);
  assign pixel_last = fold_last & (copy_q == HWidth'(FactorH - 1));
  assign rows_last  = row_copy_q == VWidth'(FactorV - 1);
  assign in_ready_o = en & fresh_q;
  assign issue      = en & (~fresh_q | in_valid_i);
  assign next_addr  = addr_q == AddrWidth'(Words - 1) ? '0 : addr_q + 1'b1;

  if (FactorV > 1) begin : gen_row
    assign row_last = pixel_last & (addr_q == AddrWidth'(Words - 1));
  end else begin : gen_pixel
    assign row_last = pixel_last;
  end

  // After the last fold of a pixel: back to its first one for a copy, else on to the next pixel.
  always_ff @(posedge clk_i) begin : p_step
    if (!rst_ni) begin
      fold_q     <= '0;
      copy_q     <= '0;
      row_copy_q <= '0;
      addr_q     <= '0;
      base_q     <= '0;
      fresh_q    <= 1'b1;
    end else if (issue) begin
      fold_q <= fold_last ? '0 : fold_q + 1'b1;
      addr_q <= fold_last && !pixel_last ? base_q : next_addr;
      if (fold_last) begin
        copy_q  <= pixel_last ? '0 : copy_q + 1'b1;
        fresh_q <= pixel_last & (row_last ? rows_last : row_copy_q == '0);
      end
      if (pixel_last) base_q <= next_addr;
      if (row_last) row_copy_q <= rows_last ? '0 : row_copy_q + 1'b1;
    end
  end

  // Behind the buffer a plain register: a block RAM has it inside.
  logic                 valid1_q, valid2_q, fresh1_q, fresh2_q;
  logic [DataWidth-1:0] data1_q, data2_q, copy2;

  always_ff @(posedge clk_i) begin : p_valid
    if (!rst_ni) {valid2_q, valid1_q} <= '0;
    else if (en) {valid2_q, valid1_q} <= {valid1_q, issue};
  end
  always_ff @(posedge clk_i) begin : p_data
    if (en) begin
      data1_q  <= in_data_i;
      data2_q  <= data1_q;
      fresh1_q <= fresh_q;
      fresh2_q <= fresh1_q;
    end
  end

  if (FactorV * FactorH > 1) begin : gen_buffer
    mem_rows #(.Width(DataWidth), .Depth(Words), .Style(RamStyle), .Lines(RamLines)) i_ram (
      .clk_i,
      .wr_en_i(issue & fresh_q), .wr_addr_i(addr_q), .wr_data_i(in_data_i),
      .rd_en_i(issue & ~fresh_q), .rd_addr_i(addr_q),
      .out_en_i(en), .rd_data_o(copy2)
    );
  end else begin : gen_none
    assign copy2 = data2_q;
    logic unused;
    assign unused = &{1'b0, addr_q};
  end

  stream_skid #(.Width(DataWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(valid2_q), .in_ready_o(en), .in_data_i(fresh2_q ? data2_q : copy2),
    .out_valid_o, .out_ready_i, .out_data_o
  );

`ifdef BITWRIGHT_CHECKS
  stream_check #(.Width(DataWidth)) i_check_in (
    .clk_i, .rst_ni, .valid_i(in_valid_i), .ready_i(in_ready_o), .data_i(in_data_i)
  );
`endif
endmodule
`default_nettype wire
