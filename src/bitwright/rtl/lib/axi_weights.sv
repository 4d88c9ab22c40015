// SPDX-License-Identifier: Apache-2.0
// Reads one unit's weights from memory, over and over: a region of Beats memory words at byte
// Offset above base_i, in order, as an endless stream of weight words of WordWidth bits. A cell
// of CellBeats memory words holds CellWords weight words, the first in the least significant
// bits, then padding. A burst of Burst words starts on a multiple of its size, a power of two of at
// most 4096 bytes, so no burst crosses a 4 KiB page (AXI4 forbids it) whatever base_i is: the
// region starts on a page, the low 12 bits of base_i are taken as 0. A burst is asked for when the
// buffer of Places words has room for all of it, so read data are always accepted. base_i must not
// change out of reset. Every read answers in order.
`default_nettype none
module axi_weights #(
  parameter int DataWidth = 64,
  parameter int AddrWidth = 32,
  parameter int Offset    = 0,
  parameter int Beats     = 64,
  parameter int Burst     = 16,
  parameter int Places    = 64,
  parameter int CellBeats = 1,
  parameter int CellWords = 1,
  parameter int WordWidth = 64,
  parameter int RamStyle  = 0
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic [AddrWidth-1:0] base_i,
  output logic                 ar_valid_o,
  input  logic                 ar_ready_i,
  output logic [AddrWidth-1:0] ar_addr_o,
  output logic [7:0]           ar_len_o,
  input  logic                 r_valid_i,
  input  logic [DataWidth-1:0] r_data_i,
  output logic                 out_valid_o,
  input  logic                 out_ready_i,
  output logic [WordWidth-1:0] out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Beats % CellBeats != 0 || CellWords * WordWidth > CellBeats * DataWidth) begin : gen_check
    $error("axi_weights: CellWords must fit into CellBeats, whose multiple Beats is");
  end
  if (Burst < 1 || Burst > 256 || Burst * DataWidth > 32768 || Places < Burst || Places < 2 ||
      Offset % (Burst * DataWidth / 8) != 0) begin : gen_check_burst
    $error("axi_weights: Burst is at most 256, 4096 bytes and Places, and Offset a multiple of it");
  end
  if (DataWidth < 8 || (DataWidth & (DataWidth - 1)) != 0 || (Burst & (Burst - 1)) != 0 ||
      AddrWidth < 13) begin : gen_check_page
    $error("axi_weights: DataWidth (bytes) and Burst are powers of two: no burst may cross 4 KiB");
  end
`endif

  localparam int Bytes      = DataWidth / 8;
  localparam int Bursts     = (Beats + Burst - 1) / Burst;
  localparam int Last       = Beats - (Bursts - 1) * Burst;  // length of the last one
  localparam int RunWidth   = Bursts > 1 ? $clog2(Bursts) : 1;
  localparam int PlaceWidth = $clog2(Places + 1);

  // Requests. free_q: places neither taken nor promised to a burst.
  logic [RunWidth-1:0]   run_q;
  logic [PlaceWidth-1:0] free_q, length;
  logic                  run_last, request, taken;

  assign run_last = run_q == RunWidth'(Bursts - 1);
  assign length   = run_last ? PlaceWidth'(Last) : PlaceWidth'(Burst);
  assign request  = (~ar_valid_o | ar_ready_i) & (free_q >= length);

  always_ff @(posedge clk_i) begin : p_request
    if (!rst_ni) begin
      run_q      <= '0;
      free_q     <= PlaceWidth'(Places);
      ar_valid_o <= 1'b0;
    end else begin
      if (request) run_q <= run_last ? '0 : run_q + 1'b1;
      if (request) ar_valid_o <= 1'b1;
      else if (ar_ready_i) ar_valid_o <= 1'b0;
      free_q <= free_q - (request ? length : '0) + (taken ? PlaceWidth'(1) : '0);
    end
  end

  logic [AddrWidth-1:0] start;
  assign start = {base_i[AddrWidth-1:12], 12'b0} + AddrWidth'(Offset);

  always_ff @(posedge clk_i) begin : p_address
    if (request) begin
      ar_addr_o <= run_q == '0 ? start : ar_addr_o + AddrWidth'(Burst * Bytes);
      ar_len_o  <= 8'(length - 1'b1);
    end
  end

  // Data.
  logic                           beat_valid, beat_ready, cell_valid, cell_ready, room;
  logic [DataWidth-1:0]           beat;
  logic [CellBeats*DataWidth-1:0] cell_data;

  assign taken = beat_valid & beat_ready;

  stream_fifo #(.Width(DataWidth), .Depth(Places), .RamStyle(RamStyle)) i_fifo (
    .clk_i, .rst_ni, .in_valid_i(r_valid_i), .in_ready_o(room), .in_data_i(r_data_i),
    .out_valid_o(beat_valid), .out_ready_i(beat_ready), .out_data_o(beat)
  );

  if (CellBeats > 1) begin : gen_wide
    stream_dwc #(.InWidth(DataWidth), .OutWidth(CellBeats * DataWidth)) i_up (
      .clk_i, .rst_ni, .in_valid_i(beat_valid), .in_ready_o(beat_ready), .in_data_i(beat),
      .out_valid_o(cell_valid), .out_ready_i(cell_ready), .out_data_o(cell_data)
    );
  end else begin : gen_same
    assign cell_valid = beat_valid;
    assign beat_ready = cell_ready;
    assign cell_data  = beat;
  end

  if (CellWords > 1) begin : gen_narrow
    stream_dwc #(.InWidth(CellWords * WordWidth), .OutWidth(WordWidth)) i_down (
      .clk_i, .rst_ni, .in_valid_i(cell_valid), .in_ready_o(cell_ready),
      .in_data_i(cell_data[CellWords*WordWidth-1:0]), .out_valid_o, .out_ready_i, .out_data_o
    );
  end else begin : gen_single
    assign out_valid_o = cell_valid;
    assign cell_ready  = out_ready_i;
    assign out_data_o  = cell_data[WordWidth-1:0];
  end

  logic unused;
  assign unused = (^cell_data) ^ (^base_i[11:0]) ^ room;

`ifdef BITWRIGHT_CHECKS
  always_room: assert property (@(posedge clk_i) disable iff (!rst_ni) r_valid_i |-> room);
  on_page: assert property (@(posedge clk_i) disable iff (!rst_ni) base_i[11:0] == '0);
  in_page: assert property (@(posedge clk_i) disable iff (!rst_ni) ar_valid_o |->
    int'(ar_addr_o[11:0]) + (int'(ar_len_o) + 1) * Bytes <= 4096);
`endif
endmodule
`default_nettype wire
