// SPDX-License-Identifier: Apache-2.0
// Registers of a programmed engine beside a processor, on AXI4-Lite (soc_registers). Byte addresses:
//   0x00 magic "BWE1"   0x04 digest of the design   0x08 write 1: start; read: 0 runs, 1 done, 2 error
//   0x0C of the last run: bits 7..0 what HALT said, 11..8 errors as engine.sv has them
//   0x10 0x14 cycles of the last run, 48 bits, low and high
//   0x18 0x1C address of the program, a multiple of 4096, low and high
// Reads of other addresses give 0. While a program runs, starts and addresses are ignored.
`default_nettype none
module soc_engine #(
  parameter logic [31:0] Digest = 32'd0
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic [7:0]  awaddr_i,
  input  logic        awvalid_i,
  output logic        awready_o,
  input  logic [31:0] wdata_i,
  input  logic        wvalid_i,
  output logic        wready_o,
  output logic        bvalid_o,
  input  logic        bready_i,
  input  logic [7:0]  araddr_i,
  input  logic        arvalid_i,
  output logic        arready_o,
  output logic [31:0] rdata_o,
  output logic        rvalid_o,
  input  logic        rready_i,
  output logic        start_o,   // a pulse
  output logic [63:0] base_o,    // stands still from the pulse to the end of the run
  input  logic        done_i,    // of the engine: low from behind the pulse to the end of the run
  input  logic [7:0]  code_i,
  input  logic [3:0]  error_i,
  input  logic [47:0] cycles_i
);
  logic        write, runs, running_q;
  logic [5:0]  write_word, read_word;
  logic [31:0] write_data, read;

  soc_registers i_registers (
    .clk_i, .rst_ni, .awaddr_i, .awvalid_i, .awready_o, .wdata_i, .wvalid_i, .wready_o, .bvalid_o,
    .bready_i, .araddr_i, .arvalid_i, .arready_o, .rdata_o, .rvalid_o, .rready_i,
    .write_o(write), .write_word_o(write_word), .write_data_o(write_data),
    .read_word_o(read_word), .read_i(read)
  );

  assign runs = running_q | start_o;

  always_ff @(posedge clk_i) begin : p_control
    if (!rst_ni) begin
      start_o   <= 1'b0;
      running_q <= 1'b0;
      base_o    <= '0;
    end else begin
      start_o   <= write & (write_word == 6'd2) & write_data[0] & ~runs;
      running_q <= start_o | (running_q & ~done_i);
      if (write && write_word == 6'd6 && !runs) base_o[31:0] <= write_data;
      if (write && write_word == 6'd7 && !runs) base_o[63:32] <= write_data;
    end
  end

  // Parts of words have names, as Icarus takes no constant selects in processes.
  logic [31:0] cycles_low, base_low, base_high;
  logic [15:0] cycles_high;
  assign {cycles_high, cycles_low} = cycles_i;
  assign {base_high, base_low}     = base_o;

  always_comb begin : p_select
    case (read_word)
      6'd0:    read = 32'h31455742;
      6'd1:    read = Digest;
      6'd2:    read = {29'd0, error_i != '0, done_i & ~runs, runs};
      6'd3:    read = {20'd0, error_i, code_i};
      6'd4:    read = cycles_low;
      6'd5:    read = {16'd0, cycles_high};
      6'd6:    read = base_low;
      6'd7:    read = base_high;
      default: read = 32'd0;
    endcase
  end
endmodule
`default_nettype wire
