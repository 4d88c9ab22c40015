// SPDX-License-Identifier: Apache-2.0
// Read-address generator of stream_window: six nested counters (output row, output column, group,
// kh, kw, fold within the group) and word addresses modulo Words, kept by addition only. An output
// pixel begins only while start_ok_i is high; within it there is one address every enabled cycle.
// drop_o: words that no later pixel reads, valid with pixel_last_o.
`default_nettype none
module window_addr #(
  parameter int Height    = 4,
  parameter int Cols      = 4,
  parameter int Fold      = 1,
  parameter int Groups    = 1,
  parameter int KernelH   = 3,
  parameter int KernelW   = 3,
  parameter int StrideH   = 1,
  parameter int StrideW   = 1,
  parameter int DilationH = 1,
  parameter int DilationW = 1,
  parameter int Words     = 16,
  parameter int OutH      = 2,
  parameter int OutW      = 2,
  parameter int DropWidth = 8,
  localparam int AddrWidth = Words > 1 ? $clog2(Words) : 1
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic                 en_i,
  input  logic                 start_ok_i,
  output logic                 valid_o,
  output logic [AddrWidth-1:0] addr_o,
  output logic                 pixel_last_o,
  output logic [DropWidth-1:0] drop_o
);
  localparam int Part       = Fold / Groups;
  localparam int PartWidth  = $clog2(Part + 1);
  localparam int GroupWidth = $clog2(Groups + 1);
  localparam int KwWidth    = $clog2(KernelW + 1);
  localparam int KhWidth    = $clog2(KernelH + 1);
  localparam int OwWidth    = $clog2(OutW + 1);
  localparam int OhWidth    = $clog2(OutH + 1);

  // Words that leave the buffer behind a pixel, the last one of a row, the last one of a frame.
  localparam int PixelDrop = StrideW * Fold;
  localparam int RowDrop   = (StrideH * Cols - (OutW - 1) * StrideW) * Fold;
  localparam int FrameDrop = (Height * Cols - (OutH - 1) * StrideH * Cols - (OutW - 1) * StrideW)
                             * Fold;

  // Steps of the address: to the next column and to the next row of the kernel.
  localparam int KwStep = DilationW * Fold - (Part - 1);
  localparam int KhStep = (DilationH * Cols - (KernelW - 1) * DilationW) * Fold - (Part - 1);

  logic [PartWidth-1:0]  part_q;
  logic [KwWidth-1:0]    kw_q;
  logic [KhWidth-1:0]    kh_q;
  logic [GroupWidth-1:0] group_q;
  logic [OwWidth-1:0]    ow_q;
  logic [OhWidth-1:0]    oh_q;
  logic                  running_q;
  logic part_last, kw_last, kh_last, group_last, ow_last, oh_last, line_last, plane_last;
  logic row_last, step;

  assign part_last    = part_q == PartWidth'(Part - 1);
  assign kw_last      = kw_q == KwWidth'(KernelW - 1);
  assign kh_last      = kh_q == KhWidth'(KernelH - 1);
  assign group_last   = group_q == GroupWidth'(Groups - 1);
  assign ow_last      = ow_q == OwWidth'(OutW - 1);
  assign oh_last      = oh_q == OhWidth'(OutH - 1);
  assign line_last    = part_last & kw_last;
  assign plane_last   = line_last & kh_last;
  assign pixel_last_o = plane_last & group_last;
  assign row_last     = pixel_last_o & ow_last;
  assign valid_o      = running_q | start_ok_i;
  assign step         = en_i & valid_o;

  always_ff @(posedge clk_i) begin : p_count
    if (!rst_ni) begin
      part_q    <= '0;
      kw_q      <= '0;
      kh_q      <= '0;
      group_q   <= '0;
      ow_q      <= '0;
      oh_q      <= '0;
      running_q <= 1'b0;
    end else if (step) begin
      running_q <= ~pixel_last_o;
      part_q    <= part_last ? '0 : part_q + 1'b1;
      if (part_last) kw_q <= kw_last ? '0 : kw_q + 1'b1;
      if (line_last) kh_q <= kh_last ? '0 : kh_q + 1'b1;
      if (plane_last) group_q <= group_last ? '0 : group_q + 1'b1;
      if (pixel_last_o) ow_q <= ow_last ? '0 : ow_q + 1'b1;
      if (row_last) oh_q <= oh_last ? '0 : oh_q + 1'b1;
    end
  end

  always_comb begin : p_drop
    drop_o = DropWidth'(PixelDrop);
    if (ow_last) drop_o = oh_last ? DropWidth'(FrameDrop) : DropWidth'(RowDrop);
  end

  // Three addresses: of the pixel's first word, of the group's, of the beat. Each moves by one of
  // a few constants, reduced modulo Words before: one addition, or one subtraction where it wraps.
  logic [AddrWidth-1:0] pixel_q, plane_q, addr_q;
  logic [AddrWidth-1:0] pixel_step, pixel_back, pixel_next, plane_next, addr_step, addr_back;
  logic                 pixel_wraps, plane_wraps, addr_wraps;

  // The two forms of a step; a step of zero must not wrap, so its way back is never taken.
  always_comb begin : p_pixel_step
    pixel_step = AddrWidth'(PixelDrop % Words);
    pixel_back = AddrWidth'(Words - PixelDrop % Words);
    if (row_last) begin
      pixel_step = oh_last ? AddrWidth'(FrameDrop % Words) : AddrWidth'(RowDrop % Words);
      pixel_back = oh_last ? AddrWidth'(Words - FrameDrop % Words)
                           : AddrWidth'(Words - RowDrop % Words);
    end
  end

  always_comb begin : p_addr_step
    addr_step = AddrWidth'(1 % Words);
    addr_back = AddrWidth'(Words - 1 % Words);
    if (line_last) begin
      addr_step = AddrWidth'(KhStep % Words);
      addr_back = AddrWidth'(Words - KhStep % Words);
    end else if (part_last) begin
      addr_step = AddrWidth'(KwStep % Words);
      addr_back = AddrWidth'(Words - KwStep % Words);
    end
  end

  assign pixel_wraps = pixel_step != '0 && pixel_q >= pixel_back;
  assign pixel_next  = pixel_wraps ? pixel_q - pixel_back : pixel_q + pixel_step;
  assign plane_wraps = Part % Words != 0 && plane_q >= AddrWidth'(Words - Part % Words);
  assign plane_next  = plane_wraps ? plane_q - AddrWidth'(Words - Part % Words)
                                   : plane_q + AddrWidth'(Part % Words);
  assign addr_wraps  = addr_step != '0 && addr_q >= addr_back;
  assign addr_o      = addr_q;

  always_ff @(posedge clk_i) begin : p_addr
    if (!rst_ni) begin
      pixel_q <= '0;
      plane_q <= '0;
      addr_q  <= '0;
    end else if (step) begin
      if (pixel_last_o) begin
        pixel_q <= pixel_next;
        plane_q <= pixel_next;
        addr_q  <= pixel_next;
      end else if (plane_last) begin
        plane_q <= plane_next;
        addr_q  <= plane_next;
      end else begin
        addr_q  <= addr_wraps ? addr_q - addr_back : addr_q + addr_step;
      end
    end
  end
endmodule
`default_nettype wire
