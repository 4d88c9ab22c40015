// SPDX-License-Identifier: Apache-2.0
// Multi-threshold: out = Base + count, count = number of the channel's 2^Bits - 1 ascending
// thresholds t with x >= t, by pipelined binary search (one comparator a bit). PE channels a
// beat, Channels/PE beats a pixel, one beat a cycle. Channels = PE also serves thresholds shared
// by all channels. With HasFlip a channel's flip bit compares ~x = -x - 1 instead of x, so its
// thresholds are stored as t - 1. Missing thresholds are padded at the top with a value that x
// never reaches. x is extended to ThrWidth bits, signed; thresholds are signed.
// Latency 2 + HasFlip + Bits*StageLatency, StageLatency = 2 for RomStyle 2 (LUT), else 3.
// ThrFile<i> (search stage i = 0 .. Bits-1) names a file a lane: it, the lane p in four digits,
// ".mem". Line fold*2^i + prefix is t[(2*prefix + 1)*2^(Bits-1-i) - 1] of channel fold*PE + p.
// FlipFile: line fold holds PE bits. Bipolar output: Bits = OutWidth = 1, Base = 0.
`default_nettype none
module threshold #(
  parameter int Channels = 8,
  parameter int PE       = 2,
  parameter int InWidth  = 12,
  parameter bit InSigned = 1'b1,
  parameter int ThrWidth = 13,
  parameter int Bits     = 4,
  parameter int OutWidth = 4,
  parameter int Base     = 0,
  parameter bit HasFlip  = 1'b0,
  parameter int RomStyle = 0,
  parameter     FlipFile = "",
  parameter     ThrFile0 = "",
  parameter     ThrFile1 = "",
  parameter     ThrFile2 = "",
  parameter     ThrFile3 = "",
  parameter     ThrFile4 = "",
  parameter     ThrFile5 = "",
  parameter     ThrFile6 = "",
  parameter     ThrFile7 = ""
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   in_valid_i,
  output logic                   in_ready_o,
  input  logic [PE*InWidth-1:0]  in_data_i,
  output logic                   out_valid_o,
  input  logic                   out_ready_i,
  output logic [PE*OutWidth-1:0] out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Channels < 1 || PE < 1 || Channels % PE != 0) begin : gen_check_fold
    $error("threshold: PE must divide Channels");
  end
  if (Bits < 1 || Bits > 8 || OutWidth < Bits || InWidth < 1
      || ThrWidth < InWidth + (InSigned ? 0 : 1)) begin : gen_check_width
    $error("threshold: needs 1 <= Bits <= 8, OutWidth >= Bits and ThrWidth that holds x signed");
  end
`endif

  localparam int Fold      = Channels / PE;
  localparam int FoldWidth = Fold > 1 ? $clog2(Fold) : 1;

  logic                   en;
  logic [FoldWidth-1:0]   fold_q;
  logic [PE*ThrWidth-1:0] x_in, x0;
  logic [FoldWidth-1:0]   fold0;
  logic                   valid0;

  assign in_ready_o = en;

  always_ff @(posedge clk_i) begin : p_fold
    if (!rst_ni) fold_q <= '0;
    else if (en && in_valid_i) fold_q <= fold_q == FoldWidth'(Fold - 1) ? '0 : fold_q + 1'b1;
  end

  for (genvar p = 0; p < PE; p++) begin : gen_extend
    if (InSigned) begin : gen_signed
      assign x_in[p*ThrWidth +: ThrWidth] = ThrWidth'($signed(in_data_i[p*InWidth +: InWidth]));
    end else begin : gen_unsigned
      assign x_in[p*ThrWidth +: ThrWidth] = ThrWidth'(in_data_i[p*InWidth +: InWidth]);
    end
  end

  // Input register; with flips one more, behind the flip ROM.
  logic [PE*ThrWidth-1:0] x_in_q;
  logic [FoldWidth-1:0]   fold_in_q;
  logic                   valid_in_q;

  always_ff @(posedge clk_i) begin : p_in_valid
    if (!rst_ni) valid_in_q <= 1'b0;
    else if (en) valid_in_q <= in_valid_i;
  end
  always_ff @(posedge clk_i) begin : p_in
    if (en) begin
      x_in_q    <= x_in;
      fold_in_q <= fold_q;
    end
  end

  if (HasFlip) begin : gen_flip
    logic [PE-1:0]          flip;
    logic [PE*ThrWidth-1:0] x_flip_q;
    logic [FoldWidth-1:0]   fold_flip_q;
    logic                   valid_flip_q;

    mem_rom #(.Width(PE), .Depth(Fold), .Style(2), .File(FlipFile)) i_flip (
      .clk_i, .en_i(en), .addr_i(fold_q), .data_o(flip)
    );
    always_ff @(posedge clk_i) begin : p_flip_valid
      if (!rst_ni) valid_flip_q <= 1'b0;
      else if (en) valid_flip_q <= valid_in_q;
    end
    always_ff @(posedge clk_i) begin : p_flip_fold
      if (en) fold_flip_q <= fold_in_q;
    end
    for (genvar p = 0; p < PE; p++) begin : gen_lane
      always_ff @(posedge clk_i) begin : p_flip
        if (en) begin
          x_flip_q[p*ThrWidth +: ThrWidth] <= x_in_q[p*ThrWidth +: ThrWidth]
                                            ^ {ThrWidth{flip[p]}};
        end
      end
    end
    assign {valid0, fold0, x0} = {valid_flip_q, fold_flip_q, x_flip_q};
  end else begin : gen_no_flip
    assign {valid0, fold0, x0} = {valid_in_q, fold_in_q, x_in_q};
  end

  // Search stages; bus slice i is the state before stage i. prefix lane p: Bits bits each.
  logic [(Bits+1)*PE*ThrWidth-1:0] x;
  logic [(Bits+1)*FoldWidth-1:0]   fold;
  logic [(Bits+1)*PE*Bits-1:0]     prefix;
  logic [Bits:0]                   valid;

  assign x[PE*ThrWidth-1:0]  = x0;
  assign fold[FoldWidth-1:0] = fold0;
  assign prefix[PE*Bits-1:0] = '0;
  assign valid[0]            = valid0;

  // One instance a stage, by macro: a conditional expression cannot choose among file names of
  // different lengths.
`define THRESHOLD_STAGE(N, LABEL, FILE)                                                         \
  if (N < Bits) begin : LABEL                                                                   \
    threshold_stage #(                                                                          \
      .Stage(N), .Bits(Bits), .Fold(Fold), .PE(PE), .ThrWidth(ThrWidth), .RomStyle(RomStyle),   \
      .File(FILE)                                                                               \
    ) i_stage (                                                                                 \
      .clk_i, .rst_ni, .en_i(en),                                                               \
      .valid_i(valid[N]), .x_i(x[N*PE*ThrWidth +: PE*ThrWidth]),                                \
      .fold_i(fold[N*FoldWidth +: FoldWidth]), .prefix_i(prefix[N*PE*Bits +: PE*Bits]),         \
      .valid_o(valid[N+1]), .x_o(x[(N+1)*PE*ThrWidth +: PE*ThrWidth]),                          \
      .fold_o(fold[(N+1)*FoldWidth +: FoldWidth]),                                              \
      .prefix_o(prefix[(N+1)*PE*Bits +: PE*Bits])                                               \
    );                                                                                          \
  end
  `THRESHOLD_STAGE(0, gen_stage0, ThrFile0)
  `THRESHOLD_STAGE(1, gen_stage1, ThrFile1)
  `THRESHOLD_STAGE(2, gen_stage2, ThrFile2)
  `THRESHOLD_STAGE(3, gen_stage3, ThrFile3)
  `THRESHOLD_STAGE(4, gen_stage4, ThrFile4)
  `THRESHOLD_STAGE(5, gen_stage5, ThrFile5)
  `THRESHOLD_STAGE(6, gen_stage6, ThrFile6)
  `THRESHOLD_STAGE(7, gen_stage7, ThrFile7)
`undef THRESHOLD_STAGE

  logic [PE*OutWidth-1:0] code;
  for (genvar p = 0; p < PE; p++) begin : gen_code
    logic [Bits-1:0] count;
    assign count = prefix[(Bits*PE+p)*Bits +: Bits];
    if (Base == 0) begin : gen_plain
      assign code[p*OutWidth +: OutWidth] = OutWidth'(count);
    end else begin : gen_base
      assign code[p*OutWidth +: OutWidth] = OutWidth'(count) + OutWidth'(Base);
    end
  end

  stream_skid #(.Width(PE * OutWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(valid[Bits]), .in_ready_o(en), .in_data_i(code),
    .out_valid_o, .out_ready_i, .out_data_o
  );

  logic unused;
  assign unused = &{1'b0, fold[Bits*FoldWidth +: FoldWidth],
                    x[Bits*PE*ThrWidth +: PE*ThrWidth]};
endmodule
`default_nettype wire
