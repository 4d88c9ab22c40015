// SPDX-License-Identifier: Apache-2.0
// AXI-Stream beats of Bytes bytes to single bytes, the lowest first; out_last_o marks the last byte
// of a frame of Beats beats. Frames are counted, so tlast of the source is not needed.
`default_nettype none
module shell_beats_out #(
  parameter int Bytes = 2,
  parameter int Beats = 10
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic               in_valid_i,
  output logic               in_ready_o,
  input  logic [Bytes*8-1:0] in_data_i,
  output logic               out_valid_o,
  input  logic               out_ready_i,
  output logic [7:0]         out_data_o,
  output logic               out_last_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Bytes < 1 || Beats < 1) begin : gen_check
    $error("shell_beats_out: Bytes and Beats must be at least 1");
  end
`endif

  localparam int ByteWidth = $clog2(Bytes + 1);
  localparam int BeatWidth = Beats > 1 ? $clog2(Beats) : 1;

  logic [ByteWidth-1:0] left_q;  // bytes of the held beat still to send
  logic [BeatWidth-1:0] beat_q;
  logic [Bytes*8-1:0]   data_q;
  logic                 in_fire, out_fire;

  assign in_ready_o  = left_q == '0;
  assign in_fire     = in_valid_i & in_ready_o;
  assign out_valid_o = left_q != '0;
  assign out_fire    = out_valid_o & out_ready_i;
  assign out_data_o  = data_q[7:0];
  assign out_last_o  = left_q == ByteWidth'(1) && beat_q == BeatWidth'(Beats - 1);

  always_ff @(posedge clk_i) begin : p_control
    if (!rst_ni) begin
      left_q <= '0;
      beat_q <= '0;
    end else if (in_fire) begin
      left_q <= ByteWidth'(Bytes);
    end else if (out_fire) begin
      left_q <= left_q - 1'b1;
      if (left_q == ByteWidth'(1)) beat_q <= out_last_o ? '0 : beat_q + 1'b1;
    end
  end

  always_ff @(posedge clk_i) begin : p_data
    if (in_fire) data_q <= in_data_i;
    else if (out_fire) data_q <= data_q >> 8;
  end
endmodule
`default_nettype wire
