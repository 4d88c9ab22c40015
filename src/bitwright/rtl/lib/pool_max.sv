// SPDX-License-Identifier: Apache-2.0
// Maximum over Window pixels of Fold beats each (the order stream_window gives: pixel, then
// fold), element by element over PE elements of ElemWidth bits. One input beat a cycle:
// Window*Fold cycles for each output pixel of Fold beats; the beat that completes an output is
// accepted 3 cycles before it appears. Bipolar elements are 1-bit unsigned; elements that are codes
// of sign and magnitude (ElemCode) compare as these.
`default_nettype none
module pool_max #(
  parameter int Window     = 4,
  parameter int Fold       = 1,
  parameter int PE         = 1,
  parameter int ElemWidth  = 4,
  parameter bit ElemSigned = 1'b0,
  parameter bit ElemCode   = 1'b0,
  parameter int RamStyle   = 0
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic                    in_valid_i,
  output logic                    in_ready_o,
  input  logic [PE*ElemWidth-1:0] in_data_i,
  output logic                    out_valid_o,
  input  logic                    out_ready_i,
  output logic [PE*ElemWidth-1:0] out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Window < 1 || Fold < 1 || PE < 1 || ElemWidth < 1) begin : gen_check
    $error("pool_max: sizes must be at least 1");
  end
  if (ElemCode && ElemWidth < 2) begin : gen_check_code
    $error("pool_max: a code has a sign and a magnitude");
  end
`endif

  localparam int DataWidth   = PE * ElemWidth;
  localparam int FoldWidth   = Fold > 1 ? $clog2(Fold) : 1;
  localparam int WindowWidth = Window > 1 ? $clog2(Window) : 1;

  logic [FoldWidth-1:0]   fold_q, fold1_q;
  logic [WindowWidth-1:0] pixel_q;
  logic fire, en, fold_last, pixel_last, valid1_q, first1_q, last1_q, done_q;
  logic [DataWidth-1:0] data1_q, best, best_old, best_q;

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
      if (valid1_q) best_q <= best;
    end
  end

  for (genvar p = 0; p < PE; p++) begin : gen_lane
    logic [ElemWidth-1:0] now, old;
    logic                 wins;

    assign now = data1_q[p*ElemWidth +: ElemWidth];
    assign old = best_old[p*ElemWidth +: ElemWidth];
    if (ElemCode) begin : gen_code
      // A negative code is the smaller the larger its magnitude: turned round, codes ascend.
      logic [ElemWidth-1:0] now_key, old_key;
      assign now_key = {~now[ElemWidth-1], now[ElemWidth-2:0] ^ {ElemWidth-1{now[ElemWidth-1]}}};
      assign old_key = {~old[ElemWidth-1], old[ElemWidth-2:0] ^ {ElemWidth-1{old[ElemWidth-1]}}};
      assign wins = now_key > old_key;
    end else if (ElemSigned) begin : gen_signed
      assign wins = $signed(now) > $signed(old);
    end else begin : gen_unsigned
      assign wins = now > old;
    end
    assign best[p*ElemWidth +: ElemWidth] = (first1_q | wins) ? now : old;
  end

  // Running maxima: a register for one fold, else a RAM that is read one step before its use.
  if (Fold == 1) begin : gen_register
    assign best_old = best_q;
    logic unused;
    assign unused = &{1'b0, fire, fold1_q};
  end else begin : gen_ram
    mem_ram #(.Width(DataWidth), .Depth(Fold), .Style(RamStyle)) i_ram (
      .clk_i,
      .wr_en_i(en & valid1_q), .wr_addr_i(fold1_q), .wr_data_i(best),
      .rd_en_i(fire), .rd_addr_i(fold_q), .rd_data_o(best_old)
    );
  end

  stream_skid #(.Width(DataWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(done_q), .in_ready_o(en), .in_data_i(best_q),
    .out_valid_o, .out_ready_i, .out_data_o
  );

`ifdef BITWRIGHT_CHECKS
  stream_check #(.Width(DataWidth)) i_check_in (
    .clk_i, .rst_ni, .valid_i(in_valid_i), .ready_i(in_ready_o), .data_i(in_data_i)
  );
`endif
endmodule
`default_nettype wire
