// SPDX-License-Identifier: Apache-2.0
// Read-address generator of stream_window: five nested counters (output row, output column, kh,
// kw, fold) and the addresses kept beside them by addition only. An output row begins only
// while start_ok_i is high; within the row there is one address every enabled cycle.
`default_nettype none
module window_addr #(
  parameter int Cols      = 4,
  parameter int Fold      = 1,
  parameter int KernelH   = 3,
  parameter int KernelW   = 3,
  parameter int StrideH   = 1,
  parameter int StrideW   = 1,
  parameter int DilationH = 1,
  parameter int DilationW = 1,
  parameter int BufRows   = 4,
  parameter int OutH      = 2,
  parameter int OutW      = 2,
  parameter int LastDrop  = 3,
  localparam int Words     = BufRows * Cols * Fold,
  localparam int AddrWidth = Words > 1 ? $clog2(Words) : 1
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic                 en_i,
  input  logic                 start_ok_i,
  output logic                 valid_o,
  output logic [AddrWidth-1:0] addr_o,
  output logic                 row_last_o,
  output logic                 frame_last_o
);
  localparam int RowWords  = Cols * Fold;
  localparam int SlotWidth = $clog2(BufRows + 1);
  localparam int FoldWidth = $clog2(Fold + 1);
  localparam int KwWidth   = $clog2(KernelW + 1);
  localparam int KhWidth   = $clog2(KernelH + 1);
  localparam int OwWidth   = $clog2(OutW + 1);
  localparam int OhWidth   = $clog2(OutH + 1);

  // Steps of the row slot modulo BufRows: between kernel rows, output rows and frames.
  localparam int KhStep    = DilationH % BufRows;
  localparam int RowStep   = StrideH % BufRows;
  localparam int FrameStep = LastDrop % BufRows;

  logic [FoldWidth-1:0] fold_q;
  logic [KwWidth-1:0]   kw_q;
  logic [KhWidth-1:0]   kh_q;
  logic [OwWidth-1:0]   ow_q;
  logic [OhWidth-1:0]   oh_q;
  logic                 running_q;
  logic fold_last, kw_last, kh_last, ow_last, oh_last, line_last, pixel_last, step;

  assign fold_last    = fold_q == FoldWidth'(Fold - 1);
  assign kw_last      = kw_q == KwWidth'(KernelW - 1);
  assign kh_last      = kh_q == KhWidth'(KernelH - 1);
  assign ow_last      = ow_q == OwWidth'(OutW - 1);
  assign oh_last      = oh_q == OhWidth'(OutH - 1);
  assign line_last    = fold_last & kw_last;
  assign pixel_last   = line_last & kh_last;
  assign row_last_o   = pixel_last & ow_last;
  assign frame_last_o = oh_last;
  assign valid_o      = running_q | start_ok_i;
  assign step         = en_i & valid_o;

  always_ff @(posedge clk_i) begin : p_count
    if (!rst_ni) begin
      fold_q    <= '0;
      kw_q      <= '0;
      kh_q      <= '0;
      ow_q      <= '0;
      oh_q      <= '0;
      running_q <= 1'b0;
    end else if (step) begin
      running_q <= ~row_last_o;
      fold_q    <= fold_last ? '0 : fold_q + 1'b1;
      if (fold_last) kw_q <= kw_last ? '0 : kw_q + 1'b1;
      if (line_last) kh_q <= kh_last ? '0 : kh_q + 1'b1;
      if (pixel_last) ow_q <= ow_last ? '0 : ow_q + 1'b1;
      if (row_last_o) oh_q <= oh_last ? '0 : oh_q + 1'b1;
    end
  end

  // Word offset within a row: of the beat, and of the window's first column.
  logic [AddrWidth-1:0] offset_q, first_q, next_first;

  assign next_first = ow_last ? '0 : first_q + AddrWidth'(StrideW * Fold);

  always_ff @(posedge clk_i) begin : p_offset
    if (!rst_ni) begin
      offset_q <= '0;
      first_q  <= '0;
    end else if (step) begin
      if (pixel_last) begin
        first_q  <= next_first;
        offset_q <= next_first;
      end else if (line_last) begin
        offset_q <= first_q;
      end else if (fold_last) begin
        offset_q <= offset_q + AddrWidth'((DilationW - 1) * Fold + 1);
      end else begin
        offset_q <= offset_q + 1'b1;
      end
    end
  end

  // Row slot of the beat and of the window's first row, each also as a word address.
  logic [SlotWidth-1:0] slot_q, base_q, next_slot, next_base;
  logic [AddrWidth-1:0] slot_addr_q, base_addr_q, next_slot_addr, next_base_addr;
  logic                 slot_wraps, base_wraps, frame_wraps;

  assign slot_wraps     = slot_q >= SlotWidth'(BufRows - KhStep);
  assign next_slot      = slot_wraps ? slot_q - SlotWidth'(BufRows - KhStep)
                                     : slot_q + SlotWidth'(KhStep);
  assign next_slot_addr = slot_wraps ? slot_addr_q - AddrWidth'((BufRows - KhStep) * RowWords)
                                     : slot_addr_q + AddrWidth'(KhStep * RowWords);
  assign base_wraps     = base_q >= SlotWidth'(BufRows - RowStep);
  assign frame_wraps    = base_q >= SlotWidth'(BufRows - FrameStep);

  always_comb begin : p_next_base
    next_base      = base_q;
    next_base_addr = base_addr_q;
    if (row_last_o && oh_last) begin
      next_base      = frame_wraps ? base_q - SlotWidth'(BufRows - FrameStep)
                                   : base_q + SlotWidth'(FrameStep);
      next_base_addr = frame_wraps ? base_addr_q - AddrWidth'((BufRows - FrameStep) * RowWords)
                                   : base_addr_q + AddrWidth'(FrameStep * RowWords);
    end else if (row_last_o) begin
      next_base      = base_wraps ? base_q - SlotWidth'(BufRows - RowStep)
                                  : base_q + SlotWidth'(RowStep);
      next_base_addr = base_wraps ? base_addr_q - AddrWidth'((BufRows - RowStep) * RowWords)
                                  : base_addr_q + AddrWidth'(RowStep * RowWords);
    end
  end

  always_ff @(posedge clk_i) begin : p_slot
    if (!rst_ni) begin
      slot_q      <= '0;
      slot_addr_q <= '0;
      base_q      <= '0;
      base_addr_q <= '0;
    end else if (step) begin
      base_q      <= next_base;
      base_addr_q <= next_base_addr;
      if (pixel_last) begin
        slot_q      <= next_base;
        slot_addr_q <= next_base_addr;
      end else if (line_last) begin
        slot_q      <= next_slot;
        slot_addr_q <= next_slot_addr;
      end
    end
  end

  assign addr_o = slot_addr_q + offset_q;
endmodule
`default_nettype wire
