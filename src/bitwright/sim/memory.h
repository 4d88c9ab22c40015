// SPDX-License-Identifier: Apache-2.0
// A memory behind an AXI4 port, read only or read and write: latency, a bandwidth limit, requests and
// words taken or not, answers to different identifiers mixed, all at random from a seed. It checks
// what it is asked: addresses inside the memory, aligned, no burst over a 4 KB page, requests held
// until they are taken, WLAST where it belongs. It knows cycles and signals, no simulator: timing
// models include it, too.
//
// With `chip`, an SDRAM with our controller says when (sdram.h), and nothing is random.
//
// Bytes that nobody has written are noise that depends on the address alone, and marked so.
#pragma once

#include <cstdint>
#include <deque>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "random.h"
#include "sdram.h"

// What a port says to its memory in a cycle, and the memory to the port. Lengths are less one, as on
// the wires.
struct MemoryAsks {
  bool ar_valid = false, r_ready = false, aw_valid = false, w_valid = false, w_last = false;
  bool b_ready = false;
  uint64_t ar_address = 0, ar_length = 0, ar_id = 0, aw_address = 0, aw_length = 0, aw_id = 0;
  uint8_t w_data[128] = {}, w_strobes[16] = {};
};

struct MemorySays {
  bool ar_ready = false, r_valid = false, r_last = false, aw_ready = false, w_ready = false;
  bool b_valid = false;
  bool r_error = false, b_error = false;
  uint64_t r_id = 0, b_id = 0;
  const uint8_t* r_data = nullptr;
};

struct Memory {
  std::string name, image;             // of the port; file
  uint64_t width = 0;                  // bits of a beat
  uint64_t base = 0, latency = 0, jitter = 0;
  uint64_t size = 0;                   // bytes; 0: those of the image
  double rate = 1;                     // beats a cycle and direction, at most 1
  bool mixed = false, forgets = false, writable = false;
  uint64_t bad_low = 0, bad_high = 0;  // bytes that are answered with an error: noise; not written
  Stall stall, write_stall, word_stall;  // of requests to read, to write, of words
  uint64_t beats = 0, bursts = 0, beats_written = 0;  // since the last reset
  std::vector<uint8_t> bytes, defined;
  Sdram* chip = nullptr;

  void seed(uint64_t number) {
    stall.random = Random(number);
    write_stall.random = Random(number + 40);
    word_stall.random = Random(number + 80);
  }

  void load() {
    std::ifstream file(image, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
    if (bytes.empty()) fail("the image cannot be read or is empty");
    if (size && size < bytes.size()) fail("the image is larger than the memory");
    defined.assign(bytes.size(), 1);
    if (size) grow();
  }

  // To its size, with noise; all there is to do where only cycles matter.
  void grow() {
    for (uint64_t at = bytes.size(); at < size; ++at) {
      bytes.push_back(static_cast<uint8_t>((at * 0x9E3779B97F4A7C15ull) >> 56));
    }
    defined.resize(size, 0);
  }

  // From outside, while the design does nothing.
  void patch(uint64_t at, const std::vector<uint8_t>& data) {
    if (at + data.size() > bytes.size()) fail("a patch outside the memory");
    for (size_t i = 0; i < data.size(); ++i) set(at + i, data[i]);
  }

  // Of the design; cycles are counted anew. What was asked before is still answered, unless the
  // memory forgets it; a burst of which words are missing is dropped.
  void reset(uint64_t cycle) {
    if (forgets) {
      waiting.clear();
      answers.clear();
    }
    for (auto& [id, queue] : waiting) {
      for (auto& burst : queue) burst.due = burst.due > cycle ? burst.due - cycle : 0;
    }
    for (auto& answer : answers) answer.due = answer.due > cycle ? answer.due - cycle : 0;
    writes.clear();
    beats = bursts = beats_written = 0;
    credit = write_credit = 0;
    held = write_held = false;
    says = MemorySays{};
  }

  const MemorySays& before(uint64_t cycle) {  // what the coming cycle sees
    if (chip) return before_chip();
    says.ar_ready = stall.step();
    if (writable) before_write(cycle);
    if (says.r_valid) return says;  // held until it is accepted
    credit = credit + rate < 2 ? credit + rate : 2;
    if (credit < 1) return says;
    std::vector<uint64_t> ready;
    for (const auto& [id, bursts] : waiting) {
      if (!bursts.empty() && bursts.front().due <= cycle) ready.push_back(id);
    }
    if (ready.empty()) return says;
    says.r_id = ready[mixed ? stall.random.next() % ready.size() : oldest(ready)];
    const auto& burst = waiting[says.r_id].front();
    says.r_error = bad(burst.at);
    says.r_data = says.r_error ? noise : bytes.data() + burst.at;
    says.r_last = burst.left == 1;
    says.r_valid = true;
    credit -= 1;
    return says;
  }

  bool after(uint64_t cycle, const MemoryAsks& asks) {  // what was transferred in it; false: nothing
    bool moved = false;
    if (chip) step_chip(asks);
    if (says.r_valid && asks.r_ready) {
      auto& burst = waiting[says.r_id].front();
      burst.at += width / 8;
      if (--burst.left == 0) waiting[says.r_id].pop_front();
      ++beats;
      says.r_valid = false;
      moved = true;
    }
    if (held && (!asks.ar_valid || asks.ar_address != last_address)) {
      fail("a request changed before it was taken");
    }
    held = asks.ar_valid && !says.ar_ready;
    last_address = asks.ar_address;
    if (asks.ar_valid && says.ar_ready) {
      const uint64_t at = checked(asks.ar_address, asks.ar_length + 1, "a read");
      uint64_t due = cycle + 1 + latency;
      if (jitter) due += stall.random.next() % (jitter + 1);
      waiting[asks.ar_id].push_back({at, asks.ar_length + 1, due, order++});
      ++bursts;
      moved = true;
    }
    return (writable && after_write(cycle, asks)) || moved;
  }

 private:
  struct Burst { uint64_t at, left, due, order; };
  struct Write { uint64_t at, left, id; bool bad; };
  struct Answer { uint64_t due, id; bool bad; };
  std::map<uint64_t, std::deque<Burst>> waiting;  // by identifier; of one, in order
  std::deque<Write> writes;
  std::deque<Answer> answers;
  MemorySays says;
  uint64_t last_address = 0, last_write = 0, order = 0;
  double credit = 0, write_credit = 0;
  bool held = false, write_held = false;
  const uint8_t noise[128] = {0xa5, 0x5a, 0xc3, 0x3c, 0x96, 0x69, 0xf0, 0x0f};

  bool bad(uint64_t at) const { return at + width / 8 > bad_low && at < bad_high; }

  const MemorySays& before_chip() {
    says.ar_ready = chip->ar_ready();
    says.aw_ready = chip->aw_ready();
    says.w_ready = chip->w_ready();
    says.b_valid = chip->b_valid();
    if (says.b_valid) says.b_id = chip->b_id();
    says.r_valid = chip->r_valid();
    if (!says.r_valid) return says;
    says.r_id = chip->r_id();
    says.r_last = chip->r_last();
    says.r_data = bytes.data() + waiting[says.r_id].front().at;
    return says;
  }

  void step_chip(const MemoryAsks& asks) {
    if (!asks.r_ready || !asks.b_ready) fail("the SDRAM's port does not wait");
    SdramAsks given;
    given.ar_valid = asks.ar_valid, given.aw_valid = asks.aw_valid, given.w_valid = asks.w_valid;
    given.ar_address = asks.ar_address - base, given.aw_address = asks.aw_address - base;
    given.ar_length = asks.ar_length, given.ar_id = asks.ar_id;
    given.aw_length = asks.aw_length, given.aw_id = asks.aw_id;
    chip->step(given);
  }

  void before_write(uint64_t cycle) {
    says.aw_ready = write_stall.step();
    write_credit = write_credit + rate < 2 ? write_credit + rate : 2;
    const bool go = word_stall.step();
    says.w_ready = go && !writes.empty() && write_credit >= 1;
    if (says.b_valid) return;  // held until it is accepted
    says.b_valid = !answers.empty() && answers.front().due <= cycle;
    if (!says.b_valid) return;
    says.b_id = answers.front().id;
    says.b_error = answers.front().bad;
  }

  bool after_write(uint64_t cycle, const MemoryAsks& asks) {
    bool moved = false;
    if (says.b_valid && asks.b_ready) {
      answers.pop_front();
      says.b_valid = false;
      moved = true;
    }
    if (says.w_ready && asks.w_valid) {
      write_word(cycle, asks);
      moved = true;
    }
    if (write_held && (!asks.aw_valid || asks.aw_address != last_write)) {
      fail("a request to write changed before it was taken");
    }
    write_held = asks.aw_valid && !says.aw_ready;
    last_write = asks.aw_address;
    if (asks.aw_valid && says.aw_ready) {
      const uint64_t at = checked(asks.aw_address, asks.aw_length + 1, "a write");
      writes.push_back({at, asks.aw_length + 1, asks.aw_id, false});
      ++bursts;
      moved = true;
    }
    return moved;
  }

  void write_word(uint64_t cycle, const MemoryAsks& asks) {
    auto& write = writes.front();
    write.bad |= bad(write.at);
    for (uint64_t i = 0; i < width / 8 && !bad(write.at); ++i) {
      if (asks.w_strobes[i / 8] >> (i % 8) & 1) set(write.at + i, asks.w_data[i]);
    }
    write.at += width / 8;
    write_credit -= 1;
    ++beats_written;
    if (asks.w_last != (--write.left == 0)) fail("WLAST is misplaced");
    if (write.left) return;
    uint64_t due = cycle + 1 + latency;
    if (jitter) due += write_stall.random.next() % (jitter + 1);
    if (!answers.empty() && due < answers.back().due) due = answers.back().due;
    answers.push_back({due, write.id, write.bad});
    writes.pop_front();
  }

  void set(uint64_t at, uint8_t value) {
    bytes[at] = value;
    defined[at] = 1;
  }

  size_t oldest(const std::vector<uint64_t>& ids) {
    size_t best = 0;
    for (size_t i = 1; i < ids.size(); ++i) {
      if (waiting[ids[i]].front().order < waiting[ids[best]].front().order) best = i;
    }
    return best;
  }

  uint64_t checked(uint64_t address, uint64_t length, const char* what) const {
    const uint64_t bytes_asked = length * (width / 8);
    if (address % (width / 8)) fail("an address is not aligned");
    if (address / 4096 != (address + bytes_asked - 1) / 4096) fail("a burst crosses a 4 KB page");
    if (address < base || address - base + bytes_asked > bytes.size()) {
      fail((std::string(what) + " outside the memory").c_str());
    }
    return address - base;
  }

  [[noreturn]] void fail(const char* what) const {
    throw std::runtime_error(name + ": " + what);
  }
};
