// SPDX-License-Identifier: Apache-2.0
// What becomes of the sums of a group: each output's sums of all Pixels in one cycle, requantized
// or compared with thresholds, and gathered to words. drain_i in cycle t, the sums of output n in t
// + 1 + n, n below Outputs; the next drain_i at t + max(Outputs, 8) or later. A word of 8-bit
// results holds all Outputs, one of 4-bit results has them in both halves, raw results of 32 bits
// take 4 words, numbered. With fast_i (two PostLanes) sums of outputs 2n and 2n + 1 come in t + 1 +
// n, the next drain_i after Outputs / 2 cycles or more. Words of 8 and 4 bits are there in t + 12 +
// Outputs (or Outputs / 2), raw word j of 4 in t + 12 + (j + 1) * Outputs / 4. info_i belongs to
// drain_i and comes with the words. Values of the instruction must hold from t + 1 to t + 8 +
// Outputs; what is late_ from t + 9 to t + 11 + Outputs.
`default_nettype none
module engine_drain #(
  parameter int Pixels    = 4,
  parameter int Outputs   = 8,
  parameter int Rows      = 512,
  parameter int InfoWidth = 16,
  parameter int PostLanes = 1,
  localparam int Width    = 8 * Outputs,
  localparam int RowWidth = $clog2(Rows)
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   drain_i,
  input  logic [PostLanes*Pixels*32-1:0] sums_i,
  input  logic [RowWidth-1:0]    row_i,      // of the group's first parameters
  input  logic [InfoWidth-1:0]   info_i,
  input  logic                   threshold_i,
  input  logic [2:0]             rounding_i,
  input  logic [5:0]             shift_i,
  input  logic [15:0]            low_i,
  input  logic [15:0]            high_i,
  input  logic [7:0]             base_i,
  input  logic                   step_i,
  input  logic                   lookup_i,
  input  logic                   fast_i,     // two outputs a cycle
  input  logic                   late_fast_i,
  input  logic [1:0]             late_result_i,  // 0: 8 bits, 1: 4, 2: raw
  input  logic                   late_lookup_i,
  output logic                   read_o,     // parameters, which come 3 cycles later
  output logic [RowWidth-1:0]    row_o,
  output logic [2:0]             slot_o,
  input  logic                   flip_i,     // a cycle before the others
  input  logic [511:0]           row_data_i,
  input  logic [127:0]           records_i,
  output logic                   look_o,     // tables, 2 cycles later, too
  output logic [$clog2(Outputs)-1:0] table_o,
  output logic [Pixels*8-1:0]    bytes_o,
  input  logic [Pixels*8-1:0]    bytes_i,
  output logic                   begin_o,    // 8 cycles behind drain_i, if bit 0 of info_i is set
  output logic                   valid_o,
  output logic [1:0]             number_o,   // of a raw word
  output logic [InfoWidth-1:0]   info_o,
  output logic [Pixels*Width-1:0] words_o
);
  localparam int Lane       = 6;  // latency of the post lanes
  localparam int CountWidth = $clog2(Outputs);
  localparam int Quarter    = Outputs / 4;
  localparam logic [CountWidth-1:0] Half = CountWidth'(Outputs / 2 - 1);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Outputs < 8 || (Outputs & (Outputs - 1)) != 0) begin : gen_check
    $error("engine_drain: Outputs must be a power of two, at least 8");
  end
`endif

  // Channels, one a cycle, or two: which parameters, said a cycle ahead, since the memory has
  // registers of its own for it. A row is one channel's thresholds, or the records of 8.
  logic                  active_q, next_row;
  logic [CountWidth-1:0] count_q;
  logic [2:0]            slot_q;
  logic [RowWidth-1:0]   row_q;
  assign next_row = threshold_i || slot_q == (fast_i ? 3'd6 : 3'd7);
  assign read_o   = drain_i || (active_q && count_q != (fast_i ? Half : '1));
  assign slot_o   = drain_i ? '0 : slot_q + (fast_i ? 3'd2 : 3'd1);
  assign row_o    = drain_i ? row_i : row_q + RowWidth'(next_row);

  always_ff @(posedge clk_i) begin : p_count
    if (!rst_ni) active_q <= 1'b0;
    else active_q <= read_o;
    count_q <= drain_i ? '0 : count_q + 1'b1;
    slot_q  <= slot_o;
    row_q   <= row_o;
  end

  // Lanes.
  logic [PostLanes*Pixels*32-1:0] fresh, sums, early;
  logic [PostLanes*Pixels*8-1:0]  quant;
  logic [Pixels*32-1:0] raw;
  logic [Pixels*8-1:0]  level, plain, code, second;
  logic [2*46-1:0]      offset_q;

  engine_delay #(.Width(PostLanes * Pixels * 32), .Cycles(1)) i_fresh (
    .clk_i, .data_i(sums_i), .data_o(fresh)
  );
  engine_delay #(.Width(PostLanes * Pixels * 32), .Cycles(1)) i_sums (
    .clk_i, .data_i(fresh), .data_o(sums)
  );

  always_ff @(posedge clk_i) begin : p_offset
    offset_q <= {records_i[127:82], records_i[63:18]};
  end

  for (genvar n = 0; n < PostLanes * Pixels; n++) begin : gen_requant
    engine_requant i_requant (
      .clk_i, .x_i(sums[n*32 +: 32]), .mul_i(records_i[n/Pixels*64 +: 18]),
      .offset_i(offset_q[n/Pixels*46 +: 46]), .shift_i, .rounding_i, .low_i, .high_i,
      .code_o(quant[n*8 +: 8]), .raw_o(early[n*32 +: 32])
    );
  end
  for (genvar p = 0; p < Pixels; p++) begin : gen_lane
    assign bytes_o[p*8 +: 8] = threshold_i ? level[p*8 +: 8] : quant[p*8 +: 8];
    engine_threshold i_threshold (
      .clk_i, .x_i(fresh[p*32 +: 32]), .flip_i, .row_i(row_data_i), .base_i, .step_i,
      .code_o(level[p*8 +: 8])
    );
  end

  engine_delay #(.Width(Pixels * 40), .Cycles(2)) i_plain (
    .clk_i, .data_i({early[0 +: Pixels*32], bytes_o}), .data_o({raw, plain})
  );
  assign code = late_lookup_i ? bytes_i : plain;

  if (PostLanes == 2) begin : gen_second
    engine_delay #(.Width(Pixels * 8), .Cycles(2)) i_second (
      .clk_i, .data_i(quant[Pixels*8 +: Pixels*8]), .data_o(second)
    );
  end else begin : gen_single
    assign second = '0;
  end

  // Control beside the lanes.
  logic [Lane+3:0]       active_line_q;
  logic [CountWidth-1:0] count;
  logic [InfoWidth-1:0]  info_1, info_2_q, info_3_q;
  logic                  take, last;

  engine_delay #(.Width(InfoWidth), .Cycles(Lane + 2)) i_info (
    .clk_i, .data_i(info_i), .data_o(info_1)
  );
  engine_delay #(.Width(CountWidth), .Cycles(Lane + 2)) i_table (
    .clk_i, .data_i(count_q), .data_o(table_o)
  );
  engine_delay #(.Width(CountWidth), .Cycles(2)) i_count (
    .clk_i, .data_i(table_o), .data_o(count)
  );
  assign look_o = active_line_q[Lane+1] & lookup_i;
  assign take   = active_line_q[Lane+3];
  assign last   = late_result_i == 2'd2 ? (int'(count) + 1) % Quarter == 0
                : count == (late_fast_i ? Half : '1);

  logic begun, begun_late;
  assign begun = active_line_q[Lane] && (!active_line_q[Lane+1] || table_o == (fast_i ? Half : '1));
  engine_strobe #(.Cycles(2)) i_begun (.clk_i, .rst_ni, .data_i(begun), .data_o(begun_late));
  assign begin_o = begun & info_1[0];

  always_ff @(posedge clk_i) begin : p_control
    if (!rst_ni) begin
      active_line_q <= '0;
      valid_o       <= 1'b0;
    end else begin
      active_line_q <= {active_line_q[Lane+2:0], active_q};
      valid_o       <= take & last;
    end
    if (begun) info_2_q <= info_1;
    if (begun_late) info_3_q <= info_2_q;
    if (take && last) info_o <= info_3_q;
    if (take && last) number_o <= late_result_i == 2'd2 ? 2'(int'(count) / Quarter) : 2'd0;
  end

  for (genvar p = 0; p < Pixels; p++) begin : gen_gather
    logic [Width-1:0] word_q, next;
    logic [Width-1:0] eight, four;
    assign eight = late_fast_i ? {second[p*8 +: 8], code[p*8 +: 8], word_q[Width-1:16]}
                               : {code[p*8 +: 8], word_q[Width-1:8]};
    assign four  = late_fast_i ? {2{second[p*8 +: 4], code[p*8 +: 4], word_q[Width-1:Width/2+8]}}
                               : {2{code[p*8 +: 4], word_q[Width-1:Width/2+4]}};
    assign next  = late_result_i == 2'd0 ? eight
                 : late_result_i == 2'd1 ? four : Width'({raw[p*32 +: 32], word_q} >> 32);
    always_ff @(posedge clk_i) begin : p_word
      if (take) word_q <= next;
    end
    assign words_o[p*Width +: Width] = word_q;
  end

  logic unused;
  assign unused = ^{early, second, offset_q, records_i, fast_i, late_fast_i};
endmodule
`default_nettype wire
