// SPDX-License-Identifier: Apache-2.0
// Tokens between the three units 0, 1 and 2: a counter of 8 bits for each ordered pair. want_i:
// what the unit's next instruction, there with valid_i until take_i, waits for (bit u: a token of
// unit u); ready_o: they were all there in the cycle before, when that instruction was already the
// next one; go_i: it begins and takes them. done_i: an instruction is complete and gives a token to
// each unit of give_i, which can be taken two cycles later. Bits of a unit itself are ignored.
`default_nettype none
module engine_tokens (
  input  logic        clk_i,
  input  logic        rst_ni,
  input  logic        clear_i,
  input  logic [2:0]  valid_i,
  input  logic [2:0]  take_i,
  input  logic [11:0] want_i,   // 4 bits a unit
  input  logic [2:0]  go_i,
  output logic [2:0]  ready_o,
  input  logic [2:0]  done_i,
  input  logic [11:0] give_i
);
  logic [8:0] lacks;  // unit u waits in vain for unit v: bit 3 u + v

  for (genvar u = 0; u < 3; u++) begin : gen_taker
    // Only this unit takes its tokens, so what was there stays until its instruction begins.
    always_ff @(posedge clk_i) begin : p_ready
      if (!rst_ni) ready_o[u] <= 1'b0;
      else ready_o[u] <= valid_i[u] & ~take_i[u] & (lacks[3*u +: 3] == '0);
    end

    for (genvar v = 0; v < 3; v++) begin : gen_giver
      if (u == v) begin : gen_self
        assign lacks[3*u+v] = 1'b0;
      end else begin : gen_counter
        logic [7:0] count_q;
        logic       take, give;
        assign lacks[3*u+v] = want_i[4*u+v] & (count_q == '0);
        assign take         = go_i[u] & want_i[4*u+v];
        assign give         = done_i[v] & give_i[4*v+u];
        always_ff @(posedge clk_i) begin : p_count
          if (!rst_ni || clear_i) count_q <= '0;
          else if (take != give) count_q <= give ? count_q + 1'b1 : count_q - 1'b1;
        end
`ifdef BITWRIGHT_CHECKS
        no_overflow: assert property (@(posedge clk_i) disable iff (!rst_ni)
          give && !take |-> count_q != '1);
`endif
      end
    end
  end

  logic unused;
  assign unused = ^{want_i, give_i};
endmodule
`default_nettype wire
