// SPDX-License-Identifier: Apache-2.0
// A processor and its memory around engine_soc: runs a script (soc_processor.h) with the memory of
// the simulator (memory.h), which waits as the timing model's does. Addresses of the script count
// from the memory's base. Arguments: base, latency, jitter, words a cycle, stop, go, whether answers
// mix, size in bytes, seed.
#include <cstring>
#include <exception>

#include "memory.h"
#include "soc_processor.h"

static Memory memory;

// Words of 64 bits and wider ones, and bytes.
static void put(QData &signal, const uint8_t *bytes) { std::memcpy(&signal, bytes, 8); }
template <std::size_t N> static void put(VlWide<N> &signal, const uint8_t *bytes) {
  std::memcpy(signal.data(), bytes, 4 * N);
}
static void get(const QData &signal, uint8_t *bytes) { std::memcpy(bytes, &signal, 8); }
template <std::size_t N> static void get(const VlWide<N> &signal, uint8_t *bytes) {
  std::memcpy(bytes, signal.data(), 4 * N);
}

static void clock_high() {
  top.aclk = 1, top.eval();
  cycle++;
}

static void tick() {
  if (!top.aresetn) {  // the memory counts from reset on
    top.aclk = 0, top.eval();
    return clock_high();
  }
  const MemorySays &says = memory.before(cycle);
  top.m_axi_0_arready = says.ar_ready, top.m_axi_0_awready = says.aw_ready;
  top.m_axi_0_wready = says.w_ready;
  top.m_axi_0_rvalid = says.r_valid, top.m_axi_0_rid = says.r_id, top.m_axi_0_rlast = says.r_last;
  top.m_axi_0_rresp = says.r_error ? 2 : 0;
  if (says.r_valid) put(top.m_axi_0_rdata, says.r_data);
  top.m_axi_0_bvalid = says.b_valid, top.m_axi_0_bid = says.b_id;
  top.m_axi_0_bresp = says.b_error ? 2 : 0;
  top.aclk = 0, top.eval();
  MemoryAsks asks;
  asks.ar_valid = top.m_axi_0_arvalid, asks.ar_address = top.m_axi_0_araddr;
  asks.ar_length = top.m_axi_0_arlen, asks.ar_id = top.m_axi_0_arid;
  asks.r_ready = top.m_axi_0_rready;
  asks.aw_valid = top.m_axi_0_awvalid, asks.aw_address = top.m_axi_0_awaddr;
  asks.aw_length = top.m_axi_0_awlen, asks.aw_id = top.m_axi_0_awid;
  asks.w_valid = top.m_axi_0_wvalid, asks.w_last = top.m_axi_0_wlast;
  asks.b_ready = top.m_axi_0_bready;
  get(top.m_axi_0_wdata, asks.w_data);
  std::memcpy(asks.w_strobes, &top.m_axi_0_wstrb, memory.width / 64);
  memory.after(cycle, asks);
  clock_high();
}

int main(int count, char **values) {
  if (count != 10) fail("arguments");
  const auto whole = [&](int k) { return std::strtoull(values[k], nullptr, 0); };
  memory.name = "memory";
  memory.writable = true;
  memory.width = 8 * sizeof top.m_axi_0_rdata;
  memory.base = whole(1), memory.latency = whole(2), memory.jitter = whole(3);
  memory.rate = std::atof(values[4]);
  for (Stall *stall : {&memory.stall, &memory.write_stall, &memory.word_stall}) {
    stall->stop = std::atof(values[5]), stall->go = std::atof(values[6]);
  }
  memory.mixed = whole(7), memory.size = whole(8);
  memory.seed(whole(9));
  memory.grow();
  memory.bad_low = memory.bad_high = ~0ull;
  try {
    run_script(memory.bytes, memory.bad_low);
  } catch (const std::exception &error) {
    fail(error.what());
  }
  return 0;
}
