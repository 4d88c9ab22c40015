// SPDX-License-Identifier: Apache-2.0
// The programmed engine. A pulse of start_i runs the program that begins at base_i (a multiple of
// 4096) in memory; done_o is high from its end to the next start. cycles_o counts the cycles of the
// run, code_o is what HALT says. error_o: 0 an opcode that is none, 1 an error of a read, 2 of a
// write, 3 a start while it ran (which is ignored). Words that came with an error are taken as they
// are, but for the program: it ends there, as if HALT stood in their place. events_o, for benches:
// unit L, X, S took an instruction with tokens (bits 0, 2, 4), has completed one (1, 3, 5).
`default_nettype none
module engine #(
  parameter int Pixels        = 4,
  parameter int Lanes         = 8,
  parameter int Dsps          = 4,
  parameter bit Nibbles       = 1'b1,  // whether a lane may hold two values of 4 bits
  parameter bit Paired        = 1'b0,  // two pixels share a multiplier of 25 x 18 bits
  parameter int FeatureWords  = 32768,
  parameter int WeightRows    = 1024,
  parameter int ParameterRows = 512,
  parameter int PostLanes     = 1,  // of a pixel: 1 or 2
  parameter int AddrWidth     = 32,
  localparam int Width        = 8 * Lanes
) (
  input  logic                 ap_clk,
  input  logic                 ap_rst_n,
  input  logic                 start_i,
  output logic                 done_o,
  output logic [7:0]           code_o,
  output logic [3:0]           error_o,
  output logic [47:0]          cycles_o,
  output logic [5:0]           events_o,
  input  logic [AddrWidth-1:0] gmem0_base,
  output logic                 m_axi_gmem0_arvalid,
  input  logic                 m_axi_gmem0_arready,
  output logic [AddrWidth-1:0] m_axi_gmem0_araddr,
  output logic [2:0]           m_axi_gmem0_arid,
  output logic [7:0]           m_axi_gmem0_arlen,
  output logic [2:0]           m_axi_gmem0_arsize,
  output logic [1:0]           m_axi_gmem0_arburst,
  output logic [3:0]           m_axi_gmem0_arcache,
  output logic [2:0]           m_axi_gmem0_arprot,
  input  logic                 m_axi_gmem0_rvalid,
  output logic                 m_axi_gmem0_rready,
  input  logic [Width-1:0]     m_axi_gmem0_rdata,
  input  logic [2:0]           m_axi_gmem0_rid,
  input  logic [1:0]           m_axi_gmem0_rresp,
  input  logic                 m_axi_gmem0_rlast,
  output logic                 m_axi_gmem0_awvalid,
  input  logic                 m_axi_gmem0_awready,
  output logic [AddrWidth-1:0] m_axi_gmem0_awaddr,
  output logic [2:0]           m_axi_gmem0_awid,
  output logic [7:0]           m_axi_gmem0_awlen,
  output logic [2:0]           m_axi_gmem0_awsize,
  output logic [1:0]           m_axi_gmem0_awburst,
  output logic [3:0]           m_axi_gmem0_awcache,
  output logic [2:0]           m_axi_gmem0_awprot,
  output logic                 m_axi_gmem0_wvalid,
  input  logic                 m_axi_gmem0_wready,
  output logic [Width-1:0]     m_axi_gmem0_wdata,
  output logic [Width/8-1:0]   m_axi_gmem0_wstrb,
  output logic                 m_axi_gmem0_wlast,
  input  logic                 m_axi_gmem0_bvalid,
  output logic                 m_axi_gmem0_bready,
  input  logic [2:0]           m_axi_gmem0_bid,
  input  logic [1:0]           m_axi_gmem0_bresp
);
  // Control.
  logic       run_q, even_q, go, halted, bad, over;
  logic [7:0] pending_q;  // instructions dealt and not complete
  logic       dealt, spent, b_error;
  logic [1:0] r_error;
  logic [2:0] started, complete;
  assign go   = start_i & ~run_q;
  assign over = run_q & halted & (pending_q == '0);

  always_ff @(posedge ap_clk) begin : p_control
    if (!ap_rst_n) begin
      run_q     <= 1'b0;
      done_o    <= 1'b0;
      even_q    <= 1'b1;
      pending_q <= '0;
      error_o   <= '0;
      cycles_o  <= '0;
    end else begin
      even_q    <= go | ~even_q;  // a run's cycles do not depend on when it starts
      run_q     <= go | (run_q & ~over);
      done_o    <= over | (done_o & ~go);
      cycles_o  <= go ? '0 : cycles_o + 48'(run_q);
      pending_q <= pending_q + 8'(dealt) - 8'(spent) - 8'(complete[0]) - 8'(complete[1])
                   - 8'(complete[2]);
      if (go) begin
        error_o <= '0;
      end else begin
        error_o[0] <= error_o[0] | bad;
        error_o[1] <= error_o[1] | (r_error != '0);
        error_o[2] <= error_o[2] | b_error;
        error_o[3] <= error_o[3] | (start_i & run_q);
      end
    end
  end
  assign events_o = {complete[2], started[2], complete[1], started[1], complete[0], started[0]};

  // Fetcher and units.
  logic [1:0]             ar_valid, ar_ready, r_valid;
  logic [2*AddrWidth-1:0] ar_addr;
  logic [15:0]            ar_len;
  logic [Width-1:0]       r_data;
  logic [2:0]             unit_valid, unit_ready;
  logic [255:0]           word;

  engine_fetch #(.Width(Width), .AddrWidth(AddrWidth)) i_fetch (
    .clk_i(ap_clk), .rst_ni(ap_rst_n), .start_i(go), .base_i(gmem0_base), .halted_o(halted),
    .run_i(run_q), .bad_o(bad), .code_o, .ar_valid_o(ar_valid[1]), .ar_ready_i(ar_ready[1]),
    .ar_addr_o(ar_addr[AddrWidth +: AddrWidth]), .ar_len_o(ar_len[15:8]), .r_valid_i(r_valid[1]),
    .r_data_i(r_data), .r_error_i(r_error[1]), .valid_o(unit_valid), .ready_i(unit_ready),
    .word_o(word), .dealt_o(dealt)
  );

  engine_units #(
    .Pixels(Pixels), .Lanes(Lanes), .Dsps(Dsps), .Nibbles(Nibbles),
    .Paired(Paired), .FeatureWords(FeatureWords), .WeightRows(WeightRows),
    .ParameterRows(ParameterRows), .PostLanes(PostLanes), .AddrWidth(AddrWidth)
  ) i_units (
    .clk_i(ap_clk), .rst_ni(ap_rst_n), .clear_i(go), .even_i(even_q), .base_i(gmem0_base),
    .valid_i(unit_valid), .ready_o(unit_ready), .word_i(word), .go_o(started), .done_o(complete),
    .spent_o(spent), .ar_valid_o(ar_valid[0]), .ar_ready_i(ar_ready[0]),
    .ar_addr_o(ar_addr[0 +: AddrWidth]), .ar_len_o(ar_len[7:0]), .r_valid_i(r_valid[0]),
    .r_data_i(r_data), .aw_valid_o(m_axi_gmem0_awvalid), .aw_ready_i(m_axi_gmem0_awready),
    .aw_addr_o(m_axi_gmem0_awaddr), .aw_len_o(m_axi_gmem0_awlen),
    .aw_id_o(m_axi_gmem0_awid[1:0]), .w_valid_o(m_axi_gmem0_wvalid),
    .w_ready_i(m_axi_gmem0_wready), .w_data_o(m_axi_gmem0_wdata), .w_last_o(m_axi_gmem0_wlast),
    .b_valid_i(m_axi_gmem0_bvalid), .b_id_i(m_axi_gmem0_bid[1:0])
  );

  axi_arbiter #(
    .Readers(2), .DataWidth(Width), .AddrWidth(AddrWidth), .Ordered(1'b1), .Errors(1'b1)
  ) i_arbiter (
    .clk_i(ap_clk), .rst_ni(ap_rst_n), .ar_valid_i(ar_valid), .ar_ready_o(ar_ready),
    .ar_addr_i(ar_addr), .ar_len_i(ar_len), .r_valid_o(r_valid), .r_data_o(r_data),
    .m_axi_arvalid(m_axi_gmem0_arvalid), .m_axi_arready(m_axi_gmem0_arready),
    .m_axi_araddr(m_axi_gmem0_araddr), .m_axi_arid(m_axi_gmem0_arid),
    .m_axi_arlen(m_axi_gmem0_arlen), .m_axi_arsize(m_axi_gmem0_arsize),
    .m_axi_arburst(m_axi_gmem0_arburst), .m_axi_arcache(m_axi_gmem0_arcache),
    .m_axi_arprot(m_axi_gmem0_arprot), .m_axi_rvalid(m_axi_gmem0_rvalid),
    .m_axi_rready(m_axi_gmem0_rready), .m_axi_rdata(m_axi_gmem0_rdata),
    .m_axi_rid(m_axi_gmem0_rid), .m_axi_rresp(m_axi_gmem0_rresp), .m_axi_rlast(m_axi_gmem0_rlast)
  );

  // Of what was asked before a reset nobody wants to know.
  assign r_error = r_valid & {2{m_axi_gmem0_rresp != '0}};
  assign b_error = m_axi_gmem0_bvalid & (m_axi_gmem0_bid == m_axi_gmem0_awid)
                   & (m_axi_gmem0_bresp != '0);

  assign m_axi_gmem0_awid[2] = 1'b0;
  assign m_axi_gmem0_awsize  = 3'($clog2(Width / 8));
  assign m_axi_gmem0_awburst = 2'b01;
  assign m_axi_gmem0_awcache = 4'b0011;
  assign m_axi_gmem0_awprot  = 3'b000;
  assign m_axi_gmem0_wstrb   = '1;
  assign m_axi_gmem0_bready  = 1'b1;
endmodule
`default_nettype wire
