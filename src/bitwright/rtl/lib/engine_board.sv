// SPDX-License-Identifier: Apache-2.0
// An engine with its memory, an SDRAM of 16 bits at twice the clock, and the console through which
// a host loads programs, starts them and fetches results. Streams: engine_console's frames, Burst
// words each. power_ni: the memory's own reset; ap_rst_n leaves its contents alone.
`default_nettype none
module engine_board #(
  parameter int Pixels        = 4,
  parameter int Lanes         = 8,
  parameter int Dsps          = 4,
  parameter bit Nibbles       = 1'b1,
  parameter bit Paired        = 1'b0,
  parameter int FeatureWords  = 32768,
  parameter int WeightRows    = 1024,
  parameter int ParameterRows = 512,
  parameter int PostLanes     = 1,
  parameter int Burst         = 14,
  parameter int MemoryWords   = 4194304,
  parameter int RowWidth      = 13,
  parameter int ColWidth      = 9,
  parameter int Rcd           = 1,
  parameter int Rp            = 2,
  parameter int Ras           = 3,
  parameter int Rfc           = 5,
  parameter int Rrd           = 1,
  parameter int Mrd           = 1,
  parameter int Close         = 4,
  parameter int Turn          = 5,
  parameter int PowerUp       = 12501,
  parameter int Refresh       = 488,
  parameter int Delay         = 5
) (
  input  logic                ap_clk,
  input  logic                ap_rst_n,
  input  logic                power_ni,
  input  logic [63:0]         s_axis_0_tdata,
  input  logic                s_axis_0_tvalid,
  output logic                s_axis_0_tready,
  input  logic                s_axis_0_tlast,
  output logic [63:0]         m_axis_0_tdata,
  output logic                m_axis_0_tvalid,
  input  logic                m_axis_0_tready,
  output logic                m_axis_0_tlast,
  output logic [2:0]          row_command_o,
  output logic [1:0]          row_bank_o,
  output logic [RowWidth-1:0] row_address_o,
  output logic [2:0]          column_command_o,
  output logic [1:0]          column_bank_o,
  output logic [RowWidth-1:0] column_address_o,
  output logic                oe_o,
  output logic [31:0]         dq_o,
  input  logic [31:0]         dq_i
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Lanes != 8) begin : gen_check
    $error("engine_board: the memory has words of 64 bits, so Lanes must be 8");
  end
`endif

  // Requests of the engine (e_) and the console (c_), and what the memory sees.
  logic        start, done, sync, synced, memory_ready, mine;
  logic [7:0]  code, e_arlen, e_awlen;
  logic [3:0]  error;
  logic [47:0] cycles;
  logic        e_arvalid, e_awvalid, e_wvalid, e_wlast, c_arvalid, c_awvalid, c_wvalid;
  logic        arready, awready, wready, rvalid, rlast, bvalid;
  logic [31:0] e_araddr, e_awaddr, c_addr;
  logic [2:0]  e_arid, e_awid, rid, bid;
  logic [63:0] e_wdata, c_wdata, rdata;

  engine #(
    .Pixels(Pixels), .Lanes(Lanes), .Dsps(Dsps), .Nibbles(Nibbles),
    .Paired(Paired), .FeatureWords(FeatureWords), .WeightRows(WeightRows),
    .ParameterRows(ParameterRows), .PostLanes(PostLanes)
  ) i_engine (
    .ap_clk, .ap_rst_n, .start_i(start), .done_o(done), .code_o(code), .error_o(error),
    .cycles_o(cycles), .events_o(), .gmem0_base(32'd0),
    .m_axi_gmem0_arvalid(e_arvalid), .m_axi_gmem0_arready(arready & ~mine),
    .m_axi_gmem0_araddr(e_araddr), .m_axi_gmem0_arid(e_arid), .m_axi_gmem0_arlen(e_arlen),
    .m_axi_gmem0_arsize(), .m_axi_gmem0_arburst(), .m_axi_gmem0_arcache(),
    .m_axi_gmem0_arprot(), .m_axi_gmem0_rvalid(rvalid & ~mine), .m_axi_gmem0_rready(),
    .m_axi_gmem0_rdata(rdata), .m_axi_gmem0_rid(rid), .m_axi_gmem0_rresp(2'b00),
    .m_axi_gmem0_rlast(rlast), .m_axi_gmem0_awvalid(e_awvalid),
    .m_axi_gmem0_awready(awready & ~mine), .m_axi_gmem0_awaddr(e_awaddr),
    .m_axi_gmem0_awid(e_awid), .m_axi_gmem0_awlen(e_awlen), .m_axi_gmem0_awsize(),
    .m_axi_gmem0_awburst(), .m_axi_gmem0_awcache(), .m_axi_gmem0_awprot(),
    .m_axi_gmem0_wvalid(e_wvalid), .m_axi_gmem0_wready(wready & ~mine),
    .m_axi_gmem0_wdata(e_wdata), .m_axi_gmem0_wstrb(), .m_axi_gmem0_wlast(e_wlast),
    .m_axi_gmem0_bvalid(bvalid & ~mine), .m_axi_gmem0_bready(), .m_axi_gmem0_bid(bid),
    .m_axi_gmem0_bresp(2'b00)
  );

  engine_console #(.Burst(Burst), .MemoryWords(MemoryWords)) i_console (
    .clk_i(ap_clk), .rst_ni(ap_rst_n), .in_valid_i(s_axis_0_tvalid),
    .in_ready_o(s_axis_0_tready), .in_data_i(s_axis_0_tdata), .out_valid_o(m_axis_0_tvalid),
    .out_ready_i(m_axis_0_tready), .out_data_o(m_axis_0_tdata), .start_o(start), .done_i(done),
    .code_i(code), .error_i(error), .cycles_i(cycles), .sync_o(sync), .synced_i(synced),
    .memory_ready_i(memory_ready), .mine_o(mine), .addr_o(c_addr), .ar_valid_o(c_arvalid),
    .ar_ready_i(arready & mine), .r_valid_i(rvalid & mine), .r_data_i(rdata),
    .aw_valid_o(c_awvalid), .aw_ready_i(awready & mine), .w_valid_o(c_wvalid),
    .w_ready_i(wready & mine), .w_data_o(c_wdata), .b_valid_i(bvalid & mine)
  );
  assign m_axis_0_tlast = 1'b0;  // frames are counted

  sdram_port #(
    .RowWidth(RowWidth), .ColWidth(ColWidth), .Rcd(Rcd), .Rp(Rp), .Ras(Ras), .Rfc(Rfc),
    .Rrd(Rrd), .Mrd(Mrd), .Close(Close), .Turn(Turn), .PowerUp(PowerUp), .Refresh(Refresh),
    .Delay(Delay)
  ) i_memory (
    .clk_i(ap_clk), .power_ni, .rst_ni(ap_rst_n), .sync_i(sync), .synced_o(synced),
    .ready_o(memory_ready), .s_axi_arvalid(mine ? c_arvalid : e_arvalid),
    .s_axi_arready(arready), .s_axi_araddr(mine ? c_addr : e_araddr),
    .s_axi_arlen(mine ? 8'd0 : e_arlen), .s_axi_arid(e_arid), .s_axi_rvalid(rvalid),
    .s_axi_rdata(rdata), .s_axi_rid(rid), .s_axi_rlast(rlast),
    .s_axi_awvalid(mine ? c_awvalid : e_awvalid), .s_axi_awready(awready),
    .s_axi_awaddr(mine ? c_addr : e_awaddr), .s_axi_awlen(mine ? 8'd0 : e_awlen),
    .s_axi_awid(e_awid), .s_axi_wvalid(mine ? c_wvalid : e_wvalid), .s_axi_wready(wready),
    .s_axi_wdata(mine ? c_wdata : e_wdata), .s_axi_wlast(mine | e_wlast),
    .s_axi_bvalid(bvalid), .s_axi_bid(bid), .row_command_o, .row_bank_o, .row_address_o,
    .column_command_o, .column_bank_o, .column_address_o, .oe_o, .dq_o, .dq_i
  );

  logic unused;
  assign unused = s_axis_0_tlast;
endmodule
`default_nettype wire
