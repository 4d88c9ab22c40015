// SPDX-License-Identifier: Apache-2.0
// Two-entry elastic register: one beat a cycle, latency 1 (a beat accepted in cycle t is on the
// output in cycle t + 1), holds two beats. No combinational path from out_ready_i to in_ready_o
// or from input to output.
`default_nettype none
module stream_skid #(
  parameter int Width = 8
) (
  input  logic             clk_i,
  input  logic             rst_ni,
  input  logic             in_valid_i,
  output logic             in_ready_o,
  input  logic [Width-1:0] in_data_i,
  output logic             out_valid_o,
  input  logic             out_ready_i,
  output logic [Width-1:0] out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Width < 1) begin : gen_check_width
    $error("stream_skid: Width must be at least 1");
  end
`endif

  logic             main_valid_q, skid_valid_q;
  logic [Width-1:0] main_data_q, skid_data_q;
  logic             in_fire, main_free;

  assign in_ready_o  = ~skid_valid_q;
  assign out_valid_o = main_valid_q;
  assign out_data_o  = main_data_q;
  assign in_fire     = in_valid_i & in_ready_o;
  assign main_free   = ~main_valid_q | out_ready_i;

  always_ff @(posedge clk_i) begin : p_valid
    if (!rst_ni) begin
      main_valid_q <= 1'b0;
      skid_valid_q <= 1'b0;
    end else begin
      if (main_free) main_valid_q <= skid_valid_q | in_fire;
      if (main_free) skid_valid_q <= 1'b0;
      else if (in_fire) skid_valid_q <= 1'b1;
    end
  end

  always_ff @(posedge clk_i) begin : p_data
    if (main_free) main_data_q <= skid_valid_q ? skid_data_q : in_data_i;
    if (in_fire) skid_data_q <= in_data_i;
  end

`ifdef BITWRIGHT_CHECKS
  stream_check #(.Width(Width), .IsOutput(1'b1)) i_check_out (
    .clk_i, .rst_ni, .valid_i(out_valid_o), .ready_i(out_ready_i), .data_i(out_data_o)
  );
`endif
endmodule
`default_nettype wire
