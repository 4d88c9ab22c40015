// SPDX-License-Identifier: Apache-2.0
// Blocks that copy beats: of every frame of InBeats beats they make one of OutBeats, and output beat
// out_pos_o is the frame's input beat source_i if copies_i, else made_i. One input beat of one frame,
// whose place is unknown and constant, is followed. Asserts value, order, no loss, no invention (no
// copy of a beat that has not been taken), and that inputs are at most two frames ahead, and outputs (borders) one.
`default_nettype none
module fv_route #(
  parameter int Width    = 1,
  parameter int InBeats  = 1,
  parameter int OutBeats = 1,
  localparam int InPos  = $clog2(InBeats + 1),
  localparam int OutPos = $clog2(OutBeats + 1)
) (
  input  logic              clk_i,
  input  logic              rst_ni,
  input  logic              mark_i,
  input  logic              in_fire_i,
  input  logic [Width-1:0]  in_data_i,
  input  logic              out_fire_i,
  input  logic [Width-1:0]  out_data_i,
  output logic [OutPos-1:0] out_pos_o,
  input  logic              copies_i,
  input  logic [InPos-1:0]  source_i,
  input  logic [Width-1:0]  made_i
);
  (* anyconst *) logic [InPos-1:0] place;
  logic [InPos-1:0]  in_q;
  logic [OutPos-1:0] out_q;
  logic [2:0]        in_frame_q, out_frame_q, frame_q, lead;
  logic              follows_q, out_last;
  logic [Width-1:0]  data_q;

  initial {in_q, out_q, in_frame_q, out_frame_q, follows_q} = '0;
  assign out_pos_o = out_q;
  assign out_last  = out_q == OutPos'(OutBeats - 1);
  assign lead      = in_frame_q - out_frame_q;

  always @(posedge clk_i) begin
    if (!rst_ni) begin
      in_q        <= '0;
      out_q       <= '0;
      in_frame_q  <= '0;
      out_frame_q <= '0;
      follows_q   <= 1'b0;
    end else begin
      if (in_fire_i) begin
        in_q <= in_q == InPos'(InBeats - 1) ? '0 : in_q + 1'b1;
        if (in_q == InPos'(InBeats - 1)) in_frame_q <= in_frame_q + 1'b1;
      end
      if (out_fire_i) begin
        out_q <= out_last ? '0 : out_q + 1'b1;
        if (out_last) out_frame_q <= out_frame_q + 1'b1;
      end
      if (!follows_q) begin
        if (mark_i && in_fire_i && in_q == place) begin
          follows_q <= 1'b1;
          frame_q   <= in_frame_q;
          data_q    <= in_data_i;
        end
      end else if (out_fire_i && out_last && out_frame_q == frame_q) begin
        follows_q <= 1'b0;
      end
    end
  end

  always_comb if (rst_ni) begin
    near: assert (lead <= 3'd2 || lead == 3'd7);
    if (out_fire_i && copies_i) begin
      no_invention: assert (lead == 3'd1 || lead == 3'd2 || (lead == 3'd0 && source_i < in_q));
      if (follows_q && out_frame_q == frame_q && source_i == place) begin
        value: assert (out_data_i == data_q);
      end
    end
    if (out_fire_i && !copies_i) made: assert (out_data_i == made_i);
  end
endmodule
`default_nettype wire
