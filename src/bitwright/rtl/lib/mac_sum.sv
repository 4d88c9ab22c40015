// SPDX-License-Identifier: Apache-2.0
// The sum of one row of `mac_array`: the terms of every digit added up, the digits moved to their
// places, Delay registers, the accumulator. valid_i, first_i and init_i come with the sum that
// enters the accumulator, which is on acc_o one enabled cycle later; last_i marks what is on the
// output then (looked at by the overflow check only). Terms are signed in the last digit, in the
// others if LowSigned; each has a carry to be added at its place. Doubled: the sum counts twice.
// Step: adders between registers, see `sum_tree`. Exact: bits of the largest sum. No register here
// is reset. Drop from 0 on: the accumulator is one of fixed point. What enters it loses its lowest
// Drop bits, rounded to the nearest with ties upwards, and the sum saturates (signed), in every
// step. Below 0 it is exact.
`default_nettype none
module mac_sum #(
  parameter int Terms     = 4,
  parameter int TermWidth = 6,
  parameter int Digits    = 2,
  parameter bit LowSigned = 1'b0,
  parameter bit TopSigned = 1'b1,
  parameter bit Doubled   = 1'b0,
  parameter int Step      = 1,
  parameter int Delay     = 0,
  parameter int Exact     = 10,
  parameter int AccWidth  = 16,
  parameter bit AccSigned = 1'b1,
  parameter int Drop      = -1,
  parameter int InitWidth = 17
) (
  input  logic                              clk_i,
  input  logic                              rst_ni,
  input  logic                              en_i,
  input  logic [Digits*Terms*TermWidth-1:0] terms_i,  // digit by digit
  input  logic [Terms-1:0]                  carries_i,  // of digit 0
  input  logic                              valid_i,
  input  logic                              first_i,
  input  logic                              last_i,
  input  logic [InitWidth-1:0]              init_i,
  output logic [AccWidth-1:0]               acc_o
);
  localparam bit Rounded  = Drop >= 0;
  localparam int Levels = Terms > 1 ? $clog2(Terms) : 0;
  localparam int Meets  = Digits > 1 ? $clog2(Digits) : 0;
  localparam int TreeWidth = TermWidth + Levels;
  localparam int AllGrown  = TreeWidth + 2 * ((1 << Meets) - 1) + Meets;
  localparam int Most      = Exact > TreeWidth ? Exact : TreeWidth;
  localparam int AllWidth  = AllGrown > Most ? Most : AllGrown;
  localparam int SumWidth  = Doubled ? AllWidth + 1 : AllWidth;

  logic [Digits*TreeWidth-1:0] trees;
  logic [Digits-1:0]           tree_carries;
  logic [AllWidth-1:0]         total;
  logic                        total_carry;

  for (genvar d = 0; d < Digits; d++) begin : gen_digit
    localparam bit Sign = d == Digits - 1 ? TopSigned : LowSigned;
    sum_tree #(
      .Terms(Terms), .Width(TermWidth), .Signed(Sign ? 1 : 0), .Step(Step), .After(1 + Meets)
    ) i_tree (
      .clk_i, .en_i, .terms_i(terms_i[d*Terms*TermWidth +: Terms*TermWidth]),
      .carries_i(d == 0 ? carries_i : '0), .sum_o(trees[d*TreeWidth +: TreeWidth]),
      .carry_o(tree_carries[d])
    );
  end
  sum_tree #(
    .Terms(Digits), .Width(TreeWidth), .Shift(Digits > 1 ? 2 : 0),
    .Signed(LowSigned ? 1 : TopSigned ? 2 : 0), .Most(Most), .Step(Step), .After(1)
  ) i_meet (
    .clk_i, .en_i, .terms_i(trees), .carries_i(tree_carries), .sum_o(total), .carry_o(total_carry)
  );

  logic [AllWidth:0] now;
  if (Delay > 0) begin : gen_delay
    logic [Delay*(AllWidth+1)-1:0] wait_q;
    always_ff @(posedge clk_i) begin : p_wait
      if (en_i) wait_q <= (Delay*(AllWidth+1))'({wait_q, total, total_carry});
    end
    assign now = wait_q[Delay*(AllWidth+1)-1 -: AllWidth+1];
  end else begin : gen_no_delay
    assign now = {total, total_carry};
  end

  logic [SumWidth-1:0] sum;
  logic [AccWidth-1:0] start, next, acc_q;

  if (Doubled) begin : gen_doubled
    assign sum = {now[AllWidth:1], 1'b0};
  end else begin : gen_plain
    assign sum = now[AllWidth:1];
  end
  assign start = first_i ? AccWidth'($signed(init_i)) : acc_q;

  if (Rounded) begin : gen_rounded
    // Half of what is dropped needs a bit more than the sum, and its own bits and a sign where more
    // is dropped than the sum has; then one more for the accumulator's sum.
    localparam int GivenWidth = SumWidth + 2 > Drop + 1 ? SumWidth + 2 : Drop + 1;
    localparam int KeptWidth  = GivenWidth - Drop;
    localparam int NextWidth  = (KeptWidth > AccWidth ? KeptWidth : AccWidth) + 1;
    localparam bit [GivenWidth-1:0] Half = Drop > 0 ? GivenWidth'(1) << (Drop > 0 ? Drop - 1 : 0)
                                                    : '0;
    logic signed [GivenWidth-1:0] given;
    logic signed [KeptWidth-1:0]  kept;
    logic signed [NextWidth-1:0]  exact;
    logic                         fits;

    assign given = {{(GivenWidth-SumWidth){TopSigned & sum[SumWidth-1]}}, sum}
                 + GivenWidth'(now[0]) + Half;
    assign kept  = KeptWidth'(given >>> Drop);
    assign exact = NextWidth'($signed(start)) + NextWidth'(kept);
    // It fits if all bits from the accumulator's sign on are equal.
    assign fits  = (&exact[NextWidth-1:AccWidth-1]) | ~(|exact[NextWidth-1:AccWidth-1]);
    assign next  = fits ? exact[AccWidth-1:0]
                        : {exact[NextWidth-1], {(AccWidth-1){~exact[NextWidth-1]}}};
  end else begin : gen_exact
    // Modulo 2^AccWidth: steps in between may wrap, the final value fits (checked below).
    logic [AccWidth+SumWidth-1:0] sum_wide;
    assign sum_wide = {{AccWidth{TopSigned & sum[SumWidth-1]}}, sum};
    assign next     = start + sum_wide[AccWidth-1:0] + AccWidth'(now[0]);

    logic unused_wide;
    assign unused_wide = ^sum_wide;
  end

  always_ff @(posedge clk_i) begin : p_acc
    if (en_i && valid_i) acc_q <= next;
  end

  assign acc_o = acc_q;

`ifdef BITWRIGHT_CHECKS
  if (!Rounded) begin : gen_checks
    longint exact_q, given;
    logic   done_q;

    assign given = longint'($signed({TopSigned & sum[SumWidth-1], sum})) + longint'(now[0]);
    initial done_q = 1'b0;

    always @(posedge clk_i) begin : p_exact
      if (en_i && valid_i) exact_q <= (first_i ? longint'($signed(init_i)) : exact_q) + given;
      if (!rst_ni) done_q <= 1'b0;
      else if (en_i) done_q <= valid_i & last_i;
    end

    if (AccSigned) begin : gen_check_signed
      no_overflow: assert property (@(posedge clk_i)
        done_q |-> longint'($signed(acc_q)) == exact_q);
    end else begin : gen_check_unsigned
      no_overflow: assert property (@(posedge clk_i)
        done_q |-> longint'($unsigned(acc_q)) == exact_q);
    end
  end
`else
  logic unused;
  assign unused = last_i ^ rst_ni ^ AccSigned ^ (^init_i);
`endif
endmodule
`default_nettype wire
