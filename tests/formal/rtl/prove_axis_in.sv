// SPDX-License-Identifier: Apache-2.0
// axis_in with tlast anywhere: every tlast ends one frame of three beats. What is taken stands in its
// place; a frame that ends early is filled up, of one that goes on the rest is dropped. The flag tells.
`default_nettype none
module prove_axis_in (
  input logic       clk_i,
  input logic       rst_ni,
  input logic       mark_i,
  input logic [2:0] lane_i,
  input logic       tvalid_i,
  input logic       tlast_i,
  input logic [7:0] tdata_i,
  input logic       out_ready_i
);
  localparam int Beats = 3;
  logic       tready, taken, out_valid, out_fire, frame_error, wrong_q, follows_q, starts;
  logic [1:0] out_data, data_q;
  logic [2:0] place_q, owed_q, ahead_q, units;  // units: output beats that this input beat makes
  assign taken    = tvalid_i & tready;
  assign out_fire = out_valid & out_ready_i;
  assign units    = place_q == 3'(Beats) ? '0 : tlast_i ? 3'(Beats) - place_q : 3'd1;

  axis_in #(.Width(2), .TdataWidth(8), .Beats(Beats), .FillValue(2'd1)) i_dut (
    .clk_i, .rst_ni, .s_axis_tdata(tdata_i), .s_axis_tvalid(tvalid_i), .s_axis_tready(tready),
    .s_axis_tlast(tlast_i), .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data),
    .frame_error_o(frame_error)
  );
  fv_reset i_reset (.clk_i, .rst_ni);
  fv_output #(.Width(2)) i_output (
    .clk_i, .rst_ni, .valid_i(out_valid), .ready_i(out_ready_i), .data_i(out_data)
  );
  assign starts = taken & mark_i & ~follows_q & (lane_i < units);
  initial {place_q, owed_q, follows_q, wrong_q} = '0;
  always @(posedge clk_i) begin
    if (!rst_ni) begin
      place_q   <= '0;  // in the frame; Beats: behind its end
      owed_q    <= '0;
      follows_q <= 1'b0;
      wrong_q   <= 1'b0;
    end else begin
      if (taken) begin
        place_q <= tlast_i ? '0 : place_q == 3'(Beats) ? place_q : place_q + 1'b1;
        if (place_q < 3'(Beats) && tlast_i != (place_q == 3'(Beats - 1))) wrong_q <= 1'b1;
      end
      owed_q <= owed_q + (taken ? units : '0) - 3'(out_fire);
      if (starts) begin
        follows_q <= 1'b1;
        data_q    <= lane_i == '0 ? tdata_i[1:0] : 2'd1;
        ahead_q   <= owed_q - 3'(out_fire) + lane_i;
      end else if (follows_q && out_fire) begin
        ahead_q <= ahead_q - 1'b1;
        if (ahead_q == '0) follows_q <= 1'b0;
      end
    end
  end
  always_comb if (rst_ni && !$initstate) begin
    flag: assert (frame_error == wrong_q);
    capacity: assert (owed_q <= 3'(Beats + 1));
    if (out_fire) no_invention: assert (owed_q != '0);
    if (follows_q && out_fire && ahead_q == '0) value: assert (out_data == data_q);
  end
endmodule
`default_nettype wire
