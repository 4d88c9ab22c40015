// SPDX-License-Identifier: Apache-2.0
// Whole frames of bytes from Ports streams, in turn: a frame of port 0, of port 1, and so on, then
// port 0 again. Combinational; the turn moves on when the last byte of a frame is taken.
`default_nettype none
module shell_merge #(
  parameter int Ports = 2
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic [Ports-1:0]   in_valid_i,
  output logic [Ports-1:0]   in_ready_o,
  input  logic [Ports*8-1:0] in_data_i,
  input  logic [Ports-1:0]   in_last_i,
  output logic               out_valid_o,
  input  logic               out_ready_i,
  output logic [7:0]         out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Ports < 1) begin : gen_check
    $error("shell_merge: Ports must be at least 1");
  end
`endif

  logic [Ports-1:0] turn_q;  // one bit is set: whose turn it is
  logic             last;

  assign out_valid_o = |(in_valid_i & turn_q);
  assign last        = |(in_last_i & turn_q);
  assign in_ready_o  = turn_q & {Ports{out_ready_i}};

  always_comb begin : p_select
    out_data_o = '0;
    for (int p = 0; p < Ports; p++) begin
      out_data_o = out_data_o | (in_data_i[p*8 +: 8] & {8{turn_q[p]}});
    end
  end

  if (Ports == 1) begin : gen_one
    assign turn_q = 1'b1;
  end else begin : gen_turn
    always_ff @(posedge clk_i) begin : p_turn
      if (!rst_ni) turn_q <= Ports'(1);
      else if (out_valid_o && out_ready_i && last) turn_q <= {turn_q[Ports-2:0], turn_q[Ports-1]};
    end
  end
endmodule
`default_nettype wire
