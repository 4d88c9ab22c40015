// SPDX-License-Identifier: Apache-2.0
// Read-address generator of stream_window: six nested counters (output row, output column, group,
// kh, kw, fold within the group) and one word address modulo Words. The way from one word to the
// next is a constant of the outermost counter that moves; it is chosen when a step issues and added
// in the (enabled) cycle after, so addr_o is the address of the step issued last. An output pixel
// begins only while start_ok_i is high; within it there is one step every enabled cycle.
// drop_o: words that no later pixel reads, less than zero, valid with pixel_last_o.
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
  output logic                 pixel_last_o,
  output logic [DropWidth-1:0] drop_o,
  output logic [AddrWidth-1:0] addr_o
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

  logic [PartWidth-1:0]  part_q;
  logic [KwWidth-1:0]    kw_q;
  logic [KhWidth-1:0]    kh_q;
  logic [GroupWidth-1:0] group_q;
  logic [OwWidth-1:0]    ow_q;
  logic [OhWidth-1:0]    oh_q;
  logic                  running_q;
  // Whether a counter stands at its last value: a register beside each.
  logic part_last_q, kw_last_q, kh_last_q, group_last_q, ow_last_q, oh_last_q;
  logic line_last, plane_last, row_last, step, ow_next, oh_next;
  logic [DropWidth-1:0] drop_q;

  assign line_last    = part_last_q & kw_last_q;
  assign plane_last   = line_last & kh_last_q;
  assign pixel_last_o = plane_last & group_last_q;
  assign row_last     = pixel_last_o & ow_last_q;
  assign valid_o      = running_q | start_ok_i;
  assign step         = en_i & valid_o;
  assign drop_o       = drop_q;
  // At the end of a pixel: whether the next one is the last of its row, and in the last row.
  assign ow_next      = OutW == 1 || ow_q == OwWidth'(OutW - 2);
  assign oh_next      = row_last ? OutH == 1 || oh_q == OhWidth'(OutH - 2) : oh_last_q;

  always_ff @(posedge clk_i) begin : p_count
    if (!rst_ni) begin
      part_q       <= '0;
      kw_q         <= '0;
      kh_q         <= '0;
      group_q      <= '0;
      ow_q         <= '0;
      oh_q         <= '0;
      running_q    <= 1'b0;
      part_last_q  <= Part == 1;
      kw_last_q    <= KernelW == 1;
      kh_last_q    <= KernelH == 1;
      group_last_q <= Groups == 1;
      ow_last_q    <= OutW == 1;
      oh_last_q    <= OutH == 1;
    end else if (step) begin
      running_q   <= ~pixel_last_o;
      part_q      <= part_last_q ? '0 : part_q + 1'b1;
      part_last_q <= Part == 1 || part_q == PartWidth'(Part - 2);
      if (part_last_q) begin
        kw_q      <= kw_last_q ? '0 : kw_q + 1'b1;
        kw_last_q <= KernelW == 1 || kw_q == KwWidth'(KernelW - 2);
      end
      if (line_last) begin
        kh_q      <= kh_last_q ? '0 : kh_q + 1'b1;
        kh_last_q <= KernelH == 1 || kh_q == KhWidth'(KernelH - 2);
      end
      if (plane_last) begin
        group_q      <= group_last_q ? '0 : group_q + 1'b1;
        group_last_q <= Groups == 1 || group_q == GroupWidth'(Groups - 2);
      end
      if (pixel_last_o) begin
        ow_q      <= ow_last_q ? '0 : ow_q + 1'b1;
        ow_last_q <= ow_next;
      end
      if (row_last) begin
        oh_q      <= oh_last_q ? '0 : oh_q + 1'b1;
        oh_last_q <= oh_next;
      end
    end
  end

  // The words that leave: chosen when the pixel before is through, so that a register goes into the
  // levels.
  always_ff @(posedge clk_i) begin : p_drop
    if (!rst_ni) begin
      drop_q <= DropWidth'(OutW > 1 ? -PixelDrop : OutH > 1 ? -RowDrop : -FrameDrop);
    end else if (step && pixel_last_o) begin
      drop_q <= !ow_next ? DropWidth'(-PixelDrop)
              : oh_next ? DropWidth'(-FrameDrop) : DropWidth'(-RowDrop);
    end
  end

  // Ways from word to word, modulo Words; Reach leads from a window's first word to its last pixel.
  function automatic int modulo(input int words);
    modulo = words % Words;
    if (modulo < 0) modulo = modulo + Words;
  endfunction

  localparam int Reach     = ((KernelH - 1) * DilationH * Cols + (KernelW - 1) * DilationW) * Fold;
  localparam int WayPart   = modulo(1);
  localparam int WayKw     = modulo(DilationW * Fold - (Part - 1));
  localparam int WayKh     = modulo((DilationH * Cols - (KernelW - 1) * DilationW) * Fold
                                    - (Part - 1));
  localparam int WayGroup  = modulo(1 - Reach);
  localparam int WayPixel  = modulo(PixelDrop - Reach - Fold + 1);
  localparam int WayRow    = modulo(RowDrop - Reach - Fold + 1);
  localparam int WayFrame  = modulo(FrameDrop - Reach - Fold + 1);

  // The sum and the sum less Words are made side by side; the sign of the second one chooses.
  logic [AddrWidth-1:0] way, way_q, back_q, addr_q, sum;
  logic [AddrWidth:0]   wrapped;
  logic                 issued_q;

  always_comb begin : p_way
    way = AddrWidth'(WayPart);
    if (row_last) way = oh_last_q ? AddrWidth'(WayFrame) : AddrWidth'(WayRow);
    else if (pixel_last_o) way = AddrWidth'(WayPixel);
    else if (plane_last) way = AddrWidth'(WayGroup);
    else if (line_last) way = AddrWidth'(WayKh);
    else if (part_last_q) way = AddrWidth'(WayKw);
  end

  assign sum     = addr_q + way_q;
  assign wrapped = {1'b0, addr_q} + {1'b1, back_q};
  assign addr_o  = addr_q;

  always_ff @(posedge clk_i) begin : p_addr
    if (!rst_ni) begin
      issued_q <= 1'b0;
      addr_q       <= '0;
    end else if (en_i) begin
      issued_q <= valid_o;
      if (issued_q) addr_q <= wrapped[AddrWidth] ? sum : wrapped[AddrWidth-1:0];
    end
    if (step) begin
      way_q  <= way;
      back_q <= way - AddrWidth'(Words);
    end
  end
endmodule
`default_nettype wire
