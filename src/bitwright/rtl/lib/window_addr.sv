// SPDX-License-Identifier: Apache-2.0
// Address generator of stream_window: six nested counters (output row, output column, group, kh,
// kw, fold) and one address. The step from one word to the next is a constant that depends only
// on the outermost counter that moves and on whether the row slot wraps round the buffer; it is
// chosen when a step issues and added in the (enabled) cycle after. addr_o is the address of the
// step issued last. An output row begins only while start_ok_i is high; within the row there is
// one step every enabled cycle.
`default_nettype none
module window_addr #(
  parameter int Cols      = 4,
  parameter int Fold      = 1,
  parameter int Groups    = 1,
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
  output logic                 row_last_o,
  output logic                 frame_last_o,
  output logic [AddrWidth-1:0] addr_o
);
  localparam int Part       = Fold / Groups;  // beats of a group in one pixel
  localparam int SlotWidth  = $clog2(BufRows + 1);
  localparam int FoldWidth  = $clog2(Part + 1);
  localparam int KwWidth    = $clog2(KernelW + 1);
  localparam int KhWidth    = $clog2(KernelH + 1);
  localparam int GroupWidth = $clog2(Groups + 1);
  localparam int OwWidth    = $clog2(OutW + 1);
  localparam int OhWidth    = $clog2(OutH + 1);

  logic [FoldWidth-1:0]  fold_q;
  logic [KwWidth-1:0]    kw_q;
  logic [KhWidth-1:0]    kh_q;
  logic [GroupWidth-1:0] group_q;
  logic [OwWidth-1:0]    ow_q;
  logic [OhWidth-1:0]    oh_q;
  logic                  running_q;
  logic fold_last, line_last, part_last, pixel_last, step;

  assign fold_last    = fold_q == FoldWidth'(Part - 1);
  assign line_last    = fold_last & (kw_q == KwWidth'(KernelW - 1));
  assign part_last    = line_last & (kh_q == KhWidth'(KernelH - 1));
  assign pixel_last   = part_last & (group_q == GroupWidth'(Groups - 1));
  assign row_last_o   = pixel_last & (ow_q == OwWidth'(OutW - 1));
  assign frame_last_o = oh_q == OhWidth'(OutH - 1);
  assign valid_o      = running_q | start_ok_i;
  assign step         = en_i & valid_o;

  always_ff @(posedge clk_i) begin : p_count
    if (!rst_ni) begin
      fold_q    <= '0;
      kw_q      <= '0;
      kh_q      <= '0;
      group_q   <= '0;
      ow_q      <= '0;
      oh_q      <= '0;
      running_q <= 1'b0;
    end else if (step) begin
      running_q <= ~row_last_o;
      fold_q    <= fold_last ? '0 : fold_q + 1'b1;
      if (fold_last) kw_q <= line_last ? '0 : kw_q + 1'b1;
      if (line_last) kh_q <= part_last ? '0 : kh_q + 1'b1;
      if (part_last) group_q <= pixel_last ? '0 : group_q + 1'b1;
      if (pixel_last) ow_q <= row_last_o ? '0 : ow_q + 1'b1;
      if (row_last_o) oh_q <= frame_last_o ? '0 : oh_q + 1'b1;
    end
  end

  // Which counter moves: 0 fold, 1 kw, 2 kh, 3 group, 4 output column, 5 output row, 6 frame.
  logic [2:0] level;
  always_comb begin : p_level
    level = 3'd0;
    if (row_last_o) level = frame_last_o ? 3'd6 : 3'd5;
    else if (pixel_last) level = 3'd4;
    else if (part_last) level = 3'd3;
    else if (line_last) level = 3'd2;
    else if (fold_last) level = 3'd1;
  end

  // Row slots that each level moves on, modulo BufRows. Back leads from the last kernel row to
  // the first.
  localparam int Reach    = (KernelH - 1) * DilationH % BufRows;
  localparam int Back     = (BufRows - Reach) % BufRows;
  localparam int NextKh   = DilationH % BufRows;
  localparam int NextOh   = (StrideH + Back) % BufRows;
  localparam int NextTime = (LastDrop + Back) % BufRows;

  logic [SlotWidth-1:0] slot_q, move, room;
  logic                 wraps;

  always_comb begin : p_move
    move = '0;
    room = SlotWidth'(BufRows);
    unique case (level)
      3'd2: begin
        move = SlotWidth'(NextKh);
        room = SlotWidth'(BufRows - NextKh);
      end
      3'd3, 3'd4: begin
        move = SlotWidth'(Back);
        room = SlotWidth'(BufRows - Back);
      end
      3'd5: begin
        move = SlotWidth'(NextOh);
        room = SlotWidth'(BufRows - NextOh);
      end
      3'd6: begin
        move = SlotWidth'(NextTime);
        room = SlotWidth'(BufRows - NextTime);
      end
      default: ;
    endcase
  end

  assign wraps = slot_q >= room;

  always_ff @(posedge clk_i) begin : p_slot
    if (!rst_ni) slot_q <= '0;
    else if (step) slot_q <= wraps ? slot_q - room : slot_q + move;
  end

  // Words from one step to the next, modulo 2^AddrWidth: those of the row slots, and those
  // within the row, where Tail leads from a line's first word to its last.
  localparam int RowWords = Cols * Fold;
  localparam int Tail     = (KernelW - 1) * DilationW * Fold + Part - 1;
  localparam int StepKw   = DilationW * Fold - Part + 1;
  localparam int StepKh   = NextKh * RowWords - Tail;
  localparam int StepPart = Back * RowWords - Tail + Part;
  localparam int StepOw   = StepPart - Fold + StrideW * Fold;
  localparam int RowTail  = (OutW - 1) * StrideW * Fold + Fold - Part + Tail;
  localparam int StepOh   = NextOh * RowWords - RowTail;
  localparam int StepTime = NextTime * RowWords - RowTail;

  logic [AddrWidth-1:0] delta, delta_q, addr_q;
  logic                 issued_q;

  always_comb begin : p_delta
    delta = AddrWidth'(1);
    unique case ({wraps, level})
      4'd1: delta = AddrWidth'(StepKw);
      4'd2: delta = AddrWidth'(StepKh);
      4'd3: delta = AddrWidth'(StepPart);
      4'd4: delta = AddrWidth'(StepOw);
      4'd5: delta = AddrWidth'(StepOh);
      4'd6: delta = AddrWidth'(StepTime);
      4'd10: delta = AddrWidth'(StepKh - Words);
      4'd11: delta = AddrWidth'(StepPart - Words);
      4'd12: delta = AddrWidth'(StepOw - Words);
      4'd13: delta = AddrWidth'(StepOh - Words);
      4'd14: delta = AddrWidth'(StepTime - Words);
      default: ;
    endcase
  end

  always_ff @(posedge clk_i) begin : p_addr
    if (!rst_ni) begin
      issued_q <= 1'b0;
      addr_q   <= '0;
    end else if (en_i) begin
      issued_q <= valid_o;
      if (issued_q) addr_q <= addr_q + delta_q;
    end
    if (step) delta_q <= delta;
  end

  assign addr_o = addr_q;
endmodule
`default_nettype wire
