// SPDX-License-Identifier: Apache-2.0
// Bytes to AXI-Stream beats of Bytes bytes, the first byte lowest; tlast on each Beats-th beat.
// One byte a clock while no beat waits; a beat is held until it is taken.
`default_nettype none
module shell_beats_in #(
  parameter int Bytes = 1,
  parameter int Beats = 64
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic               in_valid_i,
  output logic               in_ready_o,
  input  logic [7:0]         in_data_i,
  output logic               out_valid_o,
  input  logic               out_ready_i,
  output logic [Bytes*8-1:0] out_data_o,
  output logic               out_last_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Bytes < 1 || Beats < 1) begin : gen_check
    $error("shell_beats_in: Bytes and Beats must be at least 1");
  end
`endif

  localparam int ByteWidth = Bytes > 1 ? $clog2(Bytes) : 1;
  localparam int BeatWidth = Beats > 1 ? $clog2(Beats) : 1;

  logic [ByteWidth-1:0] byte_q;
  logic [BeatWidth-1:0] beat_q;
  logic                 in_fire, full_byte;

  assign in_ready_o = ~out_valid_o | out_ready_i;
  assign in_fire    = in_valid_i & in_ready_o;
  assign full_byte  = byte_q == ByteWidth'(Bytes - 1);
  assign out_last_o = beat_q == BeatWidth'(Beats - 1);

  always_ff @(posedge clk_i) begin : p_control
    if (!rst_ni) begin
      byte_q      <= '0;
      beat_q      <= '0;
      out_valid_o <= 1'b0;
    end else begin
      if (in_fire) byte_q <= full_byte ? '0 : byte_q + 1'b1;
      if (in_fire && full_byte) out_valid_o <= 1'b1;
      else if (out_ready_i) out_valid_o <= 1'b0;
      if (out_valid_o && out_ready_i) beat_q <= out_last_o ? '0 : beat_q + 1'b1;
    end
  end

  if (Bytes == 1) begin : gen_single
    always_ff @(posedge clk_i) begin : p_data
      if (in_fire) out_data_o <= in_data_i;
    end
  end else begin : gen_shift
    always_ff @(posedge clk_i) begin : p_data
      if (in_fire) out_data_o <= {in_data_i, out_data_o[Bytes*8-1:8]};
    end
  end
endmodule
`default_nettype wire
