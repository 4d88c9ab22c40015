// SPDX-License-Identifier: Apache-2.0
// Blocks that make OutBeats beats of every InBeats beats: one group, chosen by mark_i, is followed,
// and of its outputs the one whose number is pick_o. The harness computes expect_i from the beats of
// that group, which are taken when takes_o is high (in_pos_o: their number in the group). Asserts
// order, no loss, no invention, and that no output comes before the group is whole, or, with Early,
// output k before the input beat that is as far from the group's end as k is from the outputs'.
`default_nettype none
module fv_group #(
  parameter int Width    = 1,
  parameter int InBeats  = 1,
  parameter int OutBeats = 1,
  parameter int Early    = 0,
  localparam int PosWidth = $clog2(InBeats + 1),
  localparam int OutWidth = $clog2(OutBeats + 1)
) (
  input  logic                clk_i,
  input  logic                rst_ni,
  input  logic                mark_i,
  input  logic                in_fire_i,
  input  logic                out_fire_i,
  input  logic [Width-1:0]    out_data_i,
  input  logic [Width-1:0]    expect_i,
  output logic [PosWidth-1:0] in_pos_o,
  output logic                takes_o,
  output logic [OutWidth-1:0] pick_o
);
  localparam int OwedWidth = 6;
  (* anyconst *) logic [OutWidth-1:0] pick;
  logic [PosWidth-1:0]  pos_q;
  logic [OwedWidth-1:0] owed_q, ahead_q;  // outputs of begun groups; those before the followed one
  logic                 follows_q, open_q, first, start;
  logic [OwedWidth-1:0] due;  // outputs of the group that is coming in, which may not come yet

  initial {pos_q, owed_q, follows_q, open_q} = '0;
  assign pick_o   = pick;
  assign in_pos_o = pos_q;
  assign first    = pos_q == '0;
  assign start    = in_fire_i & first & mark_i & ~follows_q;
  assign takes_o  = start | (in_fire_i & open_q);

  always @(posedge clk_i) begin
    if (!rst_ni) begin
      pos_q     <= '0;
      owed_q    <= '0;
      follows_q <= 1'b0;
      open_q    <= 1'b0;
    end else begin
      if (in_fire_i) pos_q <= pos_q == PosWidth'(InBeats - 1) ? '0 : pos_q + 1'b1;
      owed_q <= owed_q + (in_fire_i && first ? OwedWidth'(OutBeats) : '0) - OwedWidth'(out_fire_i);
      if (start) begin
        follows_q <= 1'b1;
        ahead_q   <= owed_q - OwedWidth'(out_fire_i) + OwedWidth'(pick);
      end else if (follows_q && out_fire_i) begin
        ahead_q <= ahead_q - 1'b1;
        if (ahead_q == '0) follows_q <= 1'b0;
      end
      if (takes_o) open_q <= pos_q != PosWidth'(InBeats - 1);
    end
  end

  // The last OutBeats beats of a group give an output each.
  always_comb begin
    due = first ? '0 : OwedWidth'(OutBeats);
    if (Early != 0 && int'(pos_q) > InBeats - OutBeats) due = OwedWidth'(InBeats) - OwedWidth'(pos_q);
  end

  always_comb begin
    assume (pick < OutWidth'(OutBeats));
    if (rst_ni && out_fire_i) begin
      no_invention: assert (owed_q > due);
      if (follows_q && ahead_q == '0) begin
        whole: assert (!open_q || (Early != 0 && int'(pos_q) > InBeats - OutBeats + int'(pick)));
        value: assert (out_data_i == expect_i);
      end
    end
  end
endmodule
`default_nettype wire
