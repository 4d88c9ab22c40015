// SPDX-License-Identifier: Apache-2.0
// Sum over Window pixels of Fold beats each (the order stream_window gives: pixel, then fold),
// element by element over PE elements of InWidth bits; an image stream is one window of all its
// pixels (global average). One input beat a cycle: Window*Fold cycles for each output pixel of
// Fold beats; the beat that completes an output is accepted 3 cycles before it appears.
// Signed, Bipolar: how an element's bits are read, see lane_widen. SumWidth must hold every sum
// (checked for the extremes).
`default_nettype none
module pool_sum #(
  parameter int Window   = 4,
  parameter int Fold     = 1,
  parameter int PE       = 1,
  parameter int InWidth  = 4,
  parameter bit Signed   = 1'b0,
  parameter bit Bipolar  = 1'b0,
  parameter int SumWidth = 6,
  parameter int RamStyle = 0
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   in_valid_i,
  output logic                   in_ready_o,
  input  logic [PE*InWidth-1:0]  in_data_i,
  output logic                   out_valid_o,
  input  logic                   out_ready_i,
  output logic [PE*SumWidth-1:0] out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Window < 1 || Fold < 1 || PE < 1 || InWidth < 1) begin : gen_check
    $error("pool_sum: sizes must be at least 1");
  end
`endif

  localparam int DataWidth   = PE * SumWidth;
  localparam int FoldWidth   = Fold > 1 ? $clog2(Fold) : 1;
  localparam int WindowWidth = Window > 1 ? $clog2(Window) : 1;

  logic [FoldWidth-1:0]    fold_q, fold1_q;
  logic [WindowWidth-1:0]  pixel_q;
  logic fire, en, fold_last, pixel_last, valid1_q, first1_q, last1_q, done_q;
  logic [PE*InWidth-1:0]   data1_q;
  logic [DataWidth-1:0]    now, sum, sum_old, sum_q;

  assign in_ready_o = en;
  assign fire       = en & in_valid_i;
  assign fold_last  = fold_q == FoldWidth'(Fold - 1);
  assign pixel_last = pixel_q == WindowWidth'(Window - 1);

  always_ff @(posedge clk_i) begin : p_control
    if (!rst_ni) begin
      fold_q   <= '0;
      pixel_q  <= '0;
      valid1_q <= 1'b0;
      done_q   <= 1'b0;
    end else if (en) begin
      valid1_q <= in_valid_i;
      done_q   <= valid1_q & last1_q;
      if (in_valid_i) begin
        fold_q <= fold_last ? '0 : fold_q + 1'b1;
        if (fold_last) pixel_q <= pixel_last ? '0 : pixel_q + 1'b1;
      end
    end
  end

  always_ff @(posedge clk_i) begin : p_data
    if (en) begin
      data1_q  <= in_data_i;
      fold1_q  <= fold_q;
      first1_q <= pixel_q == '0;
      last1_q  <= pixel_last;
      if (valid1_q) sum_q <= sum;
    end
  end

  lane_widen #(
    .PE(PE), .InWidth(InWidth), .Signed(Signed), .Bipolar(Bipolar), .OutWidth(SumWidth)
  ) i_now (.data_i(data1_q), .data_o(now));

  for (genvar p = 0; p < PE; p++) begin : gen_lane
    logic [SumWidth-1:0] old;
    assign old = sum_old[p*SumWidth +: SumWidth] & {SumWidth{~first1_q}};
    assign sum[p*SumWidth +: SumWidth] = now[p*SumWidth +: SumWidth] + old;
  end

  // Running sums: a register for one fold, else a RAM that is read one step before its use.
  if (Fold == 1) begin : gen_register
    assign sum_old = sum_q;
    logic unused;
    assign unused = &{1'b0, fire, fold1_q};
  end else begin : gen_ram
    mem_ram #(.Width(DataWidth), .Depth(Fold), .Style(RamStyle)) i_ram (
      .clk_i,
      .wr_en_i(en & valid1_q), .wr_addr_i(fold1_q), .wr_data_i(sum),
      .rd_en_i(fire), .rd_addr_i(fold_q), .rd_data_o(sum_old)
    );
  end

  stream_skid #(.Width(DataWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(done_q), .in_ready_o(en), .in_data_i(sum_q),
    .out_valid_o, .out_ready_i, .out_data_o
  );

`ifdef BITWRIGHT_CHECKS
  stream_check #(.Width(PE * InWidth)) i_check_in (
    .clk_i, .rst_ni, .valid_i(in_valid_i), .ready_i(in_ready_o), .data_i(in_data_i)
  );
`endif
endmodule
`default_nettype wire
