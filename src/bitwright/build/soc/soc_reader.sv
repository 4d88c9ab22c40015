// SPDX-License-Identifier: Apache-2.0
// Reads frames_i frames of FrameWords words of 64 bits from addr_i on, over AXI4 (bursts of 16 or, at the end, fewer, so an
// AXI3 memory takes them, too), and gives them as a stream. addr_i is a multiple of 128 bytes: then
// no burst crosses 4 KiB. No burst is asked for that the FIFO has no room for: rready is always high.
// error_o: a response was not OKAY.
`default_nettype none
module soc_reader #(
  parameter int FrameWords = 1
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        start_i,
  input  logic [63:0] addr_i,
  input  logic [31:0] frames_i,
  output logic        busy_o,
  output logic        error_o,
  output logic [63:0] araddr_o,
  output logic [7:0]  arlen_o,
  output logic        arvalid_o,
  input  logic        arready_i,
  input  logic [63:0] rdata_i,
  input  logic [1:0]  rresp_i,
  input  logic        rvalid_i,
  output logic        rready_o,
  output logic        out_valid_o,
  input  logic        out_ready_i,
  output logic [63:0] out_data_o
);
  localparam int Depth = 64;
  localparam int Burst = 16;

  logic [63:0] addr_q;
  logic [31:0] left_q, words_q;
  logic [6:0]  free_q, burst;
  logic        ask, taken;

  assign burst   = left_q < 32'(Burst) ? 7'(left_q) : 7'(Burst);
  assign ask     = ~arvalid_o && left_q != 32'd0 && free_q >= burst;
  assign taken   = out_valid_o & out_ready_i;
  assign busy_o  = left_q != 32'd0 || arvalid_o || free_q != 7'(Depth);
  assign error_o = rvalid_i && rresp_i != 2'b00;

  always_ff @(posedge clk_i) begin : p_ask
    if (!rst_ni) begin
      left_q    <= '0;
      free_q    <= 7'(Depth);
      arvalid_o <= 1'b0;
    end else begin
      free_q <= free_q - (ask ? burst : 7'd0) + 7'(taken);
      if (start_i) left_q <= words_q;
      else if (ask) left_q <= left_q - 32'(burst);
      if (ask) arvalid_o <= 1'b1;
      else if (arready_i) arvalid_o <= 1'b0;
    end
  end

  // frames_i is still for two clocks before start_i.
  always_ff @(posedge clk_i) begin : p_words
    words_q <= frames_i * 32'(FrameWords);
  end

  always_ff @(posedge clk_i) begin : p_addr
    if (start_i) addr_q <= addr_i;
    else if (ask) addr_q <= addr_q + 64'(8 * Burst);
    if (ask) begin
      araddr_o <= addr_q;
      arlen_o  <= 8'(burst) - 8'd1;
    end
  end

  stream_fifo #(.Width(64), .Depth(Depth), .RamStyle(0)) i_fifo (
    .clk_i, .rst_ni,
    .in_valid_i(rvalid_i), .in_ready_o(rready_o), .in_data_i(rdata_i),
    .out_valid_o, .out_ready_i, .out_data_o
  );

`ifdef BITWRIGHT_CHECKS
  there_is_room: assert property (@(posedge clk_i) disable iff (!rst_ni) rvalid_i |-> rready_o);
`endif
endmodule
`default_nettype wire
