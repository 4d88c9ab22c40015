// SPDX-License-Identifier: Apache-2.0
// Writes the words of a group to the features: pixel p, in rows of 2^patch_i, goes (p mod
// 2^patch_i) pixel steps and (p / 2^patch_i) row steps behind the place, if its column is below
// columns_i and its row below rows_i; number_i planes on, too. Words that are written must lie in
// different banks (asserted). half_i: 2 writes all of a word, 0 and 1 its lower and upper half. A
// word in cycle t is written in t + 2, or t + 3 if that is a cycle with slot_i; words come at least
// 2 cycles apart, slot_i every second.
`default_nettype none
module engine_writer #(
  parameter int Pixels    = 4,
  parameter int Lanes     = 8,
  parameter int AddrWidth = 15,
  localparam int Width     = 8 * Lanes,
  localparam int BankWidth = $clog2(Pixels),
  localparam int RowWidth  = AddrWidth - BankWidth
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,
  input  logic                       slot_i,
  input  logic                       valid_i,
  input  logic [AddrWidth-1:0]       place_i,
  input  logic [1:0]                 number_i,
  input  logic [1:0]                 half_i,
  input  logic [Pixels*Width-1:0]    words_i,
  input  logic [3:0]                 patch_i,
  input  logic [7:0]                 columns_i,
  input  logic [7:0]                 rows_i,
  input  logic [AddrWidth-1:0]       pixel_step_i,
  input  logic [AddrWidth-1:0]       row_step_i,
  input  logic [AddrWidth-1:0]       plane_i,
  output logic                       valid_o,
  output logic [Pixels-1:0]          banks_o,
  output logic [Pixels*RowWidth-1:0] rows_o,
  output logic [Lanes-1:0]           strobes_o,
  output logic [Pixels*Width-1:0]    words_o
);
  // Cycle 1: where every pixel goes.
  logic [Pixels*AddrWidth-1:0] addr, addr_q;
  logic [Pixels-1:0]           kept, kept_q;
  logic [Pixels*Width-1:0]     words_q;
  logic [1:0]                  half_q;
  logic                        valid_q;

  logic [AddrWidth-1:0] place;
  assign place = place_i + (plane_i & {AddrWidth{number_i[0]}})
               + ((plane_i << 1) & {AddrWidth{number_i[1]}});

  for (genvar p = 0; p < Pixels; p++) begin : gen_pixel
    logic [BankWidth-1:0] px, py;
    assign px = BankWidth'(p) & ~({BankWidth{1'b1}} << patch_i);
    assign py = BankWidth'(p) >> patch_i;
    assign kept[p] = 8'(px) < columns_i && 8'(py) < rows_i;

    engine_offset #(.Bits(BankWidth), .Number(p), .Width(AddrWidth)) i_address (
      .patch_i, .base_i(place), .pixel_step_i, .row_step_i,
      .place_o(addr[p*AddrWidth +: AddrWidth])
    );
  end

  always_ff @(posedge clk_i) begin : p_pixel
    addr_q  <= addr;
    kept_q  <= kept;
    words_q <= words_i;
    half_q  <= half_i;
    if (!rst_ni) valid_q <= 1'b0;
    else valid_q <= valid_i;
  end

  // Cycle 2: what every bank gets; held until the slot.
  logic [Pixels-1:0]          banks;
  logic [Pixels*RowWidth-1:0] rows;
  logic [Pixels*Width-1:0]    words;
  logic                       pending_q;

  always_comb begin : p_bank
    banks = '0;
    rows  = '0;
    words = '0;
    for (int b = 0; b < Pixels; b++) begin
      for (int p = 0; p < Pixels; p++) begin
        if (kept_q[p] && addr_q[p*AddrWidth +: BankWidth] == BankWidth'(b)) begin
          banks[b] = 1'b1;
          rows[b*RowWidth +: RowWidth] =
            rows[b*RowWidth +: RowWidth] | addr_q[p*AddrWidth+BankWidth +: RowWidth];
          words[b*Width +: Width] = words[b*Width +: Width] | words_q[p*Width +: Width];
        end
      end
    end
  end

  always_ff @(posedge clk_i) begin : p_write
    if (!rst_ni) pending_q <= 1'b0;
    else pending_q <= valid_q | (pending_q & ~slot_i);
    if (valid_q) begin
      banks_o   <= banks;
      rows_o    <= rows;
      words_o   <= words;
      strobes_o <= {{(Lanes / 2) {half_q != 2'd0}}, {(Lanes / 2) {half_q != 2'd1}}};
    end
  end
  assign valid_o = pending_q & slot_i;

`ifdef BITWRIGHT_CHECKS
  written: assert property (@(posedge clk_i) disable iff (!rst_ni)
    !(valid_q && pending_q && !slot_i));
  for (genvar p = 1; p < Pixels; p++) begin : gen_assert
    for (genvar n = 0; n < p; n++) begin : gen_pair
      own_bank: assert property (@(posedge clk_i) disable iff (!rst_ni)
        !(valid_q && kept_q[p] && kept_q[n] &&
          addr_q[p*AddrWidth +: BankWidth] == addr_q[n*AddrWidth +: BankWidth]));
    end
  end
`endif
endmodule
`default_nettype wire
