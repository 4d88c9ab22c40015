// SPDX-License-Identifier: Apache-2.0
// Sliding window over frames of Height x Cols pixels of Fold beats (already padded). For each
// output pixel (row by row) it gives the beats (group, kh, kw, fold within the group), the last
// fastest, a group being Fold/Groups beats of a pixel: Groups = 1 is the order of a matrix unit,
// Groups = Fold that of a depthwise one. Buffer: BufRows rows of Cols*Fold words, circular.
// KE = (KernelH-1)*DilationH + 1.
// Exact rule. Writer: accepts a beat a cycle while used < BufRows; used counts rows complete
// and not yet released. Reader: starts output row oh when ready_rows >= KE, then issues one
// beat a cycle; an issue in cycle t is on the output in t + 4. A row whose last beat is accepted
// in cycle t counts in both from t + 1. When the last beat of an output row is issued in cycle t,
// StrideH rows (for the last output row: all remaining rows of the frame) leave ready_rows from
// t + 1 and used from t + 2. Both counters may go below zero (rows released before they are
// written). BufRows >= KE is needed; KE + StrideH lets writer and reader run side by side.
`default_nettype none
module stream_window #(
  parameter int Height    = 4,
  parameter int Cols      = 4,
  parameter int Fold      = 1,
  parameter int Groups    = 1,
  parameter int DataWidth = 8,
  parameter int KernelH   = 3,
  parameter int KernelW   = 3,
  parameter int StrideH   = 1,
  parameter int StrideW   = 1,
  parameter int DilationH = 1,
  parameter int DilationW = 1,
  parameter int BufRows   = 4,
  parameter int RamStyle  = 0
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
  localparam int SpanH     = (KernelH - 1) * DilationH + 1;
  localparam int SpanW     = (KernelW - 1) * DilationW + 1;
  localparam int OutH      = (Height - SpanH) / StrideH + 1;
  localparam int Words     = BufRows * Cols * Fold;
  localparam int AddrWidth = Words > 1 ? $clog2(Words) : 1;
  localparam int LastDrop  = Height - (OutH - 1) * StrideH;

  if (Height < SpanH || Cols < SpanW || BufRows < SpanH) begin : gen_check_span
    $error("stream_window: the dilated kernel must fit into the frame and into BufRows");
  end
  if (Fold < 1 || DataWidth < 1 || KernelH < 1 || KernelW < 1 || StrideH < 1 || StrideW < 1
      || DilationH < 1 || DilationW < 1) begin : gen_check_size
    $error("stream_window: all sizes must be at least 1");
  end
  if (Groups < 1 || Fold % Groups != 0) begin : gen_check_groups
    $error("stream_window: Groups must divide Fold");
  end

  // Row counters: signed, wide enough for BufRows and for the largest drop below zero.
  localparam int MaxDrop    = LastDrop > StrideH ? LastDrop : StrideH;
  localparam int LevelWidth = $clog2(BufRows + MaxDrop + 1) + 1;

  logic signed [LevelWidth-1:0] used_q, ready_rows_q;
  logic                         row_written, can_write, skid_ready;
  logic                         wr_en;
  logic [AddrWidth-1:0]         wr_addr_q, rd_addr;
  logic                         rd_valid, rd_row_last, rd_frame_last;
  logic                         start_ok;

  assign can_write  = used_q < LevelWidth'(BufRows);
  assign start_ok   = ready_rows_q >= LevelWidth'(SpanH);
  assign in_ready_o = can_write;
  assign wr_en      = in_valid_i & can_write;

  // Writer.
  localparam int RowWords     = Cols * Fold;
  localparam int RowWordWidth = $clog2(RowWords + 1);
  logic [RowWordWidth-1:0] row_word_q;

  assign row_written = wr_en & (row_word_q == RowWordWidth'(RowWords - 1));

  always_ff @(posedge clk_i) begin : p_write
    if (!rst_ni) begin
      wr_addr_q  <= '0;
      row_word_q <= '0;
    end else if (wr_en) begin
      wr_addr_q  <= wr_addr_q == AddrWidth'(Words - 1) ? '0 : wr_addr_q + 1'b1;
      row_word_q <= row_written ? '0 : row_word_q + 1'b1;
    end
  end

  // Reader: address generator with its register, then RAM and output register.
  window_addr #(
    .Cols(Cols), .Fold(Fold), .Groups(Groups), .KernelH(KernelH), .KernelW(KernelW),
    .StrideH(StrideH), .StrideW(StrideW), .DilationH(DilationH), .DilationW(DilationW),
    .BufRows(BufRows), .OutH(OutH), .OutW((Cols - SpanW) / StrideW + 1), .LastDrop(LastDrop)
  ) i_addr (
    .clk_i, .rst_ni, .en_i(skid_ready), .start_ok_i(start_ok),
    .valid_o(rd_valid), .row_last_o(rd_row_last), .frame_last_o(rd_frame_last), .addr_o(rd_addr)
  );

  logic row_drop, frame_drop, row_drop_q, frame_drop_q;
  logic addr_valid_q, ram_valid_q, data_valid_q;
  logic [DataWidth-1:0] ram_data, data_q;

  assign row_drop   = skid_ready & rd_valid & rd_row_last;
  assign frame_drop = rd_frame_last;

  always_ff @(posedge clk_i) begin : p_valid
    if (!rst_ni) begin
      addr_valid_q <= 1'b0;
      ram_valid_q  <= 1'b0;
      data_valid_q <= 1'b0;
      row_drop_q   <= 1'b0;
    end else if (skid_ready) begin
      addr_valid_q <= rd_valid;
      ram_valid_q  <= addr_valid_q;
      data_valid_q <= ram_valid_q;
      row_drop_q   <= row_drop;
    end
  end

  always_ff @(posedge clk_i) begin : p_data
    if (skid_ready) begin
      data_q       <= ram_data;
      frame_drop_q <= frame_drop;
    end
  end

  mem_ram #(.Width(DataWidth), .Depth(Words), .Style(RamStyle)) i_ram (
    .clk_i,
    .wr_en_i(wr_en), .wr_addr_i(wr_addr_q), .wr_data_i(in_data_i),
    .rd_en_i(skid_ready & addr_valid_q), .rd_addr_i(rd_addr), .rd_data_o(ram_data)
  );

  // The reader's count drops at issue; the writer's only when the last word has been read.
  logic signed [LevelWidth-1:0] ready_delta, used_delta;

  always_comb begin : p_delta
    ready_delta = '0;
    used_delta  = '0;
    // The minus stays inside the cast: Yosys drops one in front of a cast constant.
    if (row_drop) ready_delta = frame_drop ? LevelWidth'(-LastDrop) : LevelWidth'(-StrideH);
    if (row_drop_q && skid_ready) begin
      used_delta = frame_drop_q ? LevelWidth'(-LastDrop) : LevelWidth'(-StrideH);
    end
  end

  always_ff @(posedge clk_i) begin : p_level
    if (!rst_ni) begin
      used_q       <= '0;
      ready_rows_q <= '0;
    end else begin
      used_q       <= used_q + used_delta + LevelWidth'(row_written);
      ready_rows_q <= ready_rows_q + ready_delta + LevelWidth'(row_written);
    end
  end

  stream_skid #(.Width(DataWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(data_valid_q), .in_ready_o(skid_ready), .in_data_i(data_q),
    .out_valid_o, .out_ready_i, .out_data_o
  );

`ifndef SYNTHESIS
  no_overrun: assert property (@(posedge clk_i) disable iff (!rst_ni)
    int'(used_q) <= BufRows && int'(ready_rows_q) <= int'(used_q));
  stream_check #(.Width(DataWidth)) i_check_in (
    .clk_i, .rst_ni, .valid_i(in_valid_i), .ready_i(in_ready_o), .data_i(in_data_i)
  );
`endif
endmodule
`default_nettype wire
