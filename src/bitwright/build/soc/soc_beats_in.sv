// SPDX-License-Identifier: Apache-2.0
// Words of 64 bits to beats of Width bits, tlast on each Beats-th. A beat lies in a slot of Slot bytes
// (1, 2, 4, or a multiple of 8), low end first; every frame starts with a new word.
`default_nettype none
module soc_beats_in #(
  parameter int Width = 8,
  parameter int Slot  = 1,
  parameter int Beats = 64
) (
  input  logic             clk_i,
  input  logic             rst_ni,
  input  logic             in_valid_i,
  output logic             in_ready_o,
  input  logic [63:0]      in_data_i,
  output logic             out_valid_o,
  input  logic             out_ready_i,
  output logic [Width-1:0] out_data_o,
  output logic             out_last_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Width < 1 || Beats < 1 || Width > 8 * Slot
      || (Slot != 1 && Slot != 2 && Slot != 4 && Slot % 8 != 0)) begin : gen_check
    $error("soc_beats_in: Slot is 1, 2, 4 or a multiple of 8 and holds Width bits");
  end
`endif

  localparam int BeatWidth = Beats > 1 ? $clog2(Beats) : 1;

  logic [BeatWidth-1:0] beat_q;

  assign out_last_o = beat_q == BeatWidth'(Beats - 1);

  always_ff @(posedge clk_i) begin : p_beat
    if (!rst_ni) beat_q <= '0;
    else if (out_valid_o && out_ready_i) beat_q <= out_last_o ? '0 : beat_q + 1'b1;
  end

  if (Slot < 8) begin : gen_narrow
    localparam int Slots = 8 / Slot;
    localparam int IndexWidth = $clog2(Slots);

    logic [IndexWidth-1:0] index_q;
    logic [63:0]           shifted;
    logic                  emptied;

    assign emptied     = out_last_o || index_q == IndexWidth'(Slots - 1);
    assign shifted     = in_data_i >> (index_q * 8 * Slot);
    assign out_data_o  = shifted[Width-1:0];
    assign out_valid_o = in_valid_i;
    assign in_ready_o  = out_ready_i & emptied;

    always_ff @(posedge clk_i) begin : p_index
      if (!rst_ni) index_q <= '0;
      else if (in_valid_i && out_ready_i) index_q <= emptied ? '0 : index_q + 1'b1;
    end

    logic unused;
    assign unused = &{1'b0, shifted};
  end else if (Slot == 8) begin : gen_equal
    assign out_data_o  = in_data_i[Width-1:0];
    assign out_valid_o = in_valid_i;
    assign in_ready_o  = out_ready_i;

    logic unused;
    assign unused = &{1'b0, in_data_i};
  end else begin : gen_wide
    localparam int Words = Slot / 8;
    localparam int IndexWidth = $clog2(Words);

    logic [IndexWidth-1:0]   index_q;
    logic [(Words-1)*64-1:0] held_q;
    logic [Words*64-1:0]     all;
    logic                    whole;

    assign whole       = index_q == IndexWidth'(Words - 1);
    assign all         = {in_data_i, held_q};
    assign out_data_o  = all[Width-1:0];
    assign out_valid_o = in_valid_i & whole;
    assign in_ready_o  = ~whole | out_ready_i;

    always_ff @(posedge clk_i) begin : p_index
      if (!rst_ni) index_q <= '0;
      else if (in_valid_i && in_ready_o) index_q <= whole ? '0 : index_q + 1'b1;
    end

    always_ff @(posedge clk_i) begin : p_held
      for (int k = 0; k < Words - 1; k++) begin
        if (in_valid_i && index_q == IndexWidth'(k)) held_q[64*k+:64] <= in_data_i;
      end
    end

    logic unused;
    assign unused = &{1'b0, all};
  end
endmodule
`default_nettype wire
