// SPDX-License-Identifier: Apache-2.0
// Depthwise product: every channel is multiplied with its own Window weights. PE channels a beat;
// a pixel comes in as Channels/PE folds of Window beats (stream_window with Groups = Fold) and
// leaves as Channels/PE beats. One beat a cycle, Window*Channels/PE cycles a pixel, no bubble.
// Window = 1 is a factor a channel. The beat that completes a fold is accepted 5 + DigitLevels
// cycles before the sums are on the output, DigitLevels = $clog2(ceil(WeightWidth/2)), or 0 for
// UseDsp or a bipolar operand. Output stalls stop the pipeline.
// Weight word fold*Window + k: lane p (channel fold*PE + p) [p*WeightWidth +: WeightWidth], signed,
// or one bit (1 = +1) if WeightBipolar. Bias word fold: [p*BiasWidth +: BiasWidth], signed.
// ActBipolar needs ActWidth = 1. Results modulo 2^AccWidth; overflow is asserted in simulation.
`default_nettype none
module depthwise #(
  parameter int Channels      = 4,
  parameter int PE            = 2,
  parameter int Window        = 9,
  parameter int WeightWidth   = 4,
  parameter int ActWidth      = 4,
  parameter int AccWidth      = 12,
  parameter bit AccSigned     = 1'b1,
  parameter bit ActSigned     = 1'b0,
  parameter bit WeightBipolar = 1'b0,
  parameter bit ActBipolar    = 1'b0,
  parameter bit HasBias       = 1'b0,
  parameter int BiasWidth     = 12,
  parameter     WeightFile    = "",
  parameter     BiasFile      = "",
  parameter bit UseDsp        = 1'b0,
  parameter int RomStyle      = 0
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   in_valid_i,
  output logic                   in_ready_o,
  input  logic [PE*ActWidth-1:0] in_data_i,
  output logic                   out_valid_o,
  input  logic                   out_ready_i,
  output logic [PE*AccWidth-1:0] out_data_o
);
  if (Channels < 1 || PE < 1 || Window < 1 || Channels % PE != 0) begin : gen_check
    $error("depthwise: PE must divide Channels, and Window be at least 1");
  end
  if ((WeightBipolar && WeightWidth != 1) || (ActBipolar && ActWidth != 1)) begin : gen_check_bip
    $error("depthwise: a bipolar operand is one bit wide");
  end

  localparam int Fold       = Channels / PE;
  localparam int Words      = Fold * Window;
  localparam int AddrWidth  = Words > 1 ? $clog2(Words) : 1;
  localparam int TapWidth   = Window > 1 ? $clog2(Window) : 1;
  localparam int FoldWidth  = Fold > 1 ? $clog2(Fold) : 1;
  localparam bit Xnor       = WeightBipolar && ActBipolar;
  localparam int Digits     = (UseDsp || WeightBipolar || ActBipolar) ? 1 : (WeightWidth + 1) / 2;
  localparam int Depth      = 3 + (Digits > 1 ? $clog2(Digits) : 0);
  // The bias and, for bipolar times bipolar, the constant -Window.
  localparam int ConstWidth = $clog2(Window + 1) + 1;
  localparam int InitWidth  = (BiasWidth > ConstWidth ? BiasWidth : ConstWidth) + 1;

  logic en, tap_last;
  logic [TapWidth-1:0]  tap_q;
  logic [AddrWidth-1:0] addr_q;

  assign in_ready_o = en;
  assign tap_last   = tap_q == TapWidth'(Window - 1);

  always_ff @(posedge clk_i) begin : p_count
    if (!rst_ni) begin
      tap_q  <= '0;
      addr_q <= '0;
    end else if (en && in_valid_i) begin
      tap_q  <= tap_last ? '0 : tap_q + 1'b1;
      addr_q <= addr_q == AddrWidth'(Words - 1) ? '0 : addr_q + 1'b1;
    end
  end

  // Flags that travel with the data; bit 0 belongs to the stage after the input.
  logic [Depth-1:0] valid_q, first_q, last_q;

  always_ff @(posedge clk_i) begin : p_flags
    if (!rst_ni) valid_q <= '0;
    else if (en) valid_q <= {valid_q[Depth-2:0], in_valid_i};
    if (en) begin
      first_q <= {first_q[Depth-2:0], tap_q == '0};
      last_q  <= {last_q[Depth-2:0], tap_last};
    end
  end

  // A register behind the weight memory hides a block RAM's clock-to-output time.
  logic [PE*ActWidth-1:0]    act1_q, act2_q;
  logic [PE*WeightWidth-1:0] weight1, weight2_q;

  mem_rom #(.Width(PE * WeightWidth), .Depth(Words), .Style(RomStyle), .File(WeightFile)) i_rom (
    .clk_i, .en_i(en), .addr_i(addr_q), .data_o(weight1)
  );

  always_ff @(posedge clk_i) begin : p_operands
    if (en) begin
      act1_q    <= in_data_i;
      act2_q    <= act1_q;
      weight2_q <= weight1;
    end
  end

  // Initial accumulator value: bias word read two stages ahead of the accumulator.
  localparam int Offset = Xnor ? -Window : 0;
  logic [PE*InitWidth-1:0] init;
  if (HasBias) begin : gen_bias
    logic [FoldWidth-1:0]    bias_addr_q;
    logic [PE*BiasWidth-1:0] bias;
    logic [PE*InitWidth-1:0] init_q;

    always_ff @(posedge clk_i) begin : p_bias_addr
      if (!rst_ni) bias_addr_q <= '0;
      else if (en && valid_q[Depth-3] && last_q[Depth-3]) begin
        bias_addr_q <= bias_addr_q == FoldWidth'(Fold - 1) ? '0 : bias_addr_q + 1'b1;
      end
    end
    mem_rom #(.Width(PE * BiasWidth), .Depth(Fold), .Style(2), .File(BiasFile)) i_bias (
      .clk_i, .en_i(en), .addr_i(bias_addr_q), .data_o(bias)
    );
    for (genvar p = 0; p < PE; p++) begin : gen_init
      always_ff @(posedge clk_i) begin : p_init
        if (en) begin
          init_q[p*InitWidth +: InitWidth] <=
            InitWidth'($signed(bias[p*BiasWidth +: BiasWidth])) + InitWidth'(Offset);
        end
      end
    end
    assign init = init_q;
  end else begin : gen_no_bias
    assign init = {PE{InitWidth'(Offset)}};
  end

  logic [PE*AccWidth-1:0] acc;
  logic                   acc_valid_q;
  for (genvar p = 0; p < PE; p++) begin : gen_pe
    matvec_lane #(
      .SIMD(1), .WeightWidth(WeightWidth), .ActWidth(ActWidth), .AccWidth(AccWidth),
      .AccSigned(AccSigned), .ActSigned(ActSigned), .WeightBipolar(WeightBipolar),
      .ActBipolar(ActBipolar), .UseDsp(UseDsp), .InitWidth(InitWidth)
    ) i_lane (
      .clk_i, .rst_ni, .en_i(en), .acts_i(act2_q[p*ActWidth +: ActWidth]),
      .weights_i(weight2_q[p*WeightWidth +: WeightWidth]),
      .valid_i(valid_q[Depth-1]), .first_i(first_q[Depth-1]), .last_i(last_q[Depth-1]),
      .init_i(init[p*InitWidth +: InitWidth]), .acc_o(acc[p*AccWidth +: AccWidth])
    );
  end

  always_ff @(posedge clk_i) begin : p_acc_valid
    if (!rst_ni) acc_valid_q <= 1'b0;
    else if (en) acc_valid_q <= valid_q[Depth-1] & last_q[Depth-1];
  end

  stream_skid #(.Width(PE * AccWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(acc_valid_q), .in_ready_o(en), .in_data_i(acc),
    .out_valid_o, .out_ready_i, .out_data_o
  );

`ifndef SYNTHESIS
  stream_check #(.Width(PE * ActWidth)) i_check_in (
    .clk_i, .rst_ni, .valid_i(in_valid_i), .ready_i(in_ready_o), .data_i(in_data_i)
  );
`endif
endmodule
`default_nettype wire
