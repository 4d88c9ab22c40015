// SPDX-License-Identifier: Apache-2.0
// axis_out: the same beats, zeros above them, and tlast on each third.
`default_nettype none
module prove_axis_out (
  input logic       clk_i,
  input logic       rst_ni,
  input logic       mark_i,
  input logic       in_valid_i,
  input logic [2:0] in_data_i,
  input logic       out_ready_i
);
  logic       in_ready, tvalid, tlast, fire;
  logic [7:0] tdata;
  logic [1:0] beat_q;
  assign fire = tvalid & out_ready_i;

  axis_out #(.Width(3), .TdataWidth(8), .Beats(3)) i_dut (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o(in_ready), .in_data_i, .m_axis_tdata(tdata),
    .m_axis_tvalid(tvalid), .m_axis_tready(out_ready_i), .m_axis_tlast(tlast)
  );
  fv_rules #(.Width(9), .Limit(1)) i_rules (
    .clk_i, .rst_ni, .offered_i(in_valid_i),
    .out_valid_i(tvalid), .out_ready_i, .out_data_i({tlast, tdata})
  );
  fv_order #(.Width(8), .Capacity(2)) i_order (
    .clk_i, .rst_ni, .mark_i, .lane_i('0), .in_fire_i(in_valid_i & in_ready),
    .in_data_i({5'b0, in_data_i}), .out_fire_i(fire), .out_data_i(tdata), .inside_o()
  );
  initial beat_q = '0;
  always @(posedge clk_i) begin
    if (!rst_ni) beat_q <= '0;
    else if (fire) beat_q <= beat_q == 2'd2 ? '0 : beat_q + 1'b1;
  end
  always_comb if (rst_ni && fire) last: assert (tlast == (beat_q == 2'd2));
endmodule
`default_nettype wire
