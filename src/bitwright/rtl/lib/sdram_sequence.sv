// SPDX-License-Identifier: Apache-2.0
// What an SDRAM wants besides reads and writes: the sequence after power-up (PowerUp cycles of
// rest, precharge, Refreshes refreshes, mode register: bursts of 4, CAS latency 3), and a refresh
// every Refresh cycles on average. hold_o: nobody else may command; quiet_i: nothing is going on
// that a precharge of all banks would disturb. sync_i asks for a refresh out of turn; synced_o says
// for a cycle that it is over: all banks are closed, nobody waits for anything, and the interval
// begins anew, so that what follows does not depend on what was before. Commands {ras, cas, we},
// low active. Times in cycles of two clocks of the chip.
`default_nettype none
module sdram_sequence #(
  parameter int Rp        = 2,
  parameter int Rfc       = 5,
  parameter int Mrd       = 1,
  parameter int PowerUp   = 12500,
  parameter int Refresh   = 486,
  parameter int Refreshes = 8
) (
  input  logic        clk_i,
  input  logic        power_ni,  // from power-up; the chip's state survives rst_ni
  input  logic        rst_ni,
  input  logic        quiet_i,
  input  logic        sync_i,
  output logic        synced_o,
  output logic        hold_o,
  output logic        clear_o,   // all banks close
  output logic        ready_o,   // powered up
  output logic [2:0]  command_o,
  output logic [12:0] address_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Rp < 1 || Rfc < 1 || Mrd < 1 || PowerUp < 1 || Refreshes < 2 || Refreshes > 15
      || Refresh < 64) begin : gen_check
    $error("sdram_sequence: times must be positive, 2 to 15 refreshes, 64 cycles between them");
  end
`endif

  localparam logic [2:0]  NOP = 3'b111, PRECHARGE = 3'b010, REFRESH = 3'b001, MODE = 3'b000;
  localparam logic [12:0] ALL_BANKS = 13'h0400, MODE_WORD = 13'h0032;
  localparam int TimeWidth  = $clog2(PowerUp > 16 ? PowerUp : 16);
  localparam int CountWidth = $clog2(Refresh);

  typedef enum logic [2:0] {REST, CLOSE, RENEW, SETUP, RUN} state_t;

  state_t                state_q;
  logic [TimeWidth-1:0]  time_q;
  logic [CountWidth-1:0] count_q;
  logic [3:0]            left_q;
  logic                  due_q, sync_q, served_q, over;

  assign over     = time_q == '0;
  assign synced_o = state_q == RUN && over && served_q;
  assign hold_o   = state_q != RUN || !over || ((due_q || sync_q) && !served_q);
  assign clear_o  = state_q == CLOSE && quiet_i;

  always_comb begin : p_command
    command_o = NOP;
    address_o = ALL_BANKS;
    case (state_q)
      CLOSE:   if (quiet_i) command_o = PRECHARGE;
      RENEW:   if (over) command_o = REFRESH;
      SETUP: if (over) begin
        command_o = MODE;
        address_o = MODE_WORD;
      end
      default: command_o = NOP;
    endcase
  end

  always_ff @(posedge clk_i) begin : p_state
    if (!power_ni) begin
      state_q <= REST;
      time_q  <= TimeWidth'(PowerUp - 1);
      left_q  <= 4'(Refreshes);
      ready_o <= 1'b0;
    end else begin
      if (!over) time_q <= time_q - 1'b1;
      case (state_q)
        REST: if (over) state_q <= CLOSE;
        CLOSE: if (quiet_i) begin
          state_q <= RENEW;
          time_q  <= TimeWidth'(Rp - 1);
        end
        RENEW: if (over) begin
          time_q <= TimeWidth'(Rfc - 1);
          left_q <= left_q - 1'b1;
          if (left_q == 4'd1) state_q <= ready_o ? RUN : SETUP;
        end
        SETUP: if (over) begin
          state_q <= RUN;
          time_q  <= TimeWidth'(Mrd - 1);
          ready_o <= 1'b1;
        end
        default: if (over && (due_q || sync_q) && !served_q) begin
          state_q <= CLOSE;
          left_q  <= 4'd1;
        end
      endcase
    end
  end

  always_ff @(posedge clk_i) begin : p_due
    if (!power_ni) begin
      count_q <= CountWidth'(Refresh - 1);
      due_q   <= 1'b0;
    end else begin
      count_q <= synced_o || count_q == '0 ? CountWidth'(Refresh - 1) : count_q - 1'b1;
      due_q   <= !synced_o && (count_q == '0 || (due_q && !clear_o));
    end
  end

  always_ff @(posedge clk_i) begin : p_sync
    if (!rst_ni || synced_o) begin
      sync_q   <= 1'b0;
      served_q <= 1'b0;
    end else begin
      sync_q   <= sync_q || sync_i;
      served_q <= served_q || (clear_o && sync_q);
    end
  end
endmodule
`default_nettype wire
