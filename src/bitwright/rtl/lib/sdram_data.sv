// SPDX-License-Identifier: Apache-2.0
// Words of 64 bits on the 16 data wires of an SDRAM, two clocks of the chip a cycle, the first
// clock in the lower half of dq_o and dq_i. A column's command stands in the second clock of the
// cycle behind column_i. Written words go with it. Of reads, the clocks that the chip answers in
// come with dq_i Delay cycles later than the chip has them there (registers of the pads, both
// ways); the word is out 5 + Delay cycles behind column_i, with the tag that came with it. rst_ni
// forgets what is read, not what is written.
`default_nettype none
module sdram_data #(
  parameter int TagWidth = 4,
  parameter int Delay    = 5
) (
  input  logic                clk_i,
  input  logic                rst_ni,
  input  logic                column_i,
  input  logic                write_i,
  input  logic [63:0]         word_i,
  input  logic [TagWidth-1:0] tag_i,
  output logic                valid_o,
  output logic [63:0]         word_o,
  output logic [TagWidth-1:0] tag_o,
  output logic                oe_o,
  output logic [31:0]         dq_o,
  input  logic [31:0]         dq_i
);
  localparam int Cycles = 5 + Delay;

  // Writing: the cycle of the command has the first 16 bits of the word, the second one the middle,
  // the third one the last.
  logic [63:0] word_q;
  logic [15:0] tail_q;
  logic [2:0]  writing_q;

  always_ff @(posedge clk_i) begin : p_write
    writing_q <= {writing_q[1:0], column_i & write_i};
    if (column_i) word_q <= word_i;
    tail_q <= word_q[63:48];
  end
  assign oe_o = writing_q != '0;
  assign dq_o = writing_q[0] ? {word_q[15:0], tail_q} : writing_q[1] ? word_q[47:16]
              : {16'd0, tail_q};

  // Reading.
  logic [Cycles-1:0]          valid_q;
  logic [Cycles*TagWidth-1:0] tags_q;
  logic [31:0]                half_q;

  always_ff @(posedge clk_i) begin : p_read
    if (!rst_ni) valid_q <= '0;
    else valid_q <= {valid_q[Cycles-2:0], column_i & ~write_i};
    tags_q <= {tags_q[(Cycles-1)*TagWidth-1:0], tag_i};
    half_q <= dq_i;
    word_o <= {dq_i, half_q};
  end
  assign valid_o = valid_q[Cycles-1];
  assign tag_o   = tags_q[(Cycles-1)*TagWidth +: TagWidth];
endmodule
`default_nettype wire
