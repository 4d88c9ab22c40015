// SPDX-License-Identifier: Apache-2.0
// Sum of Terms signed numbers of Width bits, exact; every level is registered.
// Latency $clog2(Terms) enabled cycles (0 for one term), one sum a cycle.
`default_nettype none
module adder_tree #(
  parameter int Terms = 4,
  parameter int Width = 8,
  localparam int Levels   = Terms > 1 ? $clog2(Terms) : 0,
  localparam int SumWidth = Width + Levels
) (
  input  logic                   clk_i,
  input  logic                   en_i,
  input  logic [Terms*Width-1:0] terms_i,
  output logic [SumWidth-1:0]    sum_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Terms < 1 || Width < 1) begin : gen_check
    $error("adder_tree: Terms and Width must be at least 1");
  end
`endif

  // Level l has ceil(Terms / 2^l) numbers of Width + l bits; all levels lie in one flat bus.
  function automatic int level_count(input int level);
    level_count = (Terms + (1 << level) - 1) >> level;
  endfunction

  function automatic int level_base(input int level);
    int l;  // Icarus 11 takes a function with both `for (int l` and a call for no constant one
    level_base = 0;
    for (l = 0; l < level; l++) level_base = level_base + level_count(l) * (Width + l);
  endfunction

  // The registers of all levels lie above the terms: a bus has one driver, whatever the tool.
  localparam int BusWidth  = level_base(Levels + 1);
  localparam int FirstSum  = Terms * Width;
  logic [BusWidth-1:0] bus;

  if (Levels == 0) begin : gen_wire
    logic unused;
    assign bus    = terms_i;
    assign unused = &{1'b0, clk_i, en_i};
  end else begin : gen_registers
    logic [BusWidth-FirstSum-1:0] sums, sums_q;

    assign bus = {sums_q, terms_i};

    always_ff @(posedge clk_i) begin : p_sums
      if (en_i) sums_q <= sums;
    end

    for (genvar l = 1; l <= Levels; l++) begin : gen_level
      localparam int Below = level_count(l - 1);
      localparam int From  = level_base(l - 1);
      localparam int To    = level_base(l) - FirstSum;
      localparam int InW   = Width + l - 1;
      localparam int OutW  = Width + l;
      for (genvar n = 0; n < level_count(l); n++) begin : gen_node
        if (2 * n + 1 < Below) begin : gen_add
          assign sums[To+n*OutW +: OutW] = OutW'($signed(bus[From+2*n*InW +: InW]))
                                         + OutW'($signed(bus[From+(2*n+1)*InW +: InW]));
        end else begin : gen_pass
          assign sums[To+n*OutW +: OutW] = OutW'($signed(bus[From+2*n*InW +: InW]));
        end
      end
    end
  end

  assign sum_o = bus[BusWidth-1 -: SumWidth];
endmodule
`default_nettype wire
