// SPDX-License-Identifier: Apache-2.0
// axi_arbiter over resets: of two readers' requests one is followed from the memory's port to its
// word. The word goes to the reader that asked if no reset has come since, else to nobody, though the
// memory answers after at most two further resets with requests (2^EpochWidth - 2).
`default_nettype none
module prove_axi_arbiter (
  input logic        clk_i,
  input logic        rst_ni,
  input logic        mark_i,
  input logic        answer_i,
  input logic [1:0]  ar_valid_i,
  input logic [25:0] ar_addr_i,
  input logic        ar_ready_i,
  input logic [7:0]  data_i
);
  logic [1:0]  ar_ready, r_valid;
  logic [7:0]  r_data, len;
  logic        arvalid, fire, follows_q, stale_q, asked_q, answers;
  logic [12:0] araddr;
  logic [2:0]  arid, id_q, size;
  logic [1:0]  resets_q;
  assign fire    = arvalid & ar_ready_i;  // in reset, too: the memory may have heard it
  assign answers = follows_q & answer_i & rst_ni;

  axi_arbiter #(.Readers(2), .DataWidth(8), .AddrWidth(13), .EpochWidth(2)) i_dut (
    .clk_i, .rst_ni, .ar_valid_i, .ar_ready_o(ar_ready), .ar_addr_i, .ar_len_i('0),
    .r_valid_o(r_valid), .r_data_o(r_data), .m_axi_arvalid(arvalid), .m_axi_arready(ar_ready_i),
    .m_axi_araddr(araddr), .m_axi_arid(arid), .m_axi_arlen(len), .m_axi_arsize(size),
    .m_axi_arburst(), .m_axi_arcache(), .m_axi_arprot(), .m_axi_rvalid(answers), .m_axi_rready(),
    .m_axi_rdata(data_i), .m_axi_rid(id_q), .m_axi_rresp('0), .m_axi_rlast(1'b1)
  );
  fv_reset i_reset (.clk_i, .rst_ni);
  fv_output #(.Width(16)) i_request (
    .clk_i, .rst_ni, .valid_i(arvalid), .ready_i(ar_ready_i), .data_i({araddr, arid})
  );
  for (genvar u = 0; u < 2; u++) begin : gen_reader
    fv_input #(.Width(13)) i_reader (
      .clk_i, .rst_ni, .valid_i(ar_valid_i[u]), .ready_i(ar_ready[u]),
      .data_i(ar_addr_i[13*u +: 13])
    );
  end
  initial {follows_q, stale_q, asked_q, resets_q} = '0;
  always @(posedge clk_i) begin
    asked_q <= rst_ni & (asked_q | fire);
    if (!follows_q) begin
      if (fire && mark_i) begin
        follows_q <= 1'b1;
        stale_q   <= ~rst_ni;
        resets_q  <= '0;
        id_q      <= arid;
      end
    end else if (answers) begin
      follows_q <= 1'b0;
    end else if (!rst_ni) begin
      stale_q <= 1'b1;
      if ((asked_q || fire) && stale_q) resets_q <= resets_q + 1'b1;
    end
  end
  always_comb begin
    // Reader u asks for addresses whose top bit is u.
    assume (ar_addr_i[12] == 1'b0 && ar_addr_i[25] == 1'b1);
    assume (!(follows_q && stale_q && (asked_q || fire) && !rst_ni && resets_q == 2'd2));
    if (rst_ni) begin
      if (arvalid) own: assert (arid[0] == araddr[12]);
      if (answers && !stale_q) back: assert (r_valid == (id_q[0] ? 2'b10 : 2'b01));
      if (answers && stale_q) drained: assert (r_valid == '0);
      one: assert (ar_ready != 2'b11);
      data: assert (r_data == data_i || !answers);
    end
  end
endmodule
`default_nettype wire
