// SPDX-License-Identifier: Apache-2.0
// First-word fall-through FIFO of exactly Depth beats (registers included), one beat a cycle,
// latency 3: a beat accepted by an empty FIFO in cycle t is on the output in t + 3. A place freed
// in cycle t can be filled in cycle t + 1 (in_ready_o is a register), so a Depth below 4 moves
// Depth beats in four cycles; from 4 on it is one a cycle.
// RamStyle: 0 the tool chooses, 1 block RAM, 2 LUT RAM. Depth >= 2. Behind a block RAM stands a
// register, which the RAM has inside (its own clock-to-output time is most of a cycle), and a LUT
// RAM in rows has one, too; else LUT RAM is read into the output's register, and the beat waits
// before it. RamStyle and RamLines: Style and Lines of `mem_rows`. In simulation the largest number
// of beats held is printed at the end: "fifo_high_water <path> <beats> <Depth>".
`default_nettype none
module stream_fifo #(
  parameter int Width    = 8,
  parameter int Depth    = 16,
  parameter int RamStyle = 0,
  parameter int RamLines = 0
) (
  input  logic             clk_i,
  input  logic             rst_ni,
  input  logic             in_valid_i,
  output logic             in_ready_o,
  input  logic [Width-1:0] in_data_i,
  output logic             out_valid_o,
  input  logic             out_ready_i,
  output logic [Width-1:0] out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Width < 1 || Depth < 2) begin : gen_check
    $error("stream_fifo: Width must be at least 1 and Depth at least 2");
  end
`endif

  localparam int AddrWidth  = $clog2(Depth);
  localparam int CountWidth = $clog2(Depth + 1);

  logic [AddrWidth-1:0]  wr_addr_q, rd_addr_q;
  logic [CountWidth-1:0] count_q;  // beats held, the registers included
  logic [CountWidth-1:0] stored_count_q;  // beats in the RAM that may be read
  logic                  full_q, stored_q, out_valid_q;
  logic                  between_q;  // a beat between input and RAM, or RAM and output
  logic                  in_fire, out_fire, store, rd_en, out_free;

  assign in_ready_o  = ~full_q;
  assign out_valid_o = out_valid_q;
  assign in_fire     = in_valid_i & ~full_q;
  assign out_fire    = out_valid_q & out_ready_i;
  assign out_free    = ~out_valid_q | out_ready_i;

  always_ff @(posedge clk_i) begin : p_control
    if (!rst_ni) begin
      wr_addr_q      <= '0;
      rd_addr_q      <= '0;
      count_q        <= '0;
      full_q         <= 1'b0;
      stored_count_q <= '0;
      stored_q       <= 1'b0;
    end else begin
      if (in_fire) wr_addr_q <= wr_addr_q == AddrWidth'(Depth - 1) ? '0 : wr_addr_q + 1'b1;
      if (rd_en) rd_addr_q <= rd_addr_q == AddrWidth'(Depth - 1) ? '0 : rd_addr_q + 1'b1;
      if (in_fire && !out_fire) begin
        count_q <= count_q + 1'b1;
        full_q  <= count_q == CountWidth'(Depth - 1);
      end else if (!in_fire && out_fire) begin
        count_q <= count_q - 1'b1;
        full_q  <= 1'b0;
      end
      if (store && !rd_en) begin
        stored_count_q <= stored_count_q + 1'b1;
        stored_q       <= 1'b1;
      end else if (!store && rd_en) begin
        stored_count_q <= stored_count_q - 1'b1;
        stored_q       <= stored_count_q != CountWidth'(1);
      end
    end
  end

  if (RamStyle == 2 && (RamLines == 0 || RamLines >= Depth)) begin : gen_lut
    assign store = between_q;
    assign rd_en = stored_q & out_free;

    mem_ram #(.Width(Width), .Depth(Depth), .Style(RamStyle)) i_ram (
      .clk_i,
      .wr_en_i(in_fire), .wr_addr_i(wr_addr_q), .wr_data_i(in_data_i),
      .rd_en_i(rd_en), .rd_addr_i(rd_addr_q), .rd_data_o(out_data_o)
    );

    always_ff @(posedge clk_i) begin : p_valid
      if (!rst_ni) begin
        between_q   <= 1'b0;
        out_valid_q <= 1'b0;
      end else begin
        between_q <= in_fire;
        if (out_free) out_valid_q <= stored_q;
      end
    end
  end else begin : gen_block
    assign store = in_fire;
    assign rd_en = stored_q & (~between_q | out_free);

    mem_rows #(.Width(Width), .Depth(Depth), .Style(RamStyle), .Lines(RamLines)) i_ram (
      .clk_i,
      .wr_en_i(in_fire), .wr_addr_i(wr_addr_q), .wr_data_i(in_data_i),
      .rd_en_i(rd_en), .rd_addr_i(rd_addr_q), .out_en_i(out_free), .rd_data_o(out_data_o)
    );

    always_ff @(posedge clk_i) begin : p_valid
      if (!rst_ni) begin
        between_q   <= 1'b0;
        out_valid_q <= 1'b0;
      end else begin
        if (~between_q | out_free) between_q <= stored_q;
        if (out_free) out_valid_q <= between_q;
      end
    end
  end

`ifdef BITWRIGHT_CHECKS
  int high_water_q;

  initial high_water_q = 0;

  // Not always_ff: that would have to be the only process of what `initial` sets.
  always @(posedge clk_i) begin : p_high_water
    if (rst_ni && int'(count_q) > high_water_q) high_water_q <= int'(count_q);
  end

  final $display("fifo_high_water %m %0d %0d", high_water_q, Depth);

  stream_check #(.Width(Width)) i_check_in (
    .clk_i, .rst_ni, .valid_i(in_valid_i), .ready_i(in_ready_o), .data_i(in_data_i)
  );
  stream_check #(.Width(Width), .IsOutput(1'b1)) i_check_out (
    .clk_i, .rst_ni, .valid_i(out_valid_o), .ready_i(out_ready_i), .data_i(out_data_o)
  );
  no_overflow: assert property (@(posedge clk_i) disable iff (!rst_ni)
    int'(count_q) <= Depth
    && int'(count_q) == int'(stored_count_q) + int'(between_q) + int'(out_valid_q));
`endif
endmodule
`default_nettype wire
