// SPDX-License-Identifier: Apache-2.0
// Thresholds of one channel at run time: base + (count of x >= threshold) * 2^step, where x is ~x
// of a flipped channel. row_i: 15 signed thresholds of 32 bits, the lowest first; flip_i: of the
// channel, together with x_i, a cycle before the row. The result's low 8 bits. Latency 7, one a
// cycle; base and step must hold.
`default_nettype none
module engine_threshold (
  input  logic         clk_i,
  input  logic [31:0]  x_i,
  input  logic         flip_i,
  input  logic [511:0] row_i,
  input  logic [7:0]   base_i,
  input  logic         step_i,
  output logic [7:0]   code_o
);
  logic signed [31:0] x_q;
  logic [14:0]        reached_q;
  logic [3:0]         count, count_q;
  logic [7:0]         early_q, middle_q, late_q;

  always_comb begin : p_count
    count = '0;
    for (int n = 0; n < 15; n++) count = count + 4'(reached_q[n]);
  end

  always_ff @(posedge clk_i) begin : p_pipe
    x_q <= x_i ^ {32{flip_i}};
    for (int n = 0; n < 15; n++) reached_q[n] <= x_q >= $signed(row_i[n*32 +: 32]);
    count_q  <= count;
    early_q  <= base_i + (step_i ? 8'({count_q, 1'b0}) : 8'(count_q));
    middle_q <= early_q;
    late_q   <= middle_q;
    code_o   <= late_q;
  end

  logic unused;
  assign unused = ^row_i[511:480];
endmodule
`default_nettype wire
