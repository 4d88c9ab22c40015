// SPDX-License-Identifier: Apache-2.0
// AXI-Stream output of the top: pads the data with zeros to TdataWidth and marks the last of
// every Beats beats with tlast. Two-entry register (latency 1).
`default_nettype none
module axis_out #(
  parameter int Width      = 12,
  parameter int TdataWidth = 16,
  parameter int Beats      = 10
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic                  in_valid_i,
  output logic                  in_ready_o,
  input  logic [Width-1:0]      in_data_i,
  output logic [TdataWidth-1:0] m_axis_tdata,
  output logic                  m_axis_tvalid,
  input  logic                  m_axis_tready,
  output logic                  m_axis_tlast
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Width < 1 || TdataWidth < Width || TdataWidth % 8 != 0 || Beats < 1) begin : gen_check
    $error("axis_out: TdataWidth must be whole bytes and hold Width");
  end
`endif

  localparam int BeatWidth = Beats > 1 ? $clog2(Beats) : 1;
  logic [BeatWidth-1:0] beat_q;
  logic [Width-1:0]     data;
  logic                 last;

  assign last = beat_q == BeatWidth'(Beats - 1);

  always_ff @(posedge clk_i) begin : p_beat
    if (!rst_ni) beat_q <= '0;
    else if (in_valid_i && in_ready_o) beat_q <= last ? '0 : beat_q + 1'b1;
  end

  stream_skid #(.Width(Width + 1)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i, .in_ready_o, .in_data_i({last, in_data_i}),
    .out_valid_o(m_axis_tvalid), .out_ready_i(m_axis_tready), .out_data_o({m_axis_tlast, data})
  );

  assign m_axis_tdata = TdataWidth'(data);
endmodule
`default_nettype wire
