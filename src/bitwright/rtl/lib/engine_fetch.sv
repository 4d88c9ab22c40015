// SPDX-License-Identifier: Apache-2.0
// The fetcher: reads the program from start_i on, from base_i (a multiple of 4 KiB), in bursts of
// Burst words, as far ahead as its FIFO of Places words has room, and deals instructions to the
// queues of the units, one in 256 / Width cycles. HALT, an opcode that is none (bad_o), or words
// with an error end it: halted_o from when all that was asked has come, and what stood before is
// dealt. It may read up to Places words behind HALT. What was dealt is the program's beginning,
// which waits for no token that is not given in it.
`default_nettype none
module engine_fetch #(
  parameter int Width     = 64,
  parameter int AddrWidth = 32,
  parameter int Burst     = 16,
  parameter int Places    = 32
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic                 start_i,
  input  logic [AddrWidth-1:0] base_i,
  input  logic                 run_i,     // from the cycle behind start_i to the end
  output logic                 halted_o,
  output logic                 bad_o,
  output logic [7:0]           code_o,
  output logic                 ar_valid_o,
  input  logic                 ar_ready_i,
  output logic [AddrWidth-1:0] ar_addr_o,
  output logic [7:0]           ar_len_o,
  input  logic                 r_valid_i,
  input  logic [Width-1:0]     r_data_i,
  input  logic                 r_error_i, // with its word, which is dealt 3 cycles later or more
  output logic [2:0]           valid_o,   // units L, X, S
  input  logic [2:0]           ready_i,
  output logic [255:0]         word_o,
  output logic                 dealt_o
);
  localparam int Words     = 256 / Width;
  localparam int CountWidth = $clog2(Words);
  localparam int FreeWidth = $clog2(Places + 1);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Words < 2 || Words * Width != 256 || Burst % Words != 0 || Places < Burst) begin : gen_check
    $error("engine_fetch: Width must divide 256, and Burst hold whole instructions");
  end
`endif

  // Requests.
  logic                 over_q, request, beat_valid, beat_ready, taken, room;
  logic [FreeWidth-1:0] free_q;
  logic [AddrWidth-1:0] next_q;
  logic [Width-1:0]     beat;
  assign request  = run_i & ~over_q & (~ar_valid_o | ar_ready_i) & (free_q >= FreeWidth'(Burst));
  assign taken    = beat_valid & beat_ready;
  assign halted_o = run_i & over_q & ~ar_valid_o & (free_q == FreeWidth'(Places)) & (valid_o == '0);
  assign ar_len_o = 8'(Burst - 1);

  always_ff @(posedge clk_i) begin : p_request
    if (!rst_ni) begin
      ar_valid_o <= 1'b0;
      free_q     <= FreeWidth'(Places);
    end else begin
      if (request) ar_valid_o <= 1'b1;
      else if (ar_ready_i) ar_valid_o <= 1'b0;
      free_q <= free_q - (request ? FreeWidth'(Burst) : '0) + FreeWidth'(taken);
    end
    if (request) ar_addr_o <= next_q;
    if (start_i) next_q <= base_i;
    else if (request) next_q <= next_q + AddrWidth'(Burst * Width / 8);
  end

  stream_fifo #(.Width(Width), .Depth(Places), .RamStyle(2)) i_fifo (
    .clk_i, .rst_ni, .in_valid_i(r_valid_i), .in_ready_o(room), .in_data_i(r_data_i),
    .out_valid_o(beat_valid), .out_ready_i(beat_ready), .out_data_o(beat)
  );

  // Instructions.
  logic [CountWidth-1:0] count_q;
  logic                  full_q, deal, is_halt, is_bad;
  logic [3:0]            opcode;
  assign opcode     = word_o[3:0];
  assign is_halt    = full_q & (opcode == 4'd7);
  assign is_bad     = full_q & (opcode == 4'd0 || opcode == 4'd6 || opcode > 4'd7);
  assign beat_ready = over_q | ~full_q | deal;

  always_comb begin : p_unit
    valid_o = '0;
    case (opcode)
      4'd3: valid_o[0] = full_q;
      4'd1, 4'd2, 4'd5: valid_o[1] = full_q;
      4'd4: valid_o[2] = full_q;
      default: valid_o = '0;
    endcase
  end
  assign deal    = (valid_o & ready_i) != '0;
  assign dealt_o = deal;

  always_ff @(posedge clk_i) begin : p_word
    if (!rst_ni || start_i) begin
      count_q <= '0;
      full_q  <= 1'b0;
      over_q  <= 1'b0;
    end else if (!over_q) begin
      if (taken) count_q <= count_q + 1'b1;
      full_q <= (full_q & ~deal) | (taken & (count_q == '1));
      over_q <= is_halt | is_bad | r_error_i;
    end else begin
      full_q <= full_q & ~deal;  // a queue that has no room yet still gets what stands before it
    end
    if (taken && !over_q) word_o <= {beat, word_o[255:Width]};
    if (start_i) begin
      bad_o <= 1'b0;
    end else if (!over_q && (is_halt || is_bad)) begin
      bad_o  <= is_bad;
      code_o <= word_o[23:16];
    end
  end

  logic unused;
  assign unused = room;

`ifdef BITWRIGHT_CHECKS
  always_room: assert property (@(posedge clk_i) disable iff (!rst_ni) r_valid_i |-> room);
`endif
endmodule
`default_nettype wire
