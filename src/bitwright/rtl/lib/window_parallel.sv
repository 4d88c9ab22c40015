// SPDX-License-Identifier: Apache-2.0
// Sliding window over frames of Height x Cols pixels, a pixel a beat (already padded), that gives
// the whole window of an output pixel in one beat: its elements in the order (group, kh, kw,
// channel of the group), the first in the lowest bits. A pixel joins those of its column in the
// rows above it, which are kept in a RAM of a word a column; the columns shift through a register.
// SpanH = (KernelH-1)*DilationH + 1, SpanW likewise. One input beat a cycle: Height*Cols cycles a
// frame; the beat that completes a window is accepted 3 cycles before the window appears.
`default_nettype none
module window_parallel #(
  parameter int Height    = 4,
  parameter int Cols      = 4,
  parameter int Groups    = 1,
  parameter int DataWidth = 8,
  parameter int KernelH   = 3,
  parameter int KernelW   = 3,
  parameter int StrideH   = 1,
  parameter int StrideW   = 1,
  parameter int DilationH = 1,
  parameter int DilationW = 1,
  parameter int RamStyle  = 0,
  localparam int OutWidth = KernelH * KernelW * DataWidth
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic                 in_valid_i,
  output logic                 in_ready_o,
  input  logic [DataWidth-1:0] in_data_i,
  output logic                 out_valid_o,
  input  logic                 out_ready_i,
  output logic [OutWidth-1:0]  out_data_o
);
  localparam int SpanH = (KernelH - 1) * DilationH + 1;
  localparam int SpanW = (KernelW - 1) * DilationW + 1;

`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Height < SpanH || Cols < SpanW) begin : gen_check_span
    $error("window_parallel: the dilated kernel must fit into the frame");
  end
  if (DataWidth < 1 || KernelH < 1 || KernelW < 1 || StrideH < 1 || StrideW < 1 || DilationH < 1
      || DilationW < 1) begin : gen_check_size
    $error("window_parallel: all sizes must be at least 1");
  end
  if (Groups < 1 || DataWidth % Groups != 0) begin : gen_check_groups
    $error("window_parallel: Groups must divide DataWidth");
  end
`endif

  localparam int ColWidth    = Cols > 1 ? $clog2(Cols) : 1;
  localparam int RowWidth    = Height > 1 ? $clog2(Height) : 1;
  localparam int MostCols    = SpanW > StrideW ? SpanW : StrideW;
  localparam int MostRows    = SpanH > StrideH ? SpanH : StrideH;
  localparam int ColWait     = MostCols > 1 ? $clog2(MostCols) : 1;
  localparam int RowWait     = MostRows > 1 ? $clog2(MostRows) : 1;
  localparam int ColumnWidth = KernelH * DataWidth;

  logic [ColWidth-1:0] col_q, col1_q;
  logic [RowWidth-1:0] row_q;
  logic [ColWait-1:0]  col_wait_q;  // columns, and rows, until one that ends a window
  logic [RowWait-1:0]  row_wait_q;
  logic                en, fire, col_last, row_last, valid1_q, hit1_q, valid2_q;
  logic [DataWidth-1:0]   data1_q;
  logic [ColumnWidth-1:0] column;

  assign in_ready_o = en;
  assign fire       = en & in_valid_i;
  assign col_last   = col_q == ColWidth'(Cols - 1);
  assign row_last   = row_q == RowWidth'(Height - 1);

  always_ff @(posedge clk_i) begin : p_count
    if (!rst_ni) begin
      col_q      <= '0;
      row_q      <= '0;
      col_wait_q <= ColWait'(SpanW - 1);
      row_wait_q <= RowWait'(SpanH - 1);
    end else if (fire) begin
      col_q      <= col_last ? '0 : col_q + 1'b1;
      col_wait_q <= col_wait_q == '0 ? ColWait'(StrideW - 1) : col_wait_q - 1'b1;
      if (col_last) begin
        col_wait_q <= ColWait'(SpanW - 1);
        row_q      <= row_last ? '0 : row_q + 1'b1;
        row_wait_q <= row_wait_q == '0 ? RowWait'(StrideH - 1) : row_wait_q - 1'b1;
        if (row_last) row_wait_q <= RowWait'(SpanH - 1);
      end
    end
  end

  always_ff @(posedge clk_i) begin : p_valid
    if (!rst_ni) begin
      valid1_q <= 1'b0;
      valid2_q <= 1'b0;
    end else if (en) begin
      valid1_q <= in_valid_i;
      valid2_q <= valid1_q & hit1_q;
    end
  end

  always_ff @(posedge clk_i) begin : p_data
    if (en) begin
      data1_q <= in_data_i;
      col1_q  <= col_q;
      hit1_q  <= col_wait_q == '0 && row_wait_q == '0;
    end
  end

  // The pixels above: of the rows that the kernel spans, the newest in the lowest bits.
  if (SpanH == 1) begin : gen_no_rows
    assign column = data1_q;
    logic unused;
    assign unused = &{1'b0, col1_q};
  end else begin : gen_rows
    localparam int Kept = (SpanH - 1) * DataWidth;
    logic [Kept-1:0]           above, kept;
    logic [Kept+DataWidth-1:0] pixels;

    assign pixels = {above, data1_q};
    assign kept   = pixels[Kept-1:0];
    if (Cols == 1) begin : gen_register
      logic [Kept-1:0] above_q;
      always_ff @(posedge clk_i) if (en && valid1_q) above_q <= kept;
      assign above = above_q;
      logic unused;
      assign unused = &{1'b0, col1_q};
    end else begin : gen_ram
      // Read one step before its use.
      mem_ram #(.Width(Kept), .Depth(Cols), .Style(RamStyle)) i_ram (
        .clk_i,
        .wr_en_i(en & valid1_q), .wr_addr_i(col1_q), .wr_data_i(kept),
        .rd_en_i(fire), .rd_addr_i(col_q), .rd_data_o(above)
      );
    end
    for (genvar k = 0; k < KernelH; k++) begin : gen_tap
      assign column[k*DataWidth +: DataWidth] =
          pixels[(KernelH - 1 - k)*DilationH*DataWidth +: DataWidth];
    end
  end

  // The columns of the window, the newest in the lowest bits.
  logic [SpanW*ColumnWidth-1:0] columns_q;

  if (SpanW == 1) begin : gen_column
    always_ff @(posedge clk_i) if (en && valid1_q) columns_q <= column;
  end else begin : gen_columns
    always_ff @(posedge clk_i) begin : p_shift
      if (en && valid1_q) columns_q <= {columns_q[(SpanW-1)*ColumnWidth-1:0], column};
    end
  end

  localparam int Part = DataWidth / Groups;
  logic [OutWidth-1:0] window;

  for (genvar g = 0; g < Groups; g++) begin : gen_group
    for (genvar h = 0; h < KernelH; h++) begin : gen_kh
      for (genvar w = 0; w < KernelW; w++) begin : gen_kw
        assign window[((g*KernelH + h)*KernelW + w)*Part +: Part] =
            columns_q[(KernelW - 1 - w)*DilationW*ColumnWidth + h*DataWidth + g*Part +: Part];
      end
    end
  end
  if (DilationW > 1) begin : gen_between
    logic unused;
    assign unused = &{1'b0, columns_q};
  end

  stream_skid #(.Width(OutWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(valid2_q), .in_ready_o(en), .in_data_i(window),
    .out_valid_o, .out_ready_i, .out_data_o
  );

`ifdef BITWRIGHT_CHECKS
  stream_check #(.Width(DataWidth)) i_check_in (
    .clk_i, .rst_ni, .valid_i(in_valid_i), .ready_i(in_ready_o), .data_i(in_data_i)
  );
`endif
endmodule
`default_nettype wire
