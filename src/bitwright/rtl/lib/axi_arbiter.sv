// SPDX-License-Identifier: Apache-2.0
// Several readers on one AXI4 read port, in turn (round robin; Ordered: the lowest that asks). ARID
// is {epoch, u} for reader u; read data go back by RID, so data of different readers may come
// mixed. The epoch counts the resets, and data of another epoch are dropped: the memory may still
// answer what was asked before a reset, or may have been reset too. (What is older than
// 2^EpochWidth resets with reads between them would pass: a memory is not that slow.) Reader ports
// are packed, reader 0 in the least significant bits. Readers accept read data always: m_axi_rready
// is 1. Bursts are INCR, of full width, ARCACHE normal (modifiable, bufferable). RRESP is
// not looked at; in simulation it must be OKAY unless the readers look at it themselves (Errors). A
// request passes in 1 cycle, one a cycle; read data without a register.
`default_nettype none
module axi_arbiter #(
  parameter int Readers    = 2,
  parameter int DataWidth  = 64,
  parameter int AddrWidth  = 32,
  parameter int EpochWidth = 2,
  parameter bit Ordered    = 1'b0,
  parameter bit Errors     = 1'b0,
  localparam int UnitWidth = Readers > 1 ? $clog2(Readers) : 1,
  localparam int IdWidth   = EpochWidth + UnitWidth
) (
  input  logic                         clk_i,
  input  logic                         rst_ni,
  input  logic [Readers-1:0]           ar_valid_i,
  output logic [Readers-1:0]           ar_ready_o,
  input  logic [Readers*AddrWidth-1:0] ar_addr_i,
  input  logic [Readers*8-1:0]         ar_len_i,
  output logic [Readers-1:0]           r_valid_o,
  output logic [DataWidth-1:0]         r_data_o,
  output logic                         m_axi_arvalid,
  input  logic                         m_axi_arready,
  output logic [AddrWidth-1:0]         m_axi_araddr,
  output logic [IdWidth-1:0]           m_axi_arid,
  output logic [7:0]                   m_axi_arlen,
  output logic [2:0]                   m_axi_arsize,
  output logic [1:0]                   m_axi_arburst,
  output logic [3:0]                   m_axi_arcache,
  output logic [2:0]                   m_axi_arprot,
  input  logic                         m_axi_rvalid,
  output logic                         m_axi_rready,
  input  logic [DataWidth-1:0]         m_axi_rdata,
  input  logic [IdWidth-1:0]           m_axi_rid,
  input  logic [1:0]                   m_axi_rresp,
  input  logic                         m_axi_rlast
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Readers < 1 || DataWidth < 8 || DataWidth > 1024 || (DataWidth & (DataWidth - 1)) != 0)
  begin : gen_check
    $error("axi_arbiter: DataWidth is a power of two from 8 to 1024, Readers at least 1");
  end
  if (EpochWidth < 1) begin : gen_check_epoch
    $error("axi_arbiter: EpochWidth must be at least 1");
  end
`endif

  localparam int RequestWidth = AddrWidth + 8 + UnitWidth;

  // A reset behind which something was asked ends an epoch. The number itself is never reset.
  logic [EpochWidth-1:0] epoch_q;
  logic                  asked_q;

  initial begin : p_power_up
    epoch_q = '0;
    asked_q = 1'b0;
  end

  logic asked;
  assign asked = asked_q | (m_axi_arvalid & m_axi_arready);

  // Not always_ff: that would have to be the only process of what `initial` sets.
  always @(posedge clk_i) begin : p_epoch
    asked_q <= asked & rst_ni;
    if (!rst_ni) epoch_q <= epoch_q + EpochWidth'(asked);
  end

  // The first reader after the last one served that asks, else the first that asks.
  logic [UnitWidth-1:0]    last_q, pick, unit;
  logic [RequestWidth-1:0] request;
  logic                    ready;

  always_comb begin : p_pick
    pick    = '0;
    request = '0;
    for (int u = Readers - 1; u >= 0; u--) begin
      if (ar_valid_i[u]) pick = UnitWidth'(u);
    end
    for (int u = Readers - 1; u >= 0; u--) begin
      if (!Ordered && ar_valid_i[u] && u > int'(last_q)) pick = UnitWidth'(u);
    end
    for (int u = 0; u < Readers; u++) begin
      ar_ready_o[u] = ready && ar_valid_i[u] && pick == UnitWidth'(u);
      if (pick == UnitWidth'(u)) begin
        request = {ar_addr_i[u*AddrWidth +: AddrWidth], ar_len_i[u*8 +: 8], UnitWidth'(u)};
      end
    end
  end

  always_ff @(posedge clk_i) begin : p_last
    if (!rst_ni) last_q <= '0;
    else if (ready && ar_valid_i != '0) last_q <= pick;
  end

  stream_skid #(.Width(RequestWidth)) i_skid (
    .clk_i, .rst_ni, .in_valid_i(ar_valid_i != '0), .in_ready_o(ready), .in_data_i(request),
    .out_valid_o(m_axi_arvalid), .out_ready_i(m_axi_arready),
    .out_data_o({m_axi_araddr, m_axi_arlen, unit})
  );

  assign m_axi_arid    = {epoch_q, unit};

  assign m_axi_arsize  = 3'($clog2(DataWidth / 8));
  assign m_axi_arburst = 2'b01;
  assign m_axi_arcache = 4'b0011;
  assign m_axi_arprot  = 3'b000;
  assign m_axi_rready  = 1'b1;
  assign r_data_o      = m_axi_rdata;

  for (genvar u = 0; u < Readers; u++) begin : gen_reader
    assign r_valid_o[u] = m_axi_rvalid & (m_axi_rid == {epoch_q, UnitWidth'(u)});
  end

`ifdef BITWRIGHT_CHECKS
  okay: assert property (@(posedge clk_i) disable iff (!rst_ni)
    m_axi_rvalid |-> (Errors || m_axi_rresp == 2'b00) && int'(m_axi_rid[UnitWidth-1:0]) < Readers);
  logic unused;
  assign unused = m_axi_rlast;
`else
  logic unused;
  assign unused = m_axi_rlast ^ (^m_axi_rresp) ^ Errors;
`endif
endmodule
`default_nettype wire
