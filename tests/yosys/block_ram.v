// SPDX-License-Identifier: Apache-2.0
// What the netlists of our designs use of the block RAM of ECP5, for simulation: one side writes,
// one reads, or both read; widths 1 to 36; output registers with enables of their own. Words and
// byte enables lie as Yosys' brams_map_16kd.v has them. INIT is INITVAL_3F .. INITVAL_00, 320 bits
// each: 16 words of 18 bits, 20 bits apart.
module BLOCK_RAM #(
  parameter [20479:0] INIT = 0,
  parameter integer DATA_WIDTH_A = 18,
  parameter integer DATA_WIDTH_B = 18,
  parameter REGMODE_A = "NOREG",
  parameter REGMODE_B = "NOREG",
  parameter OCEAMUX = "OCEA",
  parameter OCEBMUX = "OCEB"
) (
  input         clka, cea, ocea, wea,
  input         clkb, ceb, oceb, web,
  input  [13:0] ada, adb,
  input  [17:0] dia, dib,
  output [17:0] doa, dob
);
  reg [8:0] mem [0:2047];
  integer k;

  initial begin
    for (k = 0; k < 2048; k = k + 1) mem[k] = INIT[(k / 2) * 20 + (k % 2) * 9 +: 9];
  end

  // A word of up to 36 bits; narrow ones lie side by side in the low eight bits of a byte.
  function [35:0] word(input [13:0] address, input integer width);
    begin
      case (width)
        1, 2, 4: word = {27'b0, mem[address[13:3]]} >> (address[2:0] & ~(width - 1));
        9: word = {27'b0, mem[address[13:3]]};
        18: word = {18'b0, mem[{address[13:4], 1'b1}], mem[{address[13:4], 1'b0}]};
        default: word = {mem[{address[13:5], 2'd3}], mem[{address[13:5], 2'd2}],
                         mem[{address[13:5], 2'd1}], mem[{address[13:5], 2'd0}]};
      endcase
    end
  endfunction

  reg [35:0] a, b, a_q, b_q;
  wire [35:0] whole = {dib, dia};
  wire [2:0] low = ada[2:0] & ~(DATA_WIDTH_A - 1);
  wire [8:0] mask = (1 << DATA_WIDTH_A) - 1;

  always @(posedge clka) begin
    if (cea && wea) begin
      case (DATA_WIDTH_A)
        1, 2, 4: mem[ada[13:3]] <= (mem[ada[13:3]] & ~(mask << low)) | ((dia[8:0] & mask) << low);
        9: mem[ada[13:3]] <= dia[8:0];
        18: for (k = 0; k < 2; k = k + 1)
          if (ada[k]) mem[{ada[13:4], 1'b0} + k] <= dia[9*k +: 9];
        default: for (k = 0; k < 4; k = k + 1)
          if (ada[k]) mem[{ada[13:5], 2'b0} + k] <= whole[9*k +: 9];
      endcase
    end
    if (cea && !wea) a <= word(ada, DATA_WIDTH_A);
    if (OCEAMUX == "INV" ? !ocea : ocea) a_q <= a;
  end

  always @(posedge clkb) begin
    if (ceb && web) $fatal(1, "side B of a block RAM is written");
    if (ceb) b <= word(adb, DATA_WIDTH_B);
    if (OCEBMUX == "INV" ? !oceb : oceb) b_q <= b;
  end

  // A port of 36 bits has the controls of B, and its low half is at A.
  assign doa = DATA_WIDTH_B == 36 ? (REGMODE_A == "OUTREG" ? b_q[17:0] : b[17:0])
                                  : (REGMODE_A == "OUTREG" ? a_q[17:0] : a[17:0]);
  assign dob = DATA_WIDTH_B == 36 ? (REGMODE_B == "OUTREG" ? b_q[35:18] : b[35:18])
                                  : (REGMODE_B == "OUTREG" ? b_q[17:0] : b[17:0]);
endmodule
