// SPDX-License-Identifier: Apache-2.0
// Registers of an accelerator beside a processor, on AXI4-Lite (soc_registers). Byte addresses:
//   0x00 magic "BWS1"   0x04 digest of the design   0x08 write 1: start; read: 0 busy, 1 done, 2 error
//   0x0C frames of a run   0x10 cycles of the last run   0x14 number of outputs
//   0x18 address of the input frames (low, high)   0x20 + 8 k: address of the frames of output k
// Reads of other addresses give 0. Starts while busy, and of 0 frames, are ignored; done and error
// are cleared by a start.
`default_nettype none
module soc_control #(
  parameter logic [31:0] Digest  = 32'd0,
  parameter int          Outputs = 1
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic [7:0]            awaddr_i,
  input  logic                  awvalid_i,
  output logic                  awready_o,
  input  logic [31:0]           wdata_i,
  input  logic                  wvalid_i,
  output logic                  wready_o,
  output logic                  bvalid_o,
  input  logic                  bready_i,
  input  logic [7:0]            araddr_i,
  input  logic                  arvalid_i,
  output logic                  arready_o,
  output logic [31:0]           rdata_o,
  output logic                  rvalid_o,
  input  logic                  rready_i,
  output logic                  start_o,
  output logic [31:0]           frames_o,
  output logic [63:0]           in_addr_o,
  output logic [Outputs*64-1:0] out_addr_o,
  input  logic                  busy_i,
  input  logic                  error_i
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Outputs < 1 || Outputs > 28) begin : gen_check
    $error("soc_control: Outputs must be 1 to 28");
  end
`endif

  localparam int Words = 6 + 2 * (Outputs + 1);  // registers, the addresses last

  logic [(Outputs+1)*64-1:0] addr_q;
  logic [31:0]               frames_q, cycles_q, read;
  logic                      running_q, done_q, error_q;
  logic                      wr_fire;
  logic [5:0]                wr_word, rd_word;
  logic [31:0]               wr_data;

  soc_registers i_registers (
    .clk_i, .rst_ni, .awaddr_i, .awvalid_i, .awready_o, .wdata_i, .wvalid_i, .wready_o, .bvalid_o,
    .bready_i, .araddr_i, .arvalid_i, .arready_o, .rdata_o, .rvalid_o, .rready_i,
    .write_o(wr_fire), .write_word_o(wr_word), .write_data_o(wr_data),
    .read_word_o(rd_word), .read_i(read)
  );

  assign frames_o   = frames_q;
  assign in_addr_o  = addr_q[63:0];
  assign out_addr_o = addr_q[(Outputs+1)*64-1:64];

  always_ff @(posedge clk_i) begin : p_write
    if (!rst_ni) begin
      frames_q <= '0;
      addr_q   <= '0;
      start_o  <= 1'b0;
    end else begin
      start_o <= wr_fire && wr_word == 6'd2 && wr_data[0] && !running_q && !start_o
                 && frames_q != 32'd0;
      if (wr_fire && wr_word == 6'd3) frames_q <= wr_data;
      for (int k = 0; k < 2 * (Outputs + 1); k++) begin
        if (wr_fire && wr_word == 6'(6 + k)) addr_q[32*k+:32] <= wr_data;
      end
    end
  end

  // busy_i follows start_o by a clock.
  always_ff @(posedge clk_i) begin : p_run
    if (!rst_ni) begin
      running_q <= 1'b0;
      done_q    <= 1'b0;
      error_q   <= 1'b0;
      cycles_q  <= '0;
    end else if (start_o) begin
      running_q <= 1'b1;
      done_q    <= 1'b0;
      error_q   <= 1'b0;
      cycles_q  <= 32'd1;
    end else if (running_q) begin
      cycles_q <= cycles_q + 1'b1;
      error_q  <= error_q | error_i;
      if (!busy_i) begin
        running_q <= 1'b0;
        done_q    <= 1'b1;
      end
    end
  end

  always_comb begin : p_select
    read = 32'd0;
    case (rd_word)
      6'd0: read = 32'h31535742;
      6'd1: read = Digest;
      6'd2: read = {29'd0, error_q, done_q, running_q | start_o};
      6'd3: read = frames_q;
      6'd4: read = cycles_q;
      6'd5: read = 32'(Outputs);
      default: begin
        for (int k = 6; k < Words; k++) begin
          if (rd_word == 6'(k)) read = addr_q[32*(k-6)+:32];
        end
      end
    endcase
  end
endmodule
`default_nettype wire
