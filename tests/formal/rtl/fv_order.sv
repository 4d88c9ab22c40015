// SPDX-License-Identifier: Apache-2.0
// Order, no loss, no invention, capacity: elements of Width bits go in (InUnits a beat) and come out
// (OutUnits a beat) in the same order. One element of an unknown beat, chosen by mark_i and lane_i,
// is followed until it comes out: since it may be any, the law holds for all.
// Capacity: most elements that may be inside; inside_o: those that are.
`default_nettype none
module fv_order #(
  parameter int Width    = 1,
  parameter int InUnits  = 1,
  parameter int OutUnits = 1,
  parameter int Capacity = 2,
  localparam int CountWidth = $clog2(Capacity + InUnits + OutUnits + 2)
) (
  input logic                      clk_i,
  input logic                      rst_ni,
  input logic                      mark_i,
  input logic [CountWidth-1:0]     lane_i,
  input logic                      in_fire_i,
  input logic [InUnits*Width-1:0]  in_data_i,
  input logic                      out_fire_i,
  input logic [OutUnits*Width-1:0] out_data_i,
  output logic [CountWidth-1:0]    inside_o
);
  logic [CountWidth-1:0] inside_q, ahead_q;  // elements inside; those before the followed one
  logic                  follows_q;
  logic [Width-1:0]      element_q;
  logic [CountWidth-1:0] gone, come;

  initial {inside_q, follows_q} = '0;
  assign inside_o = inside_q;
  assign gone = out_fire_i ? CountWidth'(OutUnits) : '0;
  assign come = in_fire_i ? CountWidth'(InUnits) : '0;

  always @(posedge clk_i) begin
    if (!rst_ni) begin
      inside_q  <= '0;
      follows_q <= 1'b0;
    end else begin
      inside_q <= inside_q + come - gone;
      if (!follows_q) begin
        if (mark_i && in_fire_i && lane_i < CountWidth'(InUnits)) begin
          follows_q <= 1'b1;
          element_q <= in_data_i[lane_i*Width +: Width];
          ahead_q   <= inside_q - gone + lane_i;
        end
      end else if (out_fire_i) begin
        ahead_q <= ahead_q - CountWidth'(OutUnits);
        if (ahead_q < CountWidth'(OutUnits)) follows_q <= 1'b0;
      end
    end
  end

  always_comb if (rst_ni) begin
    if (out_fire_i) no_invention: assert (inside_q >= CountWidth'(OutUnits));
    capacity: assert (inside_q <= CountWidth'(Capacity));
    if (follows_q && out_fire_i && ahead_q < CountWidth'(OutUnits)) begin
      order: assert (out_data_i[ahead_q*Width +: Width] == element_q);
    end
  end
endmodule
`default_nettype wire
