// SPDX-License-Identifier: Apache-2.0
// matvec_core: every output beat is the product of its rows with the vector, whatever the weights:
// 4 x 4 in 2 lanes of 2 columns, weights of 2 bits that are unknown and constant, bits as activations.
`default_nettype none
module prove_matvec_core #(
  parameter int MW   = 4,
  parameter int MH   = 4,
  parameter int Wait = 0
) (
  input logic       clk_i,
  input logic       rst_ni,
  input logic       mark_i,
  input logic       weight_valid_i,
  input logic       in_valid_i,
  input logic [1:0] in_data_i,
  input logic       out_ready_i
);
  localparam int SF    = MW / 2;
  localparam int NF    = MH / 2;
  localparam int Words = SF * NF;
  (* anyconst *) logic [Words*8-1:0] weights;
  logic                  in_ready, out_valid, in_fire, out_fire, en, issue, takes;
  logic [7:0]            out_data, word_q, sums_q, sums, word;
  logic [$clog2(Words)-1:0] addr;
  logic [$clog2(SF+1)-1:0]  pos;
  logic [$clog2(NF+1)-1:0]  pick;
  assign in_fire  = in_valid_i & in_ready;
  assign out_fire = out_valid & out_ready_i;

  matvec_core #(
    .MW(MW), .MH(MH), .PE(2), .SIMD(2), .WeightWidth(2), .ActWidth(1), .AccWidth(4),
    .Wait(Wait)
  ) i_dut (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o(in_ready), .in_data_i, .out_valid_o(out_valid),
    .out_ready_i, .out_data_o(out_data), .weight_valid_i, .weight_i(word_q), .en_o(en),
    .issue_o(issue), .addr_o(addr)
  );
  // The word comes Wait edges with en later.
  logic [(Wait+1)*8-1:0] words_q;
  logic [(Wait+2)*8-1:0] words;
  assign words  = {words_q, weights[addr*8 +: 8]};
  assign word_q = words[(Wait+1)*8 +: 8];
  always @(posedge clk_i) if (en) words_q <= words[0 +: (Wait+1)*8];

  fv_rules #(.Width(8), .Limit(SF * NF + 10 + Wait)) i_rules (
    .clk_i, .rst_ni, .offered_i(in_valid_i & weight_valid_i),
    .out_valid_i(out_valid), .out_ready_i, .out_data_i(out_data)
  );
  // The sums of the picked rows of the followed vector.
  assign word = weights[(int'(pick)*SF + int'(pos))*8 +: 8];
  always_comb begin
    sums = pos == '0 ? '0 : sums_q;
    for (int p = 0; p < 2; p++) begin
      for (int s = 0; s < 2; s++) begin
        if (in_data_i[s]) begin
          sums[4*p +: 4] = sums[4*p +: 4] + {{2{word[4*p+2*s+1]}}, word[4*p+2*s +: 2]};
        end
      end
    end
  end
  always @(posedge clk_i) if (takes) sums_q <= sums;
  fv_group #(.Width(8), .InBeats(SF), .OutBeats(NF)) i_group (
    .clk_i, .rst_ni, .mark_i, .in_fire_i(in_fire), .out_fire_i(out_fire), .out_data_i(out_data),
    .expect_i(sums_q), .in_pos_o(pos), .takes_o(takes), .pick_o(pick)
  );
endmodule
`default_nettype wire
