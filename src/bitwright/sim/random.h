// SPDX-License-Identifier: Apache-2.0
// Random numbers and stalls of the harness.
#pragma once

#include <cstdint>

// xorshift64*: small, fast, and the same everywhere.
struct Random {
  uint64_t state;
  explicit Random(uint64_t seed) : state(seed * 0x9E3779B97F4A7C15ull + 0xD1B54A32D192ED03ull) {
    if (state == 0) state = 1;
    for (int i = 0; i < 8; ++i) next();
  }
  uint64_t next() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1Dull;
  }
  bool chance(double p) { return static_cast<double>(next() >> 11) * 0x1.0p-53 < p; }
};

// Two-state Markov chain: while moving, stop with probability `stop`; while stopped, go with `go`.
struct Stall {
  double stop = 0, go = 1;
  bool stopped = false;
  Random random{1};
  bool step() {  // true: this port may move in the coming cycle
    if (stop <= 0) return true;
    stopped = stopped ? !random.chance(go) : random.chance(stop);
    return !stopped;
  }
};
