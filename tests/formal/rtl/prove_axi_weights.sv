// SPDX-License-Identifier: Apache-2.0
// axi_weights with a memory that answers when it likes, in order: no burst crosses 4 KiB, what is
// read always has room, and the words come out in order, over and over. The region is five words
// at any page, in bursts of two, so that the last burst is shorter.
`default_nettype none
module prove_axi_weights (
  input logic        clk_i,
  input logic        rst_ni,
  input logic        ar_ready_i,
  input logic        r_valid_i,
  input logic        out_ready_i,
  input logic [13:0] base_i
);
  localparam int Places = 4;
  logic        ar_valid, out_valid, ar_fire, out_fire;
  logic [13:0] ar_addr;
  logic [7:0]  ar_len, out_data;
  logic [2:0]  asked_q, given_q, taken_q;  // place in the region of the next word
  logic [3:0]  due_q, held_q;              // words asked for and not given; given and not taken
  logic [2:0]  words;
  (* anyconst *) logic [1:0] page;
  assign ar_fire  = ar_valid & ar_ready_i;
  assign out_fire = out_valid & out_ready_i;
  assign words    = 3'(ar_len) + 3'd1;

  // Memory word n of the region holds n.
  axi_weights #(
    .DataWidth(8), .AddrWidth(14), .Offset(4094), .Beats(5), .Burst(2), .Places(Places),
    .CellBeats(1), .CellWords(1), .WordWidth(8)
  ) i_dut (
    .clk_i, .rst_ni, .base_i, .ar_valid_o(ar_valid), .ar_ready_i, .ar_addr_o(ar_addr),
    .ar_len_o(ar_len), .r_valid_i, .r_data_i({5'b0, given_q}),
    .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data)
  );
  fv_reset i_reset (.clk_i, .rst_ni);
  fv_output #(.Width(22)) i_request (
    .clk_i, .rst_ni, .valid_i(ar_valid), .ready_i(ar_ready_i), .data_i({ar_addr, ar_len})
  );
  fv_output #(.Width(8)) i_output (
    .clk_i, .rst_ni, .valid_i(out_valid), .ready_i(out_ready_i), .data_i(out_data)
  );
  function automatic logic [2:0] after(input logic [2:0] place, input logic [2:0] by);
    after = 3'((4'(place) + 4'(by)) % 4'd5);
  endfunction
  initial {asked_q, given_q, taken_q, due_q, held_q} = '0;
  always @(posedge clk_i) begin
    if (!rst_ni) {asked_q, given_q, taken_q, due_q, held_q} <= '0;
    else begin
      if (ar_fire) asked_q <= after(asked_q, words);
      if (r_valid_i) given_q <= after(given_q, 3'd1);
      if (out_fire) taken_q <= after(taken_q, 3'd1);
      due_q  <= due_q + (ar_fire ? 4'(words) : '0) - 4'(r_valid_i);
      held_q <= held_q + 4'(r_valid_i) - 4'(out_fire);
    end
  end
  always_comb begin
    assume (base_i == {page, 12'd0});
    assume (!r_valid_i || (due_q != '0 && rst_ni));
    if (rst_ni && ar_fire) begin
      in_page: assert (14'(ar_addr[11:0]) + 14'(words) <= 14'd4096);
      address: assert (ar_addr == base_i + 14'd4094 + 14'(asked_q));
      length: assert (words == (asked_q == 3'd4 ? 3'd1 : 3'd2));
    end
    if (rst_ni) room: assert (due_q + held_q <= 4'(Places));
    if (rst_ni && out_fire) begin
      no_invention: assert (held_q != '0);
      order: assert (out_data == {5'b0, taken_q});
    end
  end
endmodule
`default_nettype wire
