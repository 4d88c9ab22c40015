// SPDX-License-Identifier: Apache-2.0
// AXI-Stream input of the top: drops the padding bits of tdata, two-entry register (latency 1).
// Frames have Beats beats; tlast must mark exactly the last one. In hardware tlast is ignored
// (the length is a parameter); in simulation it is asserted.
`default_nettype none
module axis_in #(
  parameter int Width      = 4,
  parameter int TdataWidth = 8,
  parameter int Beats      = 64
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic [TdataWidth-1:0] s_axis_tdata,
  input  logic                  s_axis_tvalid,
  output logic                  s_axis_tready,
  input  logic                  s_axis_tlast,
  output logic                  out_valid_o,
  input  logic                  out_ready_i,
  output logic [Width-1:0]      out_data_o
);
  if (Width < 1 || TdataWidth < Width || TdataWidth % 8 != 0 || Beats < 1) begin : gen_check
    $error("axis_in: TdataWidth must be whole bytes and hold Width");
  end

  stream_skid #(.Width(Width)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(s_axis_tvalid), .in_ready_o(s_axis_tready), .in_data_i(s_axis_tdata[Width-1:0]),
    .out_valid_o, .out_ready_i, .out_data_o
  );

  logic unused;
  assign unused = &{1'b0, s_axis_tlast, s_axis_tdata};

`ifndef SYNTHESIS
  int beat_q;

  always_ff @(posedge clk_i) begin : p_beat
    if (!rst_ni) beat_q <= 0;
    else if (s_axis_tvalid && s_axis_tready) beat_q <= beat_q == Beats - 1 ? 0 : beat_q + 1;
  end
  last_in_place: assert property (@(posedge clk_i) disable iff (!rst_ni)
    s_axis_tvalid |-> s_axis_tlast == (beat_q == Beats - 1));
  stream_check #(.Width(TdataWidth)) i_check_in (
    .clk_i, .rst_ni, .valid_i(s_axis_tvalid), .ready_i(s_axis_tready), .data_i(s_axis_tdata)
  );
`endif
endmodule
`default_nettype wire
