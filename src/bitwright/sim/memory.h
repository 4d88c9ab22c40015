// SPDX-License-Identifier: Apache-2.0
// A memory behind an AXI4 read port: latency, a bandwidth limit, requests taken or not, and data
// of different identifiers mixed, all at random from a seed. It checks what it is asked: addresses
// inside the image, aligned, no burst over a 4 KB page, requests held until they are taken.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "harness.h"
#include "random.h"

struct Memory : MemorySignals {
  explicit Memory(const MemorySignals& signals) : MemorySignals(signals) {}

  std::string image;                   // file
  uint64_t base = 0, latency = 0, jitter = 0;
  double rate = 1;                     // beats a cycle, at most 1
  bool mixed = false, forgets = false;
  Stall stall;                         // of requests
  uint64_t beats = 0, bursts = 0;      // since the last reset

  void load() {
    std::ifstream file(image, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
    if (bytes.empty()) fail("the image cannot be read or is empty");
  }

  // Of the design; cycles are counted anew. What was asked before is still answered, unless the
  // memory forgets it.
  void reset(Model& top, uint64_t cycle) {
    if (forgets) waiting.clear();
    for (auto& [id, queue] : waiting) {
      for (auto& burst : queue) burst.due = burst.due > cycle ? burst.due - cycle : 0;
    }
    beats = bursts = 0;
    credit = 0;
    held = taking = offering = false;
    set_base(top, base);
    set_ready(top, false);
    idle(top);
  }

  void before(Model& top, uint64_t cycle) {  // drive what the coming cycle sees
    set_ready(top, taking = stall.step());
    if (offering) return;  // held until it is accepted
    credit = credit + rate < 2 ? credit + rate : 2;
    std::vector<uint64_t> ready;
    for (const auto& [id, bursts] : waiting) {
      if (!bursts.empty() && bursts.front().due <= cycle) ready.push_back(id);
    }
    if (credit < 1 || ready.empty()) return idle(top);
    current = ready[mixed ? stall.random.next() % ready.size() : oldest(ready)];
    const auto& burst = waiting[current].front();
    drive(top, bytes.data() + burst.at, current, burst.left == 1);
    credit -= 1;
    offering = true;
  }

  void after(Model& top, uint64_t cycle) {  // what was transferred in it
    if (offering && accepted(top)) {
      auto& burst = waiting[current].front();
      burst.at += width / 8;
      if (--burst.left == 0) waiting[current].pop_front();
      ++beats;
      offering = false;
    }
    uint64_t address = 0, length = 0, id = 0;
    const bool asked = request(top, address, length, id);
    if (held && (!asked || address != last_address)) fail("a request changed before it was taken");
    held = asked && !taking;
    last_address = address;
    if (asked && taking) take(address, length + 1, id, cycle);
  }

 private:
  struct Burst { uint64_t at, left, due, order; };
  std::vector<uint8_t> bytes;
  std::map<uint64_t, std::deque<Burst>> waiting;  // by identifier; of one, in order
  uint64_t current = 0, last_address = 0, order = 0;
  double credit = 0;
  bool held = false, taking = false, offering = false;

  size_t oldest(const std::vector<uint64_t>& ids) {
    size_t best = 0;
    for (size_t i = 1; i < ids.size(); ++i) {
      if (waiting[ids[i]].front().order < waiting[ids[best]].front().order) best = i;
    }
    return best;
  }

  void take(uint64_t address, uint64_t length, uint64_t id, uint64_t cycle) {
    const uint64_t size = length * (width / 8);
    if (address % (width / 8)) fail("an address is not aligned");
    if (address / 4096 != (address + size - 1) / 4096) fail("a burst crosses a 4 KB page");
    if (address < base || address - base + size > bytes.size()) fail("a read outside the image");
    uint64_t due = cycle + 1 + latency;
    if (jitter) due += stall.random.next() % (jitter + 1);
    waiting[id].push_back({address - base, length, due, order++});
    ++bursts;
  }

  [[noreturn]] void fail(const char* what) const {
    std::fprintf(stderr, "%%Error: %s: %s\n", name, what);
    std::exit(2);
  }
};
