// SPDX-License-Identifier: Apache-2.0
// CRC-32 of bytes (IEEE 802.3: polynomial 04C11DB7, reflected, starts with all ones), one bit a
// clock: a byte takes eight clocks, in which none may be offered. crc_o is what goes on the line,
// lowest byte first; of bytes that end with their own CRC it is 2144DF1C.
`default_nettype none
module shell_crc (
  input  logic        clk_i,
  input  logic        clear_i,
  input  logic        valid_i,
  input  logic [7:0]  data_i,
  output logic        busy_o,
  output logic [31:0] crc_o
);
  localparam logic [31:0] POLYNOMIAL = 32'hEDB88320;  // bit 31 is the lowest power

  logic [31:0] crc_q;
  logic [7:0]  shift_q;
  logic [3:0]  left_q;

  assign busy_o = left_q != '0;
  assign crc_o  = ~crc_q;

  always_ff @(posedge clk_i) begin : p_crc
    if (clear_i) begin
      crc_q  <= '1;
      left_q <= '0;
    end else if (valid_i) begin
      shift_q <= data_i;
      left_q  <= 4'd8;
    end else if (busy_o) begin
      crc_q   <= {1'b0, crc_q[31:1]} ^ (POLYNOMIAL & {32{crc_q[0] ^ shift_q[0]}});
      shift_q <= shift_q >> 1;
      left_q  <= left_q - 4'd1;
    end
  end

`ifdef BITWRIGHT_CHECKS
  // Before the first clock edge of the reset the user's signals are unknown.
  logic settled_q;

  initial settled_q = 1'b0;

  // Not always_ff: that would have to be the only process of what `initial` sets.
  always @(posedge clk_i) begin : p_settled
    settled_q <= 1'b1;
  end
  no_byte_while_busy: assert property (@(posedge clk_i)
    settled_q && busy_o |-> !valid_i || clear_i);
`endif
endmodule
`default_nettype wire
