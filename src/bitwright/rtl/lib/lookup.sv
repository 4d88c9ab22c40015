// SPDX-License-Identifier: Apache-2.0
// Table look-up: any function of a lane of few bits. PE lanes a beat, Channels/PE beats a pixel,
// one beat a cycle, latency 3. The address is the lane's bit pattern, so a table has 2^InWidth
// words: word code, or word fold*2^InWidth + code with one table a channel. Shared: one table for
// all channels (Channels must be PE); TableFile then has OutWidth bits a line, else PE lanes,
// lane p at [p*OutWidth +: OutWidth] that of channel fold*PE + p.
`default_nettype none
module lookup #(
  parameter int Channels  = 4,
  parameter int PE        = 2,
  parameter int InWidth   = 4,
  parameter int OutWidth  = 4,
  parameter bit Shared    = 1'b1,
  parameter     TableFile = "",
  parameter int RomStyle  = 0
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   in_valid_i,
  output logic                   in_ready_o,
  input  logic [PE*InWidth-1:0]  in_data_i,
  output logic                   out_valid_o,
  input  logic                   out_ready_i,
  output logic [PE*OutWidth-1:0] out_data_o
);
  localparam int Fold      = Shared ? 1 : Channels / PE;
  localparam int FoldWidth = Fold > 1 ? $clog2(Fold) : 1;
  localparam int Words     = Fold << InWidth;
  localparam int AddrWidth = $clog2(Words);
  localparam int WordWidth = Shared ? OutWidth : PE * OutWidth;

`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Channels < 1 || PE < 1 || Channels % PE != 0) begin : gen_check_fold
    $error("lookup: PE must divide Channels");
  end
  if (InWidth < 1 || InWidth > 16 || OutWidth < 1) begin : gen_check_width
    $error("lookup: InWidth must be 1 to 16, OutWidth at least 1");
  end
`endif

  logic                   en;
  logic [1:0]             valid_q;
  logic [FoldWidth-1:0]   fold_q;
  logic [PE*OutWidth-1:0] code, code_q;

  assign in_ready_o = en;

  always_ff @(posedge clk_i) begin : p_control
    if (!rst_ni) begin
      valid_q <= '0;
      fold_q  <= '0;
    end else if (en) begin
      valid_q <= {valid_q[0], in_valid_i};
      if (in_valid_i) fold_q <= fold_q == FoldWidth'(Fold - 1) ? '0 : fold_q + 1'b1;
    end
  end

  for (genvar p = 0; p < PE; p++) begin : gen_lane
    logic [AddrWidth-1:0] addr;
    logic [WordWidth-1:0] word;  // of many lanes only this one is used; the rest is pruned
    logic                 unused;

    if (Fold > 1) begin : gen_fold
      assign addr = {fold_q, in_data_i[p*InWidth +: InWidth]};
    end else begin : gen_one
      assign addr = in_data_i[p*InWidth +: InWidth];
    end
    mem_rom #(.Width(WordWidth), .Depth(Words), .Style(RomStyle), .File(TableFile)) i_rom (
      .clk_i, .en_i(en), .addr_i(addr), .data_o(word)
    );
    assign code[p*OutWidth +: OutWidth] = word[(Shared ? 0 : p)*OutWidth +: OutWidth];
    assign unused = &{1'b0, word};
  end

  // A register behind the table hides a block RAM's clock-to-output time.
  always_ff @(posedge clk_i) begin : p_code
    if (en) code_q <= code;
  end

  stream_skid #(.Width(PE * OutWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(valid_q[1]), .in_ready_o(en), .in_data_i(code_q),
    .out_valid_o, .out_ready_i, .out_data_o
  );

`ifdef BITWRIGHT_CHECKS
  stream_check #(.Width(PE * InWidth)) i_check_in (
    .clk_i, .rst_ni, .valid_i(in_valid_i), .ready_i(in_ready_o), .data_i(in_data_i)
  );
`endif
endmodule
`default_nettype wire
