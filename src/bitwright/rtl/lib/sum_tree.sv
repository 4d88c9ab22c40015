// SPDX-License-Identifier: Apache-2.0
// Sum of Terms numbers of Width bits, term n times 2^(Shift*n), each with a carry of its own to be
// added at its place: sum_o + carry_o is the sum, modulo 2^Most, signed if its last term is.
// Signed: 0 no term has a sign, 1 all have, 2 the last one has. An adder takes the carry of one of
// its terms as its carry in; that of the other goes on. Levels = $clog2(Terms); the output of a
// level is registered where the number of adders from it to the end of the whole sum, After behind
// this tree, is a multiple of Step. Step = 1: every level is. Latency: the registered levels.
// Yosys would make adders of three and more numbers of several without a register between them;
// these cost up to twice as much as carry chains. So operands are extended by hand, and the carry
// stands below bit 0, beside a one: then no operand is just a sum, of products neither.
`default_nettype none
module sum_tree #(
  parameter int Terms  = 1,  // of more it contains itself, which no top can in Verilator
  parameter int Width  = 8,
  parameter int Shift  = 0,
  parameter int Signed = 1,
  parameter int Most   = 64,
  parameter int Step   = 1,
  parameter int After  = 1,
  localparam int Levels   = Terms > 1 ? $clog2(Terms) : 0,
  localparam int SumWidth = sum_width(Levels)
) (
  input  logic                   clk_i,
  input  logic                   en_i,
  input  logic [Terms*Width-1:0] terms_i,
  input  logic [Terms-1:0]       carries_i,
  output logic [SumWidth-1:0]    sum_o,
  output logic                   carry_o
);
  // Bits after some levels: each adds the shift and one.
  function automatic int sum_width(input int levels);
    int moved;
    begin
      sum_width = Width;
      moved     = Shift;
      for (int l = 0; l < levels; l = l + 1) begin
        if (sum_width < Most) begin
          sum_width = sum_width + moved + 1 > Most ? Most : sum_width + moved + 1;
        end
        moved = 2 * moved;
      end
    end
  endfunction

`ifndef __ICARUS__
  if (Terms < 1 || Width < 1 || Shift < 0 || Most < 1 || Step < 1 || After < 1) begin : gen_check
    $error("sum_tree: Terms, Width, Most, Step and After must be at least 1");
  end
`endif

  if (Terms == 1) begin : gen_one
    assign sum_o   = terms_i;
    assign carry_o = carries_i[0];
    logic unused;
    assign unused = &{1'b0, clk_i, en_i};
  end else begin : gen_level
    localparam int Half  = (Terms + 1) / 2;
    localparam int OutW  = sum_width(1);
    localparam bit Keeps = (Levels - 1 + After) % Step == 0;

    logic [Half*OutW-1:0] sums, level;
    logic [Half-1:0]      lefts, carries;

    for (genvar n = 0; n < Half; n++) begin : gen_node
      localparam int Last = 2 * n + 1 < Terms ? 2 * n + 1 : 2 * n;
      logic [OutW+Width-1:0] low, high;

      assign low = {{OutW{(Signed == 1 || (Signed == 2 && 2 * n == Terms - 1))
                          & terms_i[2*n*Width+Width-1]}}, terms_i[2*n*Width +: Width]};
      assign high = {{OutW{(Signed == 1 || (Signed == 2 && Last == Terms - 1))
                           & terms_i[Last*Width+Width-1]}}, terms_i[Last*Width +: Width]};
      if (Last > 2 * n) begin : gen_add
        logic [OutW:0] full;
        logic          unused_low;

        assign full = {low[OutW-1:0], 1'b1} + {high[OutW-1:0] << Shift, carries_i[2*n]};
        assign sums[n*OutW +: OutW] = full[OutW:1];
        assign lefts[n] = carries_i[Last];
        assign unused_low = full[0];
      end else begin : gen_pass
        assign sums[n*OutW +: OutW] = low[OutW-1:0];
        assign lefts[n] = carries_i[2*n];
      end
      logic unused;
      assign unused = ^{low, high};
    end

    if (Keeps) begin : gen_register
      logic [Half*OutW-1:0] sums_q;
      logic [Half-1:0]      lefts_q;

      always_ff @(posedge clk_i) begin : p_sums
        if (en_i) begin
          sums_q  <= sums;
          lefts_q <= lefts;
        end
      end
      assign level   = sums_q;
      assign carries = lefts_q;
    end else begin : gen_through
      assign level   = sums;
      assign carries = lefts;
    end

    sum_tree #(
      .Terms(Half), .Width(OutW), .Shift(2 * Shift), .Signed(Signed), .Most(Most), .Step(Step),
      .After(After)
    ) i_next (
      .clk_i, .en_i, .terms_i(level), .carries_i(carries), .sum_o, .carry_o
    );
  end
endmodule
`default_nettype wire
