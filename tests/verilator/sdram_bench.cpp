// SPDX-License-Identifier: Apache-2.0
// Traffic for sdram_bench: every output of the controller == sdram.h in every cycle, every word read ==
// what was written. Arguments: cycles, seed, kind of traffic ("mixed", or "read", "write", "copy": one
// long stream of whole bursts each), times of sdram.h. Prints what it saw as JSON.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "Vtop.h"
#include "sdram.h"
#include "verilated.h"

namespace {

constexpr uint64_t WORDS = 1 << 15;  // 64 rows of 4 banks of 128 words
struct Burst { uint64_t at, length, id, left; };

std::mt19937_64 source;
uint64_t below(uint64_t n) { return source() % n; }
[[noreturn]] void fail(const char* what, uint64_t cycle) {
  std::fprintf(stderr, "cycle %llu: %s\n", static_cast<unsigned long long>(cycle), what);
  std::exit(1);
}

bool meet(const Burst& a, const std::deque<Burst>& others) {
  for (const auto& b : others) if (a.at < b.at + b.length && b.at < a.at + a.length) return true;
  return false;
}

// Places of one side's bursts: streams, jumps inside of a row or over rows, single words.
struct Places {
  uint64_t at = 0, run = 0, id = 0;
  Burst next(bool whole) {
    if (whole) {
      at = (at + 16) % WORDS;
      return {at, 16, ++id % 8, 16};
    }
    if (run == 0) {
      run = 1 + below(12);
      at = below(4) ? below(WORDS) : at % 512 + 512 * below(WORDS / 512);
    }
    --run;
    uint64_t length = below(3) ? 16 - at % 16 : 1 + below(16 - at % 16);
    const Burst burst{at, length, ++id % 8, length};
    at = (at + length) % WORDS;
    return burst;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const uint64_t cycles = std::strtoull(argv[1], nullptr, 10);
  source.seed(std::strtoull(argv[2], nullptr, 10));
  const std::string kind = argv[3];
  SdramTimes times;
  int64_t* fields[] = {&times.rcd, &times.rp, &times.ras, &times.rfc, &times.rrd, &times.mrd,
                       &times.close, &times.turn, &times.refresh, &times.delay};
  for (int k = 0; k + 4 < argc && k < 10; ++k) *fields[k] = std::atoll(argv[k + 4]);

  VerilatedContext context;
  context.randReset(2);
  context.fatalOnError(true);
  Vtop top{&context};
  auto half = [&](bool level) {  // of a cycle: the fast clock goes up with every edge of the slow one
    top.clk_i = level;
    top.fast_i = 1;
    top.eval();
    top.fast_i = 0;
    top.eval();
  };
  auto clock = [&] {
    half(false);
    half(true);
    context.timeInc(1);
  };
  top.rst_ni = top.power_ni = 0;
  for (int k = 0; k < 4; ++k) clock();
  top.rst_ni = top.power_ni = 1;
  uint64_t start = 0;
  while (!top.ready_o && start++ < 40000) clock();
  if (!top.ready_o) fail("never ready", start);

  Sdram model(times);
  bool modelled = false, reads = kind != "write", writes = kind != "read", mixed = kind == "mixed";
  std::vector<uint64_t> memory(WORDS);
  std::vector<char> known(WORDS, 0);
  std::deque<Burst> reading, writing, sending;  // asked and not over; words not yet given
  Places read_at, write_at{WORDS / 2};
  Burst read{}, write{};
  bool ar = false, aw = false, w = false;
  uint64_t words_read = 0, words_written = 0, first_read = 0, last_read = 0, asked = 0, latency = 0;
  uint64_t syncs = 0, resets = 0, last_write = 0, busy = 0;
  int rest = 0;  // cycles of a reset still to come
  bool waits_for_sync = true;
  top.sync_i = 1;

  for (uint64_t cycle = 0; cycle < cycles; ++cycle) {
    // What is asked in this cycle.
    const bool traffic = modelled && rest == 0 && !waits_for_sync;
    if (traffic && !ar && reads && (!mixed || below(4))) {
      read = read_at.next(!mixed);
      ar = !meet(read, writing) && !(aw && meet(read, {write}));
    }
    if (traffic && !aw && writes && (!mixed || below(3) == 0)) {
      write = write_at.next(!mixed);
      aw = !meet(write, reading) && !meet(write, writing) && !(ar && meet(write, {read}));
    }
    if (!sending.empty() && !w) w = !mixed || below(8) != 0;
    if (w && top.wdata == 0) top.wdata = source() | 1;
    top.arvalid = ar;
    top.araddr = static_cast<uint32_t>(read.at * 8);
    top.arlen = static_cast<uint8_t>(read.length - 1);
    top.arid = static_cast<uint8_t>(read.id);
    top.awvalid = aw;
    top.awaddr = static_cast<uint32_t>(write.at * 8);
    top.awlen = static_cast<uint8_t>(write.length - 1);
    top.awid = static_cast<uint8_t>(write.id);
    top.wvalid = w;
    top.wlast = !sending.empty() && sending.front().left == 1;
    top.rst_ni = rest == 0;
    half(false);

    if (modelled && (top.arready != model.ar_ready() || top.awready != model.aw_ready() ||
                     top.wready != model.w_ready() || top.rvalid != model.r_valid() ||
                     top.bvalid != model.b_valid() || top.synced_o != model.synced())) {
      std::fprintf(stderr, "RTL ar %d aw %d w %d r %d b %d s %d\n", top.arready, top.awready,
                   top.wready, top.rvalid, top.bvalid, top.synced_o);
      fail("the controller differs from its model", cycle);
    }
    if (top.rvalid && rest == 0) {
      if (reading.empty()) fail("words that nobody asked for", cycle);
      Burst& burst = reading.front();
      const uint64_t at = burst.at + burst.length - burst.left;
      if (known[at] && top.rdata != memory[at]) fail("a word read is wrong", cycle);
      if (top.rid != burst.id || top.rlast != (burst.left == 1)) fail("RID or RLAST", cycle);
      if (words_read++ == 0) first_read = cycle, latency = cycle - asked;
      last_read = cycle;
      if (--burst.left == 0) reading.pop_front();
    }
    if (top.bvalid && rest == 0) {
      if (writing.empty() || top.bid != writing.front().id) fail("BID", cycle);
      writing.pop_front();
    }
    SdramAsks asks;
    asks.ar_valid = ar, asks.aw_valid = aw, asks.w_valid = w, asks.sync = top.sync_i;
    asks.ar_address = read.at * 8, asks.ar_length = read.length - 1, asks.ar_id = read.id;
    asks.aw_address = write.at * 8, asks.aw_length = write.length - 1, asks.aw_id = write.id;
    const bool took_ar = ar && top.arready, took_aw = aw && top.awready, took_w = w && top.wready;
    const bool synced = top.synced_o;
    const uint64_t data = top.wdata;
    half(true);
    context.timeInc(1);
    if (modelled) model.step(asks);
    if (rest) model.reset();
    if (synced && !modelled) model.power_up(), modelled = true;
    if (synced) waits_for_sync = false, ++syncs;
    if (took_ar && rest == 0) {
      if (asked++ == 0) asked = cycle;
      reading.push_back(read);
      ar = false;
    }
    if (took_aw && rest == 0) {
      writing.push_back(write);
      sending.push_back(write);
      aw = false;
    }
    if (took_w) {
      Burst& burst = sending.front();
      const uint64_t at = burst.at + burst.length - burst.left;
      memory[at] = data;
      known[at] = 1;
      ++words_written;
      last_write = cycle;
      top.wdata = source() | 1;
      if (--burst.left == 0) sending.pop_front();
      w = false;
    }
    busy += took_w || top.rvalid;
    top.sync_i = 0;
    if (rest) {
      --rest;
    } else if (mixed && below(2000) == 0) {  // a reset: what has been asked is forgotten
      rest = static_cast<int>(2 + below(20));
      ++resets;
      for (const auto& burst : writing) {
        for (uint64_t k = 0; k < burst.length; ++k) known[burst.at + k] = 0;
      }
      reading.clear(), writing.clear(), sending.clear();
      ar = aw = w = false;
      waits_for_sync = false;
    } else if (mixed && !waits_for_sync && below(1500) == 0) {
      top.sync_i = 1;
      waits_for_sync = below(2);
    }
  }
  top.final();
  auto number = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  std::printf("{\"read\": %llu, \"written\": %llu, \"cycles\": %llu, \"latency\": %llu, \"syncs\": %llu, "
              "\"resets\": %llu, \"broken\": %u, \"weak\": %u, \"wrong\": %u, \"span\": %llu}\n",
              number(words_read), number(words_written), number(cycles), number(latency),
              number(syncs), number(resets), unsigned(top.broken_o), unsigned(top.weak_o),
              unsigned(top.wrong_o), number((last_read > last_write ? last_read : last_write)));
  return 0;
}
