// SPDX-License-Identifier: Apache-2.0
// Registers of 32 bits on AXI4-Lite: the handshakes, whatever the registers are. Whole words are
// written, strobes are ignored. In a cycle with write_o, write_data_o is for register write_word_o;
// read_i is what register read_word_o holds now. Registers are numbered: byte address / 4.
`default_nettype none
module soc_registers (
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
  output logic        write_o,
  output logic [5:0]  write_word_o,
  output logic [31:0] write_data_o,
  output logic [5:0]  read_word_o,
  input  logic [31:0] read_i
);
  assign write_o      = awvalid_i & wvalid_i & ~bvalid_o;
  assign write_word_o = awaddr_i[7:2];
  assign write_data_o = wdata_i;
  assign read_word_o  = araddr_i[7:2];
  assign awready_o    = write_o;
  assign wready_o     = write_o;
  assign arready_o    = ~rvalid_o;

  always_ff @(posedge clk_i) begin : p_write
    if (!rst_ni) bvalid_o <= 1'b0;
    else if (write_o) bvalid_o <= 1'b1;
    else if (bready_i) bvalid_o <= 1'b0;
  end

  always_ff @(posedge clk_i) begin : p_read
    if (!rst_ni) begin
      rvalid_o <= 1'b0;
    end else if (arvalid_i && arready_o) begin
      rvalid_o <= 1'b1;
      rdata_o  <= read_i;
    end else if (rready_i) begin
      rvalid_o <= 1'b0;
    end
  end

  logic unused;
  assign unused = &{1'b0, awaddr_i[1:0], araddr_i[1:0]};
endmodule
`default_nettype wire
