// SPDX-License-Identifier: Apache-2.0
// Many-bit requantization: out = clip(round_shift(x*m + o, Shift), OutLo, OutHi), m and o signed
// per channel from ROMs. PE channels a beat, Channels/PE beats a pixel, one beat a cycle.
// Channels = PE also serves values shared by all channels.
// Rounding: 0 half_even, 1 half_away, 2 half_up, 3 floor, 4 ceil.
// Power >= 0: m is 2^Power for all channels, so that there is no multiplier and no MulFile.
// OutMant >= 0: the result is a float's code, see round_float for OutMant, OutLow, OutLo, OutHi.
// Latency 7 + $clog2(digits), + 1 for UseDsp, + 3 for a float; digits = 1 for UseDsp and
// Power >= 0, else ceil(MulWidth/2).
// MulFile: line fold, lane p at [p*MulWidth +: MulWidth]; OffsetFile alike with OffsetWidth.
`default_nettype none
module requant #(
  parameter int Channels    = 8,
  parameter int PE          = 2,
  parameter int InWidth     = 16,
  parameter bit InSigned    = 1'b1,
  parameter int MulWidth    = 12,
  parameter int OffsetWidth = 24,
  parameter int Shift       = 12,
  parameter int OutWidth    = 8,
  parameter int OutLo       = -128,
  parameter int OutHi       = 127,
  parameter int Rounding    = 0,
  parameter int Power       = -1,
  parameter int OutMant     = -1,
  parameter int OutLow      = 0,
  parameter     MulFile     = "",
  parameter     OffsetFile  = "",
  parameter bit UseDsp      = 1'b0,
  parameter int RomStyle    = 0
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
    $error("requant: PE must divide Channels");
  end
  if (OutLo < -(1 << (OutWidth - 1)) || OutHi >= (1 << OutWidth)) begin : gen_check_range
    $error("requant: OutLo and OutHi must fit into OutWidth");
  end
  if (InWidth < 1 || MulWidth < 1 || OffsetWidth < 1 || Shift < 0 || OutLo > OutHi
      || Rounding < 0 || Rounding > 4 || OutWidth < 1 || OutWidth > 30) begin : gen_check
    $error("requant: a width, Shift, Rounding or OutLo..OutHi is out of range");
  end
`endif

  localparam int Fold      = Channels / PE;
  localparam int FoldWidth = Fold > 1 ? $clog2(Fold) : 1;
  localparam int Digits    = UseDsp || Power >= 0 ? 1 : (MulWidth + 1) / 2;
  // Registers from the operands to the product: adders of digits, or operands of a DSP block.
  localparam int Levels    = Digits > 1 ? $clog2(Digits) : UseDsp && Power < 0 ? 1 : 0;
  // Stages before the output register.
  localparam int Depth     = (OutMant >= 0 ? 10 : 7) + Levels - 1;

  logic             en;
  logic [Depth-1:0] valid_q;

  assign in_ready_o = en;

  always_ff @(posedge clk_i) begin : p_valid
    if (!rst_ni) valid_q <= '0;
    else if (en) valid_q <= {valid_q[Depth-2:0], in_valid_i};
  end

  // ROM addresses: the multiplier is read with x, the offset when the product is nearly done.
  logic [FoldWidth-1:0]      mul_fold_q, offset_fold_q;
  logic [PE*MulWidth-1:0]    mul1;
  logic [PE*OffsetWidth-1:0] offset1;

  always_ff @(posedge clk_i) begin : p_fold
    if (!rst_ni) begin
      mul_fold_q    <= '0;
      offset_fold_q <= '0;
    end else if (en) begin
      if (in_valid_i) mul_fold_q <= mul_fold_q == FoldWidth'(Fold - 1) ? '0 : mul_fold_q + 1'b1;
      if (valid_q[Levels]) begin
        offset_fold_q <= offset_fold_q == FoldWidth'(Fold - 1) ? '0 : offset_fold_q + 1'b1;
      end
    end
  end

  if (Power < 0) begin : gen_factor
    mem_rom #(
      .Width(PE * MulWidth), .Depth(Fold), .Style(RomStyle), .File(MulFile), .AddrReg(1'b1)
    ) i_mul (
      .clk_i, .en_i(en), .addr_i(mul_fold_q), .data_o(mul1)
    );
  end else begin : gen_power
    assign mul1 = '0;
    logic unused_factor;
    assign unused_factor = ^mul_fold_q;
  end
  mem_rom #(
    .Width(PE * OffsetWidth), .Depth(Fold), .Style(RomStyle), .File(OffsetFile), .AddrReg(1'b1)
  ) i_off (
    .clk_i, .en_i(en), .addr_i(offset_fold_q), .data_o(offset1)
  );

  logic [PE*InWidth-1:0]     x1_q, x2_q;
  logic [PE*MulWidth-1:0]    mul2_q;
  logic [PE*OffsetWidth-1:0] offset2_q;
  logic [PE*OutWidth-1:0]    code;

  always_ff @(posedge clk_i) begin : p_operands
    if (en) begin
      x1_q      <= in_data_i;
      x2_q      <= x1_q;
      mul2_q    <= mul1;
      offset2_q <= offset1;
    end
  end

  for (genvar p = 0; p < PE; p++) begin : gen_lane
    requant_lane #(
      .InWidth(InWidth), .InSigned(InSigned), .MulWidth(MulWidth), .OffsetWidth(OffsetWidth),
      .Shift(Shift), .OutWidth(OutWidth), .OutLo(OutLo), .OutHi(OutHi), .Rounding(Rounding),
      .Power(Power), .OutMant(OutMant), .OutLow(OutLow), .UseDsp(UseDsp)
    ) i_lane (
      .clk_i, .en_i(en), .x_i(x2_q[p*InWidth +: InWidth]),
      .mul_i(mul2_q[p*MulWidth +: MulWidth]),
      .offset_i(offset2_q[p*OffsetWidth +: OffsetWidth]),
      .code_o(code[p*OutWidth +: OutWidth])
    );
  end

  stream_skid #(.Width(PE * OutWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(valid_q[Depth-1]), .in_ready_o(en), .in_data_i(code),
    .out_valid_o, .out_ready_i, .out_data_o
  );

`ifdef BITWRIGHT_CHECKS
  stream_check #(.Width(PE * InWidth)) i_check_in (
    .clk_i, .rst_ni, .valid_i(in_valid_i), .ready_i(in_ready_o), .data_i(in_data_i)
  );
`endif
endmodule
`default_nettype wire
