// SPDX-License-Identifier: Apache-2.0
// Beats of Width bits to words of 64 bits: the inverse of soc_beats_in. What a slot or the last word
// of a frame does not need is 0.
`default_nettype none
module soc_beats_out #(
  parameter int Width = 8,
  parameter int Slot  = 1,
  parameter int Beats = 64
) (
  input  logic             clk_i,
  input  logic             rst_ni,
  input  logic             in_valid_i,
  output logic             in_ready_o,
  input  logic [Width-1:0] in_data_i,
  output logic             out_valid_o,
  input  logic             out_ready_i,
  output logic [63:0]      out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Width < 1 || Beats < 1 || Width > 8 * Slot
      || (Slot != 1 && Slot != 2 && Slot != 4 && Slot % 8 != 0)) begin : gen_check
    $error("soc_beats_out: Slot is 1, 2, 4 or a multiple of 8 and holds Width bits");
  end
`endif

  if (Slot < 8) begin : gen_narrow
    localparam int BeatWidth = Beats > 1 ? $clog2(Beats) : 1;
    localparam int Slots = 8 / Slot;
    localparam int IndexWidth = $clog2(Slots);

    logic [BeatWidth-1:0]  beat_q;
    logic [IndexWidth-1:0] index_q;
    logic [63:0]           held_q, placed;
    logic                  last, filled, fire;

    assign last        = beat_q == BeatWidth'(Beats - 1);
    assign filled      = last || index_q == IndexWidth'(Slots - 1);
    assign placed      = held_q | (64'(in_data_i) << (index_q * 8 * Slot));
    assign out_data_o  = placed;
    assign out_valid_o = in_valid_i & filled;
    assign in_ready_o  = ~filled | out_ready_i;
    assign fire        = in_valid_i & in_ready_o;

    always_ff @(posedge clk_i) begin : p_place
      if (!rst_ni) begin
        beat_q  <= '0;
        index_q <= '0;
        held_q  <= '0;
      end else if (fire) begin
        beat_q  <= last ? '0 : beat_q + 1'b1;
        index_q <= filled ? '0 : index_q + 1'b1;
        held_q  <= filled ? '0 : placed;
      end
    end
  end else if (Slot == 8) begin : gen_equal
    assign out_data_o  = 64'(in_data_i);
    assign out_valid_o = in_valid_i;
    assign in_ready_o  = out_ready_i;

    logic unused;
    assign unused = &{1'b0, clk_i, rst_ni};
  end else begin : gen_wide
    localparam int Words = Slot / 8;
    localparam int IndexWidth = $clog2(Words);

    logic [IndexWidth-1:0] index_q;
    logic [Words*64-1:0]   all, shifted;
    logic                  whole;

    assign all         = (Words*64)'(in_data_i);
    assign shifted     = all >> (index_q * 64);
    assign whole       = index_q == IndexWidth'(Words - 1);
    assign out_data_o  = shifted[63:0];
    assign out_valid_o = in_valid_i;
    assign in_ready_o  = out_ready_i & whole;

    always_ff @(posedge clk_i) begin : p_index
      if (!rst_ni) index_q <= '0;
      else if (in_valid_i && out_ready_i) index_q <= whole ? '0 : index_q + 1'b1;
    end

    logic unused;
    assign unused = &{1'b0, shifted};
  end
endmodule
`default_nettype wire
