// SPDX-License-Identifier: Apache-2.0
// Pixels x Outputs dot products, each with an accumulator. first_i: the product begins a sum;
// last_i: it ends it. The finished sums leave for the drain, one output of all pixels a cycle,
// lowest first: the last word in cycle t, sums of output n in t + Latency + 2 + n, with drain_i
// high for one cycle in front of the first. Sums of the next group may end Outputs cycles later.
// With two PostLanes, sums_o has those of output n + 1, too, and with fast_i they leave by twos.
// signed_i, nibbles_i (lanes hold two of 4 bits), max_i (the largest product instead of the sum)
// and kept_i (of every pixel: 0 leaves the product out) belong to the word; nothing kept is 0, or
// the smallest number.
`default_nettype none
module engine_array #(
  parameter int Pixels   = 4,
  parameter int Outputs  = 8,
  parameter int Lanes    = 8,
  parameter int Dsps     = 8,
  parameter bit Nibbles  = 1'b1,  // whether lanes may hold two values of 4 bits
  parameter bit Paired   = 1'b0,  // two pixels in a multiplier: engine_dots
  parameter int AccWidth = 32,
  parameter int PostLanes = 1,
  localparam int Latency = 3 + $clog2(Lanes) + 1
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,
  input  logic                       valid_i,
  input  logic                       first_i,
  input  logic                       last_i,
  input  logic                       signed_i,
  input  logic                       nibbles_i,
  input  logic                       max_i,
  input  logic [Pixels-1:0]          kept_i,
  input  logic [Pixels*Lanes*8-1:0]  features_i,
  input  logic [Outputs*Lanes*8-1:0] weights_i,
  input  logic                       fast_i,    // of the sums that leave
  output logic                       drain_o,
  output logic [PostLanes*Pixels*AccWidth-1:0] sums_o
);
  localparam int SumWidth = 17 + $clog2(Lanes);

  // Control beside the products.
  logic [Latency-1:0]         last_q;
  logic [Latency-2:0]         valid_q, first_q, max_q;

  always_ff @(posedge clk_i) begin : p_control
    if (!rst_ni) begin
      valid_q <= '0;
      last_q  <= '0;
      drain_o <= 1'b0;
    end else begin
      valid_q <= {valid_q[Latency-3:0], valid_i};
      last_q  <= {last_q[Latency-2:0], valid_i & last_i};
      drain_o <= last_q[Latency-1];
    end
    first_q <= {first_q[Latency-3:0], first_i};
    max_q   <= {max_q[Latency-3:0], max_i};
  end

  logic [Outputs*Pixels*SumWidth-1:0] sums;
  engine_dots #(
    .Pixels(Pixels), .Outputs(Outputs), .Lanes(Lanes), .Dsps(Dsps), .Paired(Paired)
  ) i_dots (
    .clk_i, .signed_i, .nibbles_i(nibbles_i & Nibbles), .features_i, .weights_i, .sums_o(sums)
  );

  logic [Pixels-1:0] kept_early;
  engine_delay #(.Width(Pixels), .Cycles(Latency - 1)) i_kept (
    .clk_i, .data_i(kept_i), .data_o(kept_early)
  );

  // Sums of a finished group shift out while the next group is summed.
  logic [Outputs*Pixels*AccWidth-1:0] acc_q, drain_q;
  assign sums_o = drain_q[0 +: PostLanes*Pixels*AccWidth];

  for (genvar o = 0; o < Outputs; o++) begin : gen_output
    // What all accumulators do, of every output: hundreds of bits hang on each.
    logic              valid, first, max;
    logic [Pixels-1:0] kept;
    engine_own #(.Width(3 + Pixels)) i_own (
      .clk_i, .data_i({valid_q[Latency-2], first_q[Latency-2], max_q[Latency-2], kept_early}),
      .data_o({valid, first, max, kept})
    );
    for (genvar p = 0; p < Pixels; p++) begin : gen_pixel
      logic signed [SumWidth-1:0] sum;
      logic signed [AccWidth-1:0] acc, wide, added, larger;
      logic                       take;
      assign sum  = $signed(sums[(o*Pixels+p)*SumWidth +: SumWidth]);
      assign acc  = $signed(acc_q[(o*Pixels+p)*AccWidth +: AccWidth]);
      assign wide = AccWidth'(sum);

      // Both beside each other: one carry chain each, and what belongs to them in its LUTs.
      assign added  = (first ? '0 : acc) + (kept[p] ? wide : '0);
      assign take   = kept[p] & (first | (wide > acc));
      assign larger = take ? wide : first ? {1'b1, {(AccWidth - 1) {1'b0}}} : acc;

      always_ff @(posedge clk_i) begin : p_acc
        if (valid) begin
          acc_q[(o*Pixels+p)*AccWidth +: AccWidth] <= max ? larger : added;
        end
      end
    end
  end

  always_ff @(posedge clk_i) begin : p_drain
    if (drain_o) drain_q <= acc_q;
    else drain_q <= PostLanes == 2 && fast_i ? drain_q >> (2 * Pixels * AccWidth)
                                             : drain_q >> (Pixels * AccWidth);
  end

  logic unused;
  assign unused = fast_i;
endmodule
`default_nettype wire
