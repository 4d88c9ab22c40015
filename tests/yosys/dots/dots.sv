// SPDX-License-Identifier: Apache-2.0
// Sample design of the flow tests: three dot products of 16 signed 4-bit values, and the index of the
// first largest. Eight beats in, three score beats out, one label beat out.
`default_nettype none
module dots (
  input  logic        ap_clk,
  input  logic        ap_rst_n,
  input  logic [7:0]  s_axis_0_tdata,
  input  logic        s_axis_0_tvalid,
  output logic        s_axis_0_tready,
  input  logic        s_axis_0_tlast,
  output logic [15:0] m_axis_0_tdata,
  output logic        m_axis_0_tvalid,
  input  logic        m_axis_0_tready,
  output logic        m_axis_0_tlast,
  output logic [7:0]  m_axis_1_tdata,
  output logic        m_axis_1_tvalid,
  input  logic        m_axis_1_tready,
  output logic        m_axis_1_tlast
);
  logic [23:0] weights [0:7];
  initial $readmemh("mem/weights.mem", weights);

  logic [2:0]  beat_q;
  logic [23:0] word;
  logic [1:0]  out_q;
  logic        sending_q, label_q, fire;
  logic signed [15:0] sum0, sum1, sum2;

  assign s_axis_0_tready = ~sending_q & ~label_q;
  assign fire            = s_axis_0_tvalid & s_axis_0_tready;
  assign word            = weights[beat_q];

  dots_lane i_lane0 (.clk_i(ap_clk), .rst_ni(ap_rst_n), .valid_i(fire),
    .clear_i(label_q & m_axis_1_tready), .act_i(s_axis_0_tdata), .weight_i(word[7:0]), .sum_o(sum0));
  dots_lane i_lane1 (.clk_i(ap_clk), .rst_ni(ap_rst_n), .valid_i(fire),
    .clear_i(label_q & m_axis_1_tready), .act_i(s_axis_0_tdata), .weight_i(word[15:8]), .sum_o(sum1));
  dots_lane i_lane2 (.clk_i(ap_clk), .rst_ni(ap_rst_n), .valid_i(fire),
    .clear_i(label_q & m_axis_1_tready), .act_i(s_axis_0_tdata), .weight_i(word[23:16]), .sum_o(sum2));

  always_ff @(posedge ap_clk) begin : p_control
    if (!ap_rst_n) begin
      beat_q    <= '0;
      out_q     <= '0;
      sending_q <= 1'b0;
      label_q   <= 1'b0;
    end else begin
      if (fire) beat_q <= beat_q + 3'd1;
      if (fire && beat_q == 3'd7) sending_q <= 1'b1;
      if (sending_q && m_axis_0_tready) begin
        out_q <= m_axis_0_tlast ? 2'd0 : out_q + 2'd1;
        if (m_axis_0_tlast) sending_q <= 1'b0;
        if (m_axis_0_tlast) label_q <= 1'b1;
      end
      if (label_q && m_axis_1_tready) label_q <= 1'b0;
    end
  end

  assign m_axis_0_tvalid = sending_q;
  assign m_axis_0_tlast  = out_q == 2'd2;
  assign m_axis_0_tdata  = out_q == 2'd0 ? sum0 : out_q == 2'd1 ? sum1 : sum2;
  assign m_axis_1_tvalid = label_q;
  assign m_axis_1_tlast  = 1'b1;
  assign m_axis_1_tdata  = (sum0 >= sum1 && sum0 >= sum2) ? 8'd0 : (sum1 >= sum2) ? 8'd1 : 8'd2;
endmodule
`default_nettype wire
