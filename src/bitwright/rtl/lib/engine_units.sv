// SPDX-License-Identifier: Apache-2.0
// The three units of the engine behind their queues, with tokens and memories. Cycles with even_i
// belong to the results of X in the features, the others to S if it reads, else to L. done_o and
// go_o: units L, X, S take an instruction with tokens, have completed one; spent_o: X took one
// without (INPUT, OUTPUT).
`default_nettype none
module engine_units #(
  parameter int Pixels        = 4,
  parameter int Lanes         = 8,
  parameter int Dsps          = 8,
  parameter bit Nibbles       = 1'b1,
  parameter bit Paired        = 1'b0,
  parameter int FeatureWords  = 32768,
  parameter int WeightRows    = 1024,
  parameter int ParameterRows = 512,
  parameter int PostLanes     = 1,
  parameter int Queue         = 16,
  parameter int AddrWidth     = 32,
  localparam int Width        = 8 * Lanes
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic                 clear_i,    // tokens
  input  logic                 even_i,
  input  logic [AddrWidth-1:0] base_i,
  input  logic [2:0]           valid_i,    // instructions
  output logic [2:0]           ready_o,
  input  logic [255:0]         word_i,
  output logic [2:0]           go_o,
  output logic [2:0]           done_o,
  output logic                 spent_o,
  output logic                 ar_valid_o,
  input  logic                 ar_ready_i,
  output logic [AddrWidth-1:0] ar_addr_o,
  output logic [7:0]           ar_len_o,
  input  logic                 r_valid_i,
  input  logic [Width-1:0]     r_data_i,
  output logic                 aw_valid_o,
  input  logic                 aw_ready_i,
  output logic [AddrWidth-1:0] aw_addr_o,
  output logic [7:0]           aw_len_o,
  output logic [1:0]           aw_id_o,
  output logic                 w_valid_o,
  input  logic                 w_ready_i,
  output logic [Width-1:0]     w_data_o,
  output logic                 w_last_o,
  input  logic                 b_valid_i,
  input  logic [1:0]           b_id_i
);
  // Words that L may have on their way. Wide engines stand behind a memory with a long latency; on
  // an SDRAM more than these make reads go before writes for too long.
  localparam int LoadPlaces   = Lanes > 8 ? 256 : 64;
  localparam int FeatureWidth = $clog2(FeatureWords);
  localparam int BankWidth    = $clog2(Pixels);
  localparam int RowWidth     = FeatureWidth - BankWidth;
  localparam int WeightWidth  = $clog2(WeightRows);
  localparam int WeightAddr   = $clog2(WeightRows * Lanes);
  localparam int ParamWidth   = $clog2(ParameterRows);
  localparam int ParamAddr    = $clog2(ParameterRows * 512 / Width);

  // Queues and tokens.
  logic [2:0]       valid, take, tokens;
  logic [3*256-1:0] words;
  logic [11:0]      want, give;

  for (genvar u = 0; u < 3; u++) begin : gen_queue
    stream_fifo #(.Width(256), .Depth(Queue), .RamStyle(2)) i_queue (
      .clk_i, .rst_ni, .in_valid_i(valid_i[u]), .in_ready_o(ready_o[u]), .in_data_i(word_i),
      .out_valid_o(valid[u]), .out_ready_i(take[u]), .out_data_o(words[u*256 +: 256])
    );
    assign want[4*u +: 4] = words[u*256+4 +: 4];
  end

  engine_tokens i_tokens (
    .clk_i, .rst_ni, .clear_i, .valid_i(valid), .take_i(take), .want_i(want), .go_i(go_o),
    .ready_o(tokens), .done_i(done_o), .give_i(give)
  );

  // Unit L.
  logic [3:0]       load;
  logic [1:0]       diagonal;
  logic [15:0]      load_addr;
  logic [Width-1:0] load_data;
  logic             store_read, load_idle;

  engine_load #(.Width(Width), .AddrWidth(AddrWidth), .Places(LoadPlaces)) i_load (
    .clk_i, .rst_ni, .slot_i(!even_i && !store_read), .valid_i(valid[0]), .ready_o(take[0]),
    .word_i(words[0 +: 256]), .ready_i(tokens[0]), .go_o(go_o[0]), .done_o(done_o[0]),
    .signal_o(give[3:0]), .idle_o(load_idle), .base_i, .ar_valid_o, .ar_ready_i, .ar_addr_o,
    .ar_len_o, .r_valid_i, .r_data_i, .write_o(load), .diagonal_o(diagonal), .addr_o(load_addr),
    .data_o(load_data)
  );

  // Unit X.
  logic [Pixels-1:0]          read, write_banks;
  logic [Pixels*RowWidth-1:0] read_rows, write_rows;
  logic [Pixels*Width-1:0]    read_data, write_data;
  logic                       weight, parameter_read, write, execute_idle;
  logic [WeightWidth-1:0]     weight_row;
  logic [Lanes*Width-1:0]     weight_words;
  logic [ParamWidth-1:0]      parameter_row;
  logic [2:0]                 parameter_slot;
  logic [511:0]               parameters;
  logic [127:0]               records;
  logic [Lanes-1:0]           write_strobes;
  logic                       flip, look;
  logic [$clog2(Lanes)-1:0]   look_table;
  logic [Pixels*8-1:0]        look_bytes, found_bytes;

  assign spent_o = valid[1] & take[1] & ~go_o[1];

  engine_execute #(
    .Pixels(Pixels), .Lanes(Lanes), .Dsps(Dsps), .Nibbles(Nibbles),
    .Paired(Paired), .AddrWidth(FeatureWidth), .WeightRows(WeightRows),
    .Rows(ParameterRows), .PostLanes(PostLanes)
  ) i_execute (
    .clk_i, .rst_ni, .slot_i(even_i), .valid_i(valid[1]), .ready_o(take[1]),
    .word_i(words[256 +: 256]), .ready_i(tokens[1]), .go_o(go_o[1]), .done_o(done_o[1]),
    .signal_o(give[7:4]), .idle_o(execute_idle), .read_o(read), .read_rows_o(read_rows),
    .read_data_i(read_data), .weight_o(weight), .weight_row_o(weight_row),
    .weights_i(weight_words), .parameter_o(parameter_read), .parameter_row_o(parameter_row),
    .parameter_slot_o(parameter_slot), .flip_i(flip), .parameters_i(parameters),
    .records_i(records), .look_o(look), .table_o(look_table), .bytes_o(look_bytes),
    .bytes_i(found_bytes), .write_o(write), .write_banks_o(write_banks),
    .write_rows_o(write_rows), .write_strobes_o(write_strobes), .write_data_o(write_data)
  );

  // Unit S.
  logic [FeatureWidth-1:0] store_addr;
  logic [Width-1:0]        store_data;

  engine_store #(
    .Width(Width), .AddrWidth(AddrWidth), .CellWidth(FeatureWidth)
  ) i_store (
    .clk_i, .rst_ni, .slot_i(!even_i), .valid_i(valid[2]), .ready_o(take[2]),
    .word_i(words[512 +: 256]), .ready_i(tokens[2]), .go_o(go_o[2]), .done_o(done_o[2]),
    .signal_o(give[11:8]), .base_i, .read_o(store_read), .addr_o(store_addr),
    .data_i(store_data), .aw_valid_o, .aw_ready_i, .aw_addr_o, .aw_len_o, .aw_id_o, .w_valid_o,
    .w_ready_i, .w_data_o, .w_last_o, .b_valid_i, .b_id_i
  );

  // Memories. What L writes gets a register in front of them; the features have their own.
  logic [3:0]       load_q;
  logic [1:0]       diagonal_q;
  logic [15:0]      load_addr_q;
  logic [Width-1:0] load_data_q;

  always_ff @(posedge clk_i) begin : p_load
    load_q      <= load;
    diagonal_q  <= diagonal;
    load_addr_q <= load_addr;
    load_data_q <= load_data;
  end

  engine_features #(
    .Banks(Pixels), .Lanes(Lanes), .Depth(FeatureWords / Pixels)
  ) i_features (
    .clk_i, .a_en_i(read), .a_rows_i(read_rows), .a_data_o(read_data), .x_valid_i(write),
    .x_banks_i(write_banks), .x_rows_i(write_rows), .x_strobes_i(write_strobes),
    .x_data_i(write_data), .s_valid_i(store_read), .s_addr_i(store_addr), .s_data_o(store_data),
    .l_valid_i(load[0]), .l_addr_i(FeatureWidth'(load_addr)), .l_data_i(load_data)
  );
  engine_weights #(.Lanes(Lanes), .Rows(WeightRows)) i_weights (
    .clk_i, .write_i(load_q[1]), .diagonal_i(diagonal_q), .write_addr_i(WeightAddr'(load_addr_q)),
    .write_data_i(load_data_q), .read_i(weight), .row_i(weight_row), .words_o(weight_words)
  );
  engine_parameters #(.Rows(ParameterRows), .Width(Width)) i_parameters (
    .clk_i, .write_i(load_q[2]), .write_addr_i(ParamAddr'(load_addr_q)), .write_data_i(load_data_q),
    .read_i(parameter_read), .row_i(parameter_row), .slot_i(parameter_slot),
    .flip_o(flip), .row_o(parameters), .records_o(records)
  );
  engine_tables #(.Readers(Pixels), .Tables(Lanes)) i_tables (
    .clk_i, .write_i(load_q[3]), .write_addr_i(load_addr_q[7:0]), .write_data_i(load_data_q),
    .read_i(look), .table_i(look_table), .bytes_i(look_bytes), .bytes_o(found_bytes)
  );

  logic unused;
  assign unused = ^{load_addr, load_addr_q, load_q[0], load_idle, execute_idle};
endmodule
`default_nettype wire
