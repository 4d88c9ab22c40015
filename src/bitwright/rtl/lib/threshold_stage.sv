// SPDX-License-Identifier: Apache-2.0
// One step of threshold's binary search: reads the threshold of (fold, prefix), compares, and
// appends the result bit to the prefix. Latency 2 enabled cycles (RomStyle 2) or 3 (else: one
// more register behind the block RAM). Every lane has its own ROM, of its own file: File, the
// number of the lane in four digits, ".mem". RomStyle 0: block RAM above 2048 bits, else LUTs;
// 1 block RAM; 2 LUTs.
`default_nettype none
module threshold_stage #(
  parameter int Stage    = 0,
  parameter int Bits     = 4,
  parameter int Fold     = 4,
  parameter int PE       = 2,
  parameter int ThrWidth = 13,
  parameter int RomStyle = 0,
  parameter     File     = "",
  localparam int FoldWidth = Fold > 1 ? $clog2(Fold) : 1
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   en_i,
  input  logic                   valid_i,
  input  logic [PE*ThrWidth-1:0] x_i,
  input  logic [FoldWidth-1:0]   fold_i,
  input  logic [PE*Bits-1:0]     prefix_i,
  output logic                   valid_o,
  output logic [PE*ThrWidth-1:0] x_o,
  output logic [FoldWidth-1:0]   fold_o,
  output logic [PE*Bits-1:0]     prefix_o
);
  localparam int Extra     = RomStyle == 2 ? 0 : 1;
  localparam int Latency   = 2 + Extra;
  localparam int Words     = Fold << Stage;
  localparam int Style     = RomStyle != 0 ? RomStyle : Words * ThrWidth > 2048 ? 1 : 2;
  localparam int AddrWidth = Words > 1 ? $clog2(Words) : 1;

  logic [Latency-1:0] valid_q;
  assign valid_o = valid_q[Latency-1];

  always_ff @(posedge clk_i) begin : p_valid
    if (!rst_ni) valid_q <= '0;
    else if (en_i) valid_q <= {valid_q[Latency-2:0], valid_i};
  end

  // Delay line of x, fold and prefix.
  logic [Latency*PE*ThrWidth-1:0] x_q;
  logic [Latency*FoldWidth-1:0]   fold_q;
  logic [(Latency-1)*PE*Bits-1:0] prefix_q;

  assign x_o    = x_q[(Latency-1)*PE*ThrWidth +: PE*ThrWidth];
  assign fold_o = fold_q[(Latency-1)*FoldWidth +: FoldWidth];

  always_ff @(posedge clk_i) begin : p_delay
    if (en_i) begin
      x_q    <= {x_q[(Latency-1)*PE*ThrWidth-1:0], x_i};
      fold_q <= {fold_q[(Latency-1)*FoldWidth-1:0], fold_i};
    end
  end
  if (Latency == 2) begin : gen_prefix_two
    always_ff @(posedge clk_i) begin : p_prefix
      if (en_i) prefix_q <= prefix_i;
    end
  end else begin : gen_prefix_three
    always_ff @(posedge clk_i) begin : p_prefix
      if (en_i) prefix_q <= {prefix_q[PE*Bits-1:0], prefix_i};
    end
  end

  for (genvar p = 0; p < PE; p++) begin : gen_lane
    logic [AddrWidth-1:0]       addr;
    logic [ThrWidth-1:0]        word;
    logic signed [ThrWidth-1:0] limit, x_now;
    logic [Bits-1:0]            path;

    assign addr = AddrWidth'({fold_i, {Stage{1'b0}}}) | AddrWidth'(prefix_i[p*Bits +: Bits]);

    if (File != "") begin : gen_file
      localparam logic [31:0] Digits = {8'(48 + p / 1000 % 10), 8'(48 + p / 100 % 10),
                                        8'(48 + p / 10 % 10), 8'(48 + p % 10)};
      mem_rom #(
        .Width(ThrWidth), .Depth(Words), .Style(Style), .File({File, Digits, ".mem"})
      ) i_rom (
        .clk_i, .en_i, .addr_i(addr), .data_o(word)
      );
    end else begin : gen_no_file
      mem_rom #(.Width(ThrWidth), .Depth(Words), .Style(Style)) i_rom (
        .clk_i, .en_i, .addr_i(addr), .data_o(word)
      );
    end

    if (Extra == 1) begin : gen_extra
      logic [ThrWidth-1:0] limit_q;
      always_ff @(posedge clk_i) begin : p_limit
        if (en_i) limit_q <= word;
      end
      assign limit = limit_q;
    end else begin : gen_direct
      assign limit = word;
    end

    assign x_now  = x_q[((Latency-2)*PE+p)*ThrWidth +: ThrWidth];
    assign path = prefix_q[((Latency-2)*PE+p)*Bits +: Bits];

    always_ff @(posedge clk_i) begin : p_compare
      if (en_i) prefix_o[p*Bits +: Bits] <= Bits'({path, x_now >= limit});
    end
  end
endmodule
`default_nettype wire
