// SPDX-License-Identifier: Apache-2.0
// AXI-Stream input of the top: drops the padding bits of tdata, two-entry register (latency 1).
// Frames have Beats beats, and tlast must mark exactly the last one. Where it does not, the next
// tlast puts the stream right: a frame that ends early is filled up with FillValue, one beat a
// cycle, while the source waits; of a frame that goes on behind its Beats beats the rest is thrown
// away, up to and with its tlast. So every tlast ends one frame of Beats beats, and what follows it
// is in place. frame_error_o rises in the cycle behind the wrong beat and stays until a reset.
`default_nettype none
module axis_in #(
  parameter int Width      = 4,
  parameter int TdataWidth = 8,
  parameter int Beats      = 64,
  parameter logic [Width-1:0] FillValue = '0
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic [TdataWidth-1:0] s_axis_tdata,
  input  logic                  s_axis_tvalid,
  output logic                  s_axis_tready,
  input  logic                  s_axis_tlast,
  output logic                  out_valid_o,
  input  logic                  out_ready_i,
  output logic [Width-1:0]      out_data_o,
  output logic                  frame_error_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Width < 1 || TdataWidth < Width || TdataWidth % 8 != 0 || Beats < 1) begin : gen_check
    $error("axis_in: TdataWidth must be whole bytes and hold Width");
  end
`endif

  localparam int BeatWidth = Beats > 1 ? $clog2(Beats) : 1;

  logic [BeatWidth-1:0] beat_q;
  logic                 fill_q, skip_q;  // making up for lost beats, throwing surplus ones away
  logic                 frame_error_q, taken, last, fire, skid_ready, early, late;

  assign s_axis_tready = skip_q | (skid_ready & ~fill_q);
  assign frame_error_o = frame_error_q;
  assign taken         = s_axis_tvalid & s_axis_tready;
  assign last          = beat_q == BeatWidth'(Beats - 1);
  assign fire          = skid_ready & (fill_q | (s_axis_tvalid & ~skip_q));
  assign early         = taken & ~skip_q & s_axis_tlast & ~last;
  assign late          = taken & ~skip_q & ~s_axis_tlast & last;

  always_ff @(posedge clk_i) begin : p_frame
    if (!rst_ni) begin
      beat_q        <= '0;
      fill_q        <= 1'b0;
      skip_q        <= 1'b0;
      frame_error_q <= 1'b0;
    end else begin
      if (fire) beat_q <= last ? '0 : beat_q + 1'b1;
      if (early) fill_q <= 1'b1;
      else if (fire && last) fill_q <= 1'b0;
      if (late) skip_q <= 1'b1;
      else if (taken && s_axis_tlast) skip_q <= 1'b0;
      if (early || late) frame_error_q <= 1'b1;
    end
  end

  stream_skid #(.Width(Width)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(fill_q | (s_axis_tvalid & ~skip_q)), .in_ready_o(skid_ready),
    .in_data_i(fill_q ? FillValue : s_axis_tdata[Width-1:0]),
    .out_valid_o, .out_ready_i, .out_data_o
  );

  logic unused;
  assign unused = &{1'b0, s_axis_tdata};

`ifdef BITWRIGHT_CHECKS
  stream_check #(.Width(TdataWidth)) i_check_in (
    .clk_i, .rst_ni, .valid_i(s_axis_tvalid), .ready_i(s_axis_tready), .data_i(s_axis_tdata)
  );
`endif
endmodule
`default_nettype wire
