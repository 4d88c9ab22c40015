// SPDX-License-Identifier: Apache-2.0
// Sliding window over frames of Height x Cols pixels of Fold beats (already padded). For each
// output pixel (row by row) it gives the beats (group, kh, kw, fold within the group), Fold/Groups
// beats a group. Circular buffer of BufPixels*Fold words, written in order.
// SpanH = (KernelH-1)*DilationH + 1, SpanW likewise; Span = ((SpanH-1)*Cols + SpanW) * Fold words
// reach from the first word of an output pixel's window to behind its last.
// Exact rule. Writer: accepts a beat a cycle while used < BufPixels*Fold. Reader: starts an output
// pixel when ready >= Span, then issues one beat a cycle; an issue in cycle t is on the output in
// t + 4. A beat accepted in cycle t counts in both from t + 1. When the last beat of an output
// pixel is issued in cycle t, the words in front of the next one's window (after the last pixel:
// all that is left of the frame) leave ready from t + 1 and used from t + 2. Both may go below
// zero (words released before they are written). BufPixels*Fold >= Span is needed; some pixels
// more let writer and reader run side by side within a row, (StrideH-1)*Cols more across rows.
// RamStyle and RamLines: Style and Lines of `mem_rows`.
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
  parameter int BufPixels = 16,
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
  localparam int SpanH     = (KernelH - 1) * DilationH + 1;
  localparam int SpanW     = (KernelW - 1) * DilationW + 1;
  localparam int OutH      = (Height - SpanH) / StrideH + 1;
  localparam int OutW      = (Cols - SpanW) / StrideW + 1;
  localparam int Words     = BufPixels * Fold;
  localparam int Span      = ((SpanH - 1) * Cols + SpanW) * Fold;
  localparam int AddrWidth = Words > 1 ? $clog2(Words) : 1;
  // Most words that leave at once: behind a pixel, the last one of a row, that of the frame.
  localparam int PixelDrop = StrideW * Fold;
  localparam int RowDrop   = (StrideH * Cols - (OutW - 1) * StrideW) * Fold;
  localparam int FrameDrop = ((Height - (OutH - 1) * StrideH) * Cols - (OutW - 1) * StrideW) * Fold;
  localparam int EndDrop   = FrameDrop > RowDrop ? FrameDrop : RowDrop;
  localparam int MaxDrop   = PixelDrop > EndDrop ? PixelDrop : EndDrop;

`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Height < SpanH || Cols < SpanW || Words < Span) begin : gen_check_span
    $error("stream_window: the dilated kernel must fit into the frame and into BufPixels");
  end
  if (Fold < 1 || DataWidth < 1 || KernelH < 1 || KernelW < 1 || StrideH < 1 || StrideW < 1
      || DilationH < 1 || DilationW < 1) begin : gen_check_size
    $error("stream_window: all sizes must be at least 1");
  end
  if (Groups < 1 || Fold % Groups != 0) begin : gen_check_groups
    $error("stream_window: Groups must divide Fold");
  end
`endif

  // Word counters, kept as used - Words and ready - Span, so that their sign bits are the answers:
  // below zero there is room, from zero on a window. Wide enough for the largest drop below.
  localparam int DropWidth  = $clog2(MaxDrop + 1) + 1;  // and a sign
  localparam int LevelWidth = $clog2(Words + MaxDrop + 1) + 1;

  logic signed [LevelWidth-1:0] room_q, span_q;
  logic                         can_write, skid_ready, wr_en;
  logic [AddrWidth-1:0]         wr_addr_q, rd_addr;
  logic                         rd_valid, rd_pixel_last;
  logic signed [DropWidth-1:0]  rd_drop;
  logic                         start_ok;

  assign can_write  = room_q[LevelWidth-1];
  assign start_ok   = ~span_q[LevelWidth-1];
  assign in_ready_o = can_write;
  assign wr_en      = in_valid_i & can_write;

  // Writer.
  always_ff @(posedge clk_i) begin : p_write
    if (!rst_ni) begin
      wr_addr_q <= '0;
    end else if (wr_en) begin
      wr_addr_q <= wr_addr_q == AddrWidth'(Words - 1) ? '0 : wr_addr_q + 1'b1;
    end
  end

  // Reader: address generator with its register, then RAM and output register.
  window_addr #(
    .Height(Height), .Cols(Cols), .Fold(Fold), .Groups(Groups), .KernelH(KernelH),
    .KernelW(KernelW), .StrideH(StrideH), .StrideW(StrideW), .DilationH(DilationH),
    .DilationW(DilationW), .Words(Words), .OutH(OutH), .OutW(OutW), .DropWidth(DropWidth)
  ) i_addr (
    .clk_i, .rst_ni, .en_i(skid_ready), .start_ok_i(start_ok),
    .valid_o(rd_valid), .pixel_last_o(rd_pixel_last), .drop_o(rd_drop), .addr_o(rd_addr)
  );

  logic drop, drop_q;
  logic addr_valid_q, ram_valid_q, data_valid_q;
  logic signed [DropWidth-1:0] words_q;
  logic [DataWidth-1:0] data;

  assign drop = skid_ready & rd_valid & rd_pixel_last;

  always_ff @(posedge clk_i) begin : p_valid
    if (!rst_ni) begin
      addr_valid_q <= 1'b0;
      ram_valid_q  <= 1'b0;
      data_valid_q <= 1'b0;
      drop_q       <= 1'b0;
    end else if (skid_ready) begin
      addr_valid_q <= rd_valid;
      ram_valid_q  <= addr_valid_q;
      data_valid_q <= ram_valid_q;
      drop_q       <= drop;
    end
  end

  always_ff @(posedge clk_i) begin : p_words
    if (skid_ready) words_q <= rd_drop;
  end

  mem_rows #(.Width(DataWidth), .Depth(Words), .Style(RamStyle), .Lines(RamLines)) i_ram (
    .clk_i,
    .wr_en_i(wr_en), .wr_addr_i(wr_addr_q), .wr_data_i(in_data_i),
    .rd_en_i(skid_ready & addr_valid_q), .rd_addr_i(rd_addr),
    .out_en_i(skid_ready), .rd_data_o(data)
  );

  // The reader's count drops at issue; the writer's only when the last word has been read. A word
  // that is written is the carry into one adder.
  logic signed [LevelWidth-1:0] ready_drop, used_drop;
  logic [LevelWidth:0]          room, span;

  assign ready_drop = drop ? LevelWidth'(rd_drop) : '0;
  assign used_drop  = drop_q && skid_ready ? LevelWidth'(words_q) : '0;
  assign room       = {room_q, 1'b1} + {used_drop, wr_en};
  assign span       = {span_q, 1'b1} + {ready_drop, wr_en};
  logic unused;
  assign unused = &{1'b0, room[0], span[0]};

  always_ff @(posedge clk_i) begin : p_level
    if (!rst_ni) begin
      room_q <= LevelWidth'(-Words);
      span_q <= LevelWidth'(-Span);
    end else begin
      room_q <= room[LevelWidth:1];
      span_q <= span[LevelWidth:1];
    end
  end

  stream_skid #(.Width(DataWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(data_valid_q), .in_ready_o(skid_ready), .in_data_i(data),
    .out_valid_o, .out_ready_i, .out_data_o
  );

`ifdef BITWRIGHT_CHECKS
  no_overrun: assert property (@(posedge clk_i) disable iff (!rst_ni)
    int'(room_q) <= 0 && int'(span_q) + Span <= int'(room_q) + Words);
  stream_check #(.Width(DataWidth)) i_check_in (
    .clk_i, .rst_ni, .valid_i(in_valid_i), .ready_i(in_ready_o), .data_i(in_data_i)
  );
`endif
endmodule
`default_nettype wire
