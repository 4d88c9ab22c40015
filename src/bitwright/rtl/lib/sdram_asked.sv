// SPDX-License-Identifier: Apache-2.0
// What an SDRAM's port has been asked: a request of each kind, and the one that is served next;
// where both kinds wait, in turn, a read first behind fresh_i. Places count words: {row, bank,
// column}; on the way the bank is turned by the row's lowest bits, so that what lies a power of two
// apart is seldom in rows of one bank. A request is there 2 cycles behind its handshake.
`default_nettype none
module sdram_asked #(
  parameter int PlaceWidth = 22,
  parameter int ColWords   = 7,
  parameter int IdWidth    = 3
) (
  input  logic                  clk_i,
  input  logic                  power_ni,
  input  logic                  rst_ni,
  input  logic                  ready_i,
  input  logic                  fresh_i,
  input  logic                  ar_valid_i,
  output logic                  ar_ready_o,
  input  logic [PlaceWidth-1:0] ar_place_i,
  input  logic [7:0]            ar_len_i,
  input  logic [IdWidth-1:0]    ar_id_i,
  input  logic                  aw_valid_i,
  output logic                  aw_ready_o,
  input  logic [PlaceWidth-1:0] aw_place_i,
  input  logic [7:0]            aw_len_i,
  input  logic [IdWidth-1:0]    aw_id_i,
  output logic                  next_valid_o,
  input  logic                  give_i,
  output logic                  next_write_o,
  output logic [IdWidth-1:0]    next_id_o,
  output logic [7:0]            next_len_o,
  output logic [PlaceWidth-1:0] next_place_o
);
  localparam int Width = IdWidth + 8 + PlaceWidth;

  logic             ar_q, aw_q, free, pick_write, wrote_q;
  logic [Width-1:0] ar_ask_q, aw_ask_q, next_q;

  function automatic logic [PlaceWidth-1:0] turned(input logic [PlaceWidth-1:0] words);
    turned = words ^ PlaceWidth'({words[ColWords+3:ColWords+2], {ColWords{1'b0}}});
  endfunction

  assign ar_ready_o = ~ar_q & ready_i;
  assign aw_ready_o = ~aw_q & ready_i;
  assign free       = ~next_valid_o | give_i;
  assign pick_write = aw_q & ~(ar_q & wrote_q);
  assign {next_id_o, next_len_o, next_place_o} = next_q;

  always_ff @(posedge clk_i) begin : p_valid
    if (!rst_ni) begin
      ar_q         <= 1'b0;
      aw_q         <= 1'b0;
      next_valid_o <= 1'b0;
    end else begin
      if (ar_ready_o) ar_q <= ar_valid_i;
      else if (free && !pick_write) ar_q <= 1'b0;
      if (aw_ready_o) aw_q <= aw_valid_i;
      else if (free && pick_write) aw_q <= 1'b0;
      if (free) next_valid_o <= aw_q | ar_q;
    end
    if (!power_ni || fresh_i) wrote_q <= 1'b0;
    else if (free && (aw_q || ar_q)) wrote_q <= pick_write;
  end

  always_ff @(posedge clk_i) begin : p_ask
    if (ar_ready_o) ar_ask_q <= {ar_id_i, ar_len_i, turned(ar_place_i)};
    if (aw_ready_o) aw_ask_q <= {aw_id_i, aw_len_i, turned(aw_place_i)};
    if (free) next_q <= pick_write ? aw_ask_q : ar_ask_q;
    if (free) next_write_o <= pick_write;
  end
endmodule
`default_nettype wire
