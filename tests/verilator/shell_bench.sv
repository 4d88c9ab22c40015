// SPDX-License-Identifier: Apache-2.0
// Host of the serial shell: sends the codes of send.hex over a serial line and writes each byte that
// comes back. Codes 000 to 0ff are bytes, 100 is a break, 2nn waits for nn characters.
`default_nettype none
module shell_bench;
  localparam int ClocksPerBit = 8;
  localparam int Count        = `CODES;
  localparam int Expected     = `EXPECTED;

  logic clk = 1'b0, rx = 1'b1, tx, overrun;
  logic [9:0] codes [0:Count-1];
  logic [7:0] got;
  int received = 0;

  always #1 clk = ~clk;

  dots_serial i_dut (
    .clk_i(clk), .locked_i(1'b1), .button_i(1'b0), .rx_i(rx), .tx_o(tx), .overrun_o(overrun)
  );

  task automatic bit_time(input int bits);
    repeat (bits * ClocksPerBit) @(negedge clk);
  endtask

  task automatic send(input logic [9:0] code);
    if (code[9]) begin
      bit_time(10 * int'(code[7:0]));
    end else if (code[8]) begin
      rx = 1'b0;
      bit_time(13);
      rx = 1'b1;
      bit_time(20);
    end else begin
      rx = 1'b0;
      bit_time(1);
      for (int i = 0; i < 8; i++) begin
        rx = code[i];
        bit_time(1);
      end
      rx = 1'b1;
      bit_time(1);
    end
  endtask

  initial begin : p_send
    $readmemh("send.hex", codes);
    bit_time(20);
    for (int i = 0; i < Count; i++) send(codes[i]);
  end

  initial begin : p_receive
    while (received < Expected) begin
      @(negedge tx);
      repeat (ClocksPerBit / 2) @(negedge clk);
      if (tx !== 1'b0) $fatal(1, "glitch on the line");
      for (int i = 0; i < 8; i++) begin
        repeat (ClocksPerBit) @(negedge clk);
        got[i] = tx;
      end
      repeat (ClocksPerBit) @(negedge clk);
      if (tx !== 1'b1) $fatal(1, "no stop bit");
      $display("byte %0d", got);
      received++;
    end
    if (overrun) $fatal(1, "the input FIFO ran over");
    repeat (40 * ClocksPerBit) @(negedge clk);
    $finish;
  end

  initial begin : p_watch
    repeat (400000) @(negedge clk);
    $fatal(1, "no answer: %0d of %0d bytes", received, Expected);
  end
endmodule
`default_nettype wire
