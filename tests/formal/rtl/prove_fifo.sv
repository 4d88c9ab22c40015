// SPDX-License-Identifier: Apache-2.0
// stream_fifo is a queue of exactly Depth.
`default_nettype none
module prove_fifo #(
  parameter int Width = 1,
  parameter int Depth = 3,
  parameter int Style = 0,
  parameter int Lines = 0,
  localparam int CountWidth = $clog2(Depth + 4)
) (
  input logic             clk_i,
  input logic             rst_ni,
  input logic             mark_i,
  input logic             in_valid_i,
  input logic [Width-1:0] in_data_i,
  input logic             out_ready_i
);
  logic                  in_ready, out_valid;
  logic [Width-1:0]      out_data;
  logic [CountWidth-1:0] inside;

  stream_fifo #(.Width(Width), .Depth(Depth), .RamStyle(Style), .RamLines(Lines)) i_dut (
    .clk_i, .rst_ni, .in_valid_i, .in_ready_o(in_ready), .in_data_i,
    .out_valid_o(out_valid), .out_ready_i, .out_data_o(out_data)
  );
  fv_rules #(.Width(Width), .Limit(3)) i_rules (
    .clk_i, .rst_ni, .offered_i(in_valid_i),
    .out_valid_i(out_valid), .out_ready_i, .out_data_i(out_data)
  );
  fv_order #(.Width(Width), .Capacity(Depth)) i_order (
    .clk_i, .rst_ni, .mark_i, .lane_i('0),
    .in_fire_i(in_valid_i & in_ready), .in_data_i,
    .out_fire_i(out_valid & out_ready_i), .out_data_i(out_data), .inside_o(inside)
  );
  always_comb if (rst_ni && !$initstate) begin
    exact_capacity: assert (in_ready == (inside < CountWidth'(Depth)));
  end
endmodule
`default_nettype wire
