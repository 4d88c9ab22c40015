// SPDX-License-Identifier: Apache-2.0
// A processor and its memory around dots_soc: runs a script (soc_processor.h), with random waits on
// every channel. Ends with 1 when the design breaks a rule of AXI.
#include <deque>

#include "soc_processor.h"

static std::vector<uint8_t> memory(1 << 20);
static uint64_t refuse = ~0ull;
static uint32_t state = 12345;
static bool chance(unsigned percent) {
  state = state * 1664525u + 1013904223u;
  return (state >> 16) % 100 < percent;
}
struct Burst {
  uint64_t addr;
  unsigned left;
};
static Burst accept(uint64_t addr, unsigned len, unsigned size, unsigned burst) {
  const uint64_t last = addr + 8 * len + 7;
  if (len > 15) fail("a burst of more than 16");
  if (addr % 8 || addr >> 12 != last >> 12) fail("a burst across 4 KiB");
  if (size != 3 || burst != 1) fail("size or kind of a burst");
  if (last >= memory.size()) fail("an address outside");
  return {addr, len + 1};
}

// One AXI4 port. `settle` sets what the memory drives; `clock` looks at what was agreed on.
#define MASTER(K)                                                                                \
  struct Master##K {                                                                             \
    std::deque<Burst> reads, writes;                                                             \
    unsigned answers = 0;                                                                        \
    bool bad = false;                                                                            \
    bool held_ar = false, held_aw = false, held_w = false;                                       \
    uint64_t ar = 0, aw = 0, w = 0;                                                              \
    void settle(Vtop &t) {                                                                       \
      t.m_axi_##K##_arready = chance(60);                                                        \
      t.m_axi_##K##_awready = chance(60);                                                        \
      t.m_axi_##K##_wready = !writes.empty() && chance(70);                                      \
      if (!t.m_axi_##K##_rvalid && !reads.empty() && chance(70)) {                               \
        uint64_t data = 0;                                                                       \
        for (int k = 7; k >= 0; k--) data = data << 8 | memory[reads.front().addr + k];          \
        t.m_axi_##K##_rdata = data;                                                              \
        t.m_axi_##K##_rresp = reads.front().addr >= refuse ? 2 : 0;                              \
        t.m_axi_##K##_rlast = reads.front().left == 1;                                           \
        t.m_axi_##K##_rvalid = 1;                                                                \
      }                                                                                          \
      if (!t.m_axi_##K##_bvalid && answers && chance(50)) {                                      \
        t.m_axi_##K##_bvalid = 1;                                                                \
        t.m_axi_##K##_bresp = bad ? 2 : 0;                                                       \
      }                                                                                          \
    }                                                                                            \
    void clock(Vtop &t) {                                                                        \
      if (held_ar && (!t.m_axi_##K##_arvalid || ar != t.m_axi_##K##_araddr)) fail("ar changed"); \
      if (held_aw && (!t.m_axi_##K##_awvalid || aw != t.m_axi_##K##_awaddr)) fail("aw changed"); \
      if (held_w && (!t.m_axi_##K##_wvalid || w != t.m_axi_##K##_wdata)) fail("w changed");      \
      held_ar = t.m_axi_##K##_arvalid && !t.m_axi_##K##_arready;                                 \
      held_aw = t.m_axi_##K##_awvalid && !t.m_axi_##K##_awready;                                 \
      held_w = t.m_axi_##K##_wvalid && !t.m_axi_##K##_wready;                                    \
      ar = t.m_axi_##K##_araddr, aw = t.m_axi_##K##_awaddr, w = t.m_axi_##K##_wdata;             \
      if (t.m_axi_##K##_rvalid && t.m_axi_##K##_rready) {                                        \
        reads.front().addr += 8;                                                                 \
        if (--reads.front().left == 0) reads.pop_front();                                        \
        taken_r = true;                                                                          \
      }                                                                                          \
      if (t.m_axi_##K##_wvalid && t.m_axi_##K##_wready) {                                        \
        Burst &b = writes.front();                                                               \
        if (bool(t.m_axi_##K##_wlast) != (b.left == 1)) fail("wlast");                           \
        if (t.m_axi_##K##_wstrb != 255) fail("strobes");                                         \
        if (b.addr >= refuse) bad = true;                                                        \
        for (int k = 0; k < 8; k++) memory[b.addr + k] = uint8_t(t.m_axi_##K##_wdata >> 8 * k);  \
        b.addr += 8;                                                                             \
        if (--b.left == 0) writes.pop_front(), answers++;                                        \
      }                                                                                          \
      if (t.m_axi_##K##_bvalid && t.m_axi_##K##_bready) taken_b = true, bad = false, answers--;  \
      if (t.m_axi_##K##_arvalid && t.m_axi_##K##_arready)                                        \
        reads.push_back(accept(t.m_axi_##K##_araddr, t.m_axi_##K##_arlen, t.m_axi_##K##_arsize,  \
                               t.m_axi_##K##_arburst));                                          \
      if (t.m_axi_##K##_awvalid && t.m_axi_##K##_awready)                                        \
        writes.push_back(accept(t.m_axi_##K##_awaddr, t.m_axi_##K##_awlen,                       \
                                t.m_axi_##K##_awsize, t.m_axi_##K##_awburst));                   \
    }                                                                                            \
    bool taken_r = false, taken_b = false;                                                       \
    void after(Vtop &t) {                                                                        \
      if (taken_r) t.m_axi_##K##_rvalid = 0;                                                     \
      if (taken_b) t.m_axi_##K##_bvalid = 0;                                                     \
      taken_r = taken_b = false;                                                                 \
    }                                                                                            \
  };
MASTER(0)
MASTER(1)

static Master0 first;
static Master1 second;

static void tick() {
  first.settle(top), second.settle(top);
  top.aclk = 0, top.eval();
  first.clock(top), second.clock(top);
  top.aclk = 1, top.eval();
  first.after(top), second.after(top);
  cycle++;
}
int main() {
  run_script(memory, refuse);
  return 0;
}
