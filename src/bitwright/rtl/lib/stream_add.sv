// SPDX-License-Identifier: Apache-2.0
// MulA*a + MulB*b, lane by lane, exact: PE lanes a beat, one beat of each input a cycle; waits for
// both, and ready of one depends on valid of the other, on no ready. A multiplier is a sum of
// powers of two with signs (no two neighbours); the n powers of both add up in a registered tree.
// Latency 1 + $clog2(n): 2 for MulA = MulB = 1. Signed, Bipolar: how a lane's bits are read, see
// lane_widen. Results modulo 2^OutWidth; overflow is asserted in simulation.
`default_nettype none
module stream_add #(
  parameter int PE        = 1,
  parameter int WidthA    = 4,
  parameter bit SignedA   = 1'b0,
  parameter bit BipolarA  = 1'b0,
  parameter int MulA      = 1,
  parameter int WidthB    = 4,
  parameter bit SignedB   = 1'b0,
  parameter bit BipolarB  = 1'b0,
  parameter int MulB      = 1,
  parameter int OutWidth  = 6,
  parameter bit OutSigned = 1'b0
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   in0_valid_i,
  output logic                   in0_ready_o,
  input  logic [PE*WidthA-1:0]   in0_data_i,
  input  logic                   in1_valid_i,
  output logic                   in1_ready_o,
  input  logic [PE*WidthB-1:0]   in1_data_i,
  output logic                   out_valid_o,
  input  logic                   out_ready_i,
  output logic [PE*OutWidth-1:0] out_data_o
);
  localparam int Limit = 1 << 29;
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (PE < 1 || WidthA < 1 || WidthB < 1 || OutWidth < 1 || OutWidth > 62) begin : gen_check
    $error("stream_add: widths must be at least 1, and OutWidth at most 62");
  end
  if (MulA == 0 || MulB == 0 || MulA <= -Limit || MulA >= Limit || MulB <= -Limit
      || MulB >= Limit) begin : gen_check_mul
    $error("stream_add: a multiplier must not be 0, and lie below 2^29");
  end
`endif

  // Signed digits of |n|, never two neighbours: those where 3n and n differ, one place down;
  // negative where only n has the bit.
  localparam int AbsA   = MulA < 0 ? -MulA : MulA;
  localparam int AbsB   = MulB < 0 ? -MulB : MulB;
  localparam int BitsA  = ((3 * AbsA) ^ AbsA) >> 1;
  localparam int BitsB  = ((3 * AbsB) ^ AbsB) >> 1;
  localparam int SignsA = ((AbsA & ~(3 * AbsA)) >> 1) ^ (MulA < 0 ? -1 : 0);
  localparam int SignsB = ((AbsB & ~(3 * AbsB)) >> 1) ^ (MulB < 0 ? -1 : 0);

  localparam int Places = 31;
  localparam int CountA = $countones(BitsA);
  localparam int Terms  = CountA + $countones(BitsB);
  localparam int Levels = $clog2(Terms);
  // Terms are wide enough to be exact, modulo 2^OutWidth.
  localparam int InWidth   = WidthA > WidthB ? WidthA : WidthB;
  localparam int ExtWidth  = (InWidth > OutWidth ? InWidth : OutWidth) + 1;

  logic              en, fire;
  logic [Levels-1:0] valid_q;

  assign fire        = in0_valid_i & in1_valid_i;
  assign in0_ready_o = en & in1_valid_i;
  assign in1_ready_o = en & in0_valid_i;

  if (Levels == 1) begin : gen_valid_one
    always_ff @(posedge clk_i) begin : p_valid
      if (!rst_ni) valid_q <= '0;
      else if (en) valid_q <= fire;
    end
  end else begin : gen_valid
    always_ff @(posedge clk_i) begin : p_valid
      if (!rst_ni) valid_q <= '0;
      else if (en) valid_q <= {valid_q[Levels-2:0], fire};
    end
  end

  logic [PE*ExtWidth-1:0] a, b;
  logic [PE*OutWidth-1:0] sum;

  lane_widen #(
    .PE(PE), .InWidth(WidthA), .Signed(SignedA), .Bipolar(BipolarA), .OutWidth(ExtWidth)
  ) i_a (.data_i(in0_data_i), .data_o(a));
  lane_widen #(
    .PE(PE), .InWidth(WidthB), .Signed(SignedB), .Bipolar(BipolarB), .OutWidth(ExtWidth)
  ) i_b (.data_i(in1_data_i), .data_o(b));

  for (genvar p = 0; p < PE; p++) begin : gen_lane
    logic [Terms*OutWidth-1:0]    terms;
    logic [OutWidth+Levels-1:0]   tree;
    logic signed [ExtWidth-1:0]   a_lane, b_lane;
    logic                         unused;

    assign a_lane = a[p*ExtWidth +: ExtWidth];
    assign b_lane = b[p*ExtWidth +: ExtWidth];

    for (genvar i = 0; i < Places; i++) begin : gen_place
      localparam int Below  = (1 << i) - 1;
      localparam int PlaceA = $countones(BitsA & Below);
      localparam int PlaceB = CountA + $countones(BitsB & Below);
      if (BitsA[i] && !SignsA[i]) begin : gen_a_plus
        assign terms[PlaceA*OutWidth +: OutWidth] = OutWidth'(a_lane) << i;
      end else if (BitsA[i]) begin : gen_a_minus
        assign terms[PlaceA*OutWidth +: OutWidth] = -(OutWidth'(a_lane) << i);
      end
      if (BitsB[i] && !SignsB[i]) begin : gen_b_plus
        assign terms[PlaceB*OutWidth +: OutWidth] = OutWidth'(b_lane) << i;
      end else if (BitsB[i]) begin : gen_b_minus
        assign terms[PlaceB*OutWidth +: OutWidth] = -(OutWidth'(b_lane) << i);
      end
    end

    adder_tree #(.Terms(Terms), .Width(OutWidth)) i_tree (
      .clk_i, .en_i(en), .terms_i(terms), .sum_o(tree)
    );
    assign sum[p*OutWidth +: OutWidth] = tree[OutWidth-1:0];
    assign unused = &{1'b0, tree, a_lane, b_lane, OutSigned};

`ifdef BITWRIGHT_CHECKS
    longint exact;
    logic   fits;
    assign exact = longint'(MulA) * longint'(a_lane) + longint'(MulB) * longint'(b_lane);
    if (OutSigned) begin : gen_fits_signed
      assign fits = exact == longint'($signed(OutWidth'(exact)));
    end else begin : gen_fits_unsigned
      assign fits = exact == longint'($unsigned(OutWidth'(exact)));
    end
    no_overflow: assert property (@(posedge clk_i) disable iff (!rst_ni) (fire && en) |-> fits);
`endif
  end

  stream_skid #(.Width(PE * OutWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(valid_q[Levels-1]), .in_ready_o(en), .in_data_i(sum),
    .out_valid_o, .out_ready_i, .out_data_o
  );
endmodule
`default_nettype wire
