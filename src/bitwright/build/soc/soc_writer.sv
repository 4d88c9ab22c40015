// SPDX-License-Identifier: Apache-2.0
// Writes frames_i frames of FrameWords words of 64 bits of a stream from addr_i on, over AXI4 (bursts of 16 or, at the end,
// fewer: AXI3 takes them, too), one burst after another, each begun when all of it is there. addr_i
// is a multiple of 128 bytes. error_o: a response was not OKAY.
`default_nettype none
module soc_writer #(
  parameter int FrameWords = 1
) (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        start_i,
  input  logic [63:0] addr_i,
  input  logic [31:0] frames_i,
  output logic        busy_o,
  output logic        error_o,
  output logic [63:0] awaddr_o,
  output logic [7:0]  awlen_o,
  output logic        awvalid_o,
  input  logic        awready_i,
  output logic [63:0] wdata_o,
  output logic        wlast_o,
  output logic        wvalid_o,
  input  logic        wready_i,
  input  logic [1:0]  bresp_i,
  input  logic        bvalid_i,
  output logic        bready_o,
  input  logic        in_valid_i,
  output logic        in_ready_o,
  input  logic [63:0] in_data_i
);
  localparam int Depth = 64;
  localparam int Burst = 16;
  localparam logic [1:0] Idle = 2'd0, Address = 2'd1, Data = 2'd2, Response = 2'd3;

  logic [1:0]  state_q;
  logic [63:0] addr_q;
  logic [31:0] left_q, words_q;
  logic [6:0]  held_q, burst;
  logic [4:0]  todo_q;  // words of this burst still to be sent
  logic        valid, in_fire, sent;

  assign burst     = left_q < 32'(Burst) ? 7'(left_q) : 7'(Burst);
  assign in_fire   = in_valid_i & in_ready_o;
  assign sent      = wvalid_o & wready_i;
  assign awvalid_o = state_q == Address;
  assign awaddr_o  = addr_q;
  assign awlen_o   = 8'(burst) - 8'd1;
  assign wvalid_o  = state_q == Data && valid;
  assign wlast_o   = todo_q == 5'd1;
  assign bready_o  = state_q == Response;
  assign busy_o    = left_q != 32'd0 || state_q != Idle;
  assign error_o   = bvalid_i && bready_o && bresp_i != 2'b00;

  always_ff @(posedge clk_i) begin : p_state
    if (!rst_ni) begin
      state_q <= Idle;
      left_q  <= '0;
      held_q  <= '0;
      todo_q  <= '0;
    end else begin
      held_q <= held_q + 7'(in_fire) - 7'(sent);
      case (state_q)
        Idle: begin
          if (start_i) left_q <= words_q;
          else if (left_q != 32'd0 && held_q >= burst) state_q <= Address;
        end
        Address: begin
          if (awready_i) begin
            state_q <= Data;
            todo_q  <= 5'(burst);
            left_q  <= left_q - 32'(burst);
          end
        end
        Data: begin
          if (sent) todo_q <= todo_q - 1'b1;
          if (sent && wlast_o) state_q <= Response;
        end
        default: if (bvalid_i) state_q <= Idle;
      endcase
    end
  end

  // frames_i is still for two clocks before start_i.
  always_ff @(posedge clk_i) begin : p_words
    words_q <= frames_i * 32'(FrameWords);
  end

  always_ff @(posedge clk_i) begin : p_addr
    if (start_i) addr_q <= addr_i;
    else if (awvalid_o && awready_i) addr_q <= addr_q + 64'(8 * Burst);
  end

  stream_fifo #(.Width(64), .Depth(Depth), .RamStyle(0)) i_fifo (
    .clk_i, .rst_ni,
    .in_valid_i, .in_ready_o, .in_data_i,
    .out_valid_o(valid), .out_ready_i(sent), .out_data_o(wdata_o)
  );
endmodule
`default_nettype wire
