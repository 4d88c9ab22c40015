// SPDX-License-Identifier: Apache-2.0
// The host's way to an engine and its memory: frames of 1 + Burst beats in, 2 + Burst beats out,
// one answer a frame, in order. In: beat 0 is {word address 32, 0 8, words 8, tag 8, operation 8},
// then words. Operations: 0 status, 1 write, 2 read, 3 start. Out: beat 0 is {0 32, tag of the last
// start 8, error 8, code 8, state 8}, beat 1 the cycles of the last run, then words read, or 0.
// State: 0 running, 1 done, 2 refused since a program runs, 3 refused since it lies outside of
// MemoryWords or is too long, 4 no such operation, 5 the memory is powered up. A start with the tag
// of the last one changes nothing, so every frame may be sent again. The memory is the engine's
// while it runs (mine_o low). Before a start the memory's refresh is brought to its beginning
// (sync_o, synced_i), so a run takes as many cycles as the next one.
`default_nettype none
module engine_console #(
  parameter int Burst       = 14,
  parameter int MemoryWords = 4194304
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        in_valid_i,
  output logic        in_ready_o,
  input  logic [63:0] in_data_i,
  output logic        out_valid_o,
  input  logic        out_ready_i,
  output logic [63:0] out_data_o,
  output logic        start_o,
  input  logic        done_i,
  input  logic [7:0]  code_i,
  input  logic [3:0]  error_i,
  input  logic [47:0] cycles_i,
  output logic        sync_o,
  input  logic        synced_i,
  input  logic        memory_ready_i,
  output logic        mine_o,
  output logic [31:0] addr_o,      // bytes, of reads and writes; bursts of one word
  output logic        ar_valid_o,
  input  logic        ar_ready_i,
  input  logic        r_valid_i,
  input  logic [63:0] r_data_i,
  output logic        aw_valid_o,
  input  logic        aw_ready_i,
  output logic        w_valid_o,
  input  logic        w_ready_i,
  output logic [63:0] w_data_o,
  input  logic        b_valid_i
);
  localparam logic [7:0] WRITE = 8'd1, READ = 8'd2, START = 8'd3;
  localparam int PlaceWidth = $clog2(Burst + 1);
  localparam logic [PlaceWidth-1:0] LAST = PlaceWidth'(Burst - 1);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Burst < 2 || Burst > 128) begin : gen_check
    $error("engine_console: Burst must be 2 to 128");
  end
`endif

  typedef enum logic [3:0] {
    HEAD, TAKE, ASK_WRITE, SEND, ANSWER, SYNC, STATE, CYCLES, ASK_READ, WAIT_READ, GIVE
  } state_t;

  state_t                state_q;
  logic [PlaceWidth-1:0] place_q;
  logic [7:0]            op_q, tag_q, words_q, last_tag_q;
  logic [31:0]           address_q;
  logic [63:0]           data_q;
  logic                  running_q, started_q, busy_q, outside_q, unknown_q, accepted, fits, last;
  logic                  more;     // words behind this place
  logic                  running;  // from the start on
  logic [7:0]            op, words;
  logic [32:0]           reach;
  logic                  head, other_start;

  assign running     = running_q | start_o;
  assign op          = in_data_i[7:0];
  assign words       = in_data_i[23:16];
  assign reach       = {1'b0, in_data_i[63:32]} + 33'(words);
  assign fits      = words <= 8'(Burst) && reach <= 33'(MemoryWords);
  assign head        = state_q == HEAD && in_valid_i;
  assign other_start = op != START || !started_q || in_data_i[15:8] != last_tag_q;
  assign accepted    = !busy_q && !outside_q && 8'(place_q) < words_q;
  assign more        = !busy_q && !outside_q && 8'(place_q) + 8'd1 < words_q;
  assign last        = place_q == LAST;

  assign in_ready_o  = state_q == HEAD
                       || (state_q == TAKE && !(op_q == WRITE && accepted)) || state_q == ANSWER;
  assign out_valid_o = state_q == STATE || state_q == CYCLES || state_q == GIVE;
  assign mine_o      = ~running_q;
  assign addr_o      = {address_q[28:0], 3'b000};
  assign ar_valid_o  = state_q == ASK_READ;
  assign aw_valid_o  = state_q == ASK_WRITE;
  assign w_valid_o   = state_q == SEND;
  assign w_data_o    = in_data_i;

  always_comb begin : p_out
    case (state_q)
      STATE:   out_data_o = {32'd0, last_tag_q, 4'd0, error_i, code_i, 2'd0, memory_ready_i,
                             unknown_q, outside_q, busy_q, done_i & ~running, running};
      CYCLES:  out_data_o = {16'd0, cycles_i};
      default: out_data_o = data_q;
    endcase
  end

  // A word is taken from the frame once the memory has it.
  always_ff @(posedge clk_i) begin : p_state
    if (!rst_ni) begin
      state_q   <= HEAD;
      sync_o    <= 1'b0;
      start_o   <= 1'b0;
      running_q <= 1'b0;
      started_q <= 1'b0;
    end else begin
      sync_o    <= 1'b0;
      start_o   <= state_q == SYNC && synced_i;
      running_q <= start_o || (running_q && !done_i);
      case (state_q)
        HEAD: if (in_valid_i) state_q <= TAKE;
        TAKE: if (in_valid_i) begin
          if (op_q == WRITE && accepted) begin
            state_q <= ASK_WRITE;
          end else if (last) begin
            state_q <= op_q == START && words_q != '0 ? SYNC : STATE;
            sync_o  <= op_q == START && words_q != '0;
          end
        end
        ASK_WRITE: if (aw_ready_i) state_q <= SEND;
        SEND:      if (w_ready_i) state_q <= WAIT_READ;
        WAIT_READ: begin
          if (op_q == WRITE && b_valid_i) state_q <= ANSWER;
          if (op_q == READ && r_valid_i) state_q <= GIVE;
        end
        ANSWER: state_q <= last ? STATE : TAKE;
        SYNC: if (synced_i) begin
          state_q   <= STATE;
          started_q <= 1'b1;
        end
        STATE:    if (out_ready_i) state_q <= CYCLES;
        CYCLES:   if (out_ready_i) state_q <= op_q == READ && accepted ? ASK_READ : GIVE;
        ASK_READ: if (ar_ready_i) state_q <= WAIT_READ;
        default: if (out_ready_i) begin
          if (last) state_q <= HEAD;
          else state_q <= op_q == READ && more ? ASK_READ : GIVE;
        end
      endcase
    end
  end

  logic took, gave;
  assign took = (state_q == TAKE || state_q == ANSWER) && in_valid_i && in_ready_o;
  assign gave = state_q == GIVE && out_ready_i;

  always_ff @(posedge clk_i) begin : p_frame
    if (head) begin
      op_q      <= op;
      tag_q     <= in_data_i[15:8];
      busy_q    <= running && op != '0 && other_start;
      outside_q <= (op == READ || op == WRITE) && !fits;
      unknown_q <= op > START;
      address_q <= in_data_i[63:32];
      // Of a start: whether it is to be done.
      words_q   <= op == START ? 8'(!running && other_start) : words;
    end else if ((took && op_q == WRITE) || gave) begin
      address_q <= address_q + 32'd1;
    end
    if (head || (took && last)) place_q <= '0;
    else if (took || gave) place_q <= place_q + 1'b1;
    if (state_q == SYNC && synced_i) last_tag_q <= tag_q;
    if (state_q == CYCLES) data_q <= '0;
    else if (state_q == WAIT_READ) data_q <= r_data_i;
    else if (gave) data_q <= '0;
  end

  logic unused;
  assign unused = ^{address_q[31:29], in_data_i[31:24]};
endmodule
`default_nettype wire
