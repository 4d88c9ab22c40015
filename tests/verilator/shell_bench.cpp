// SPDX-License-Identifier: Apache-2.0
// Host of the serial shell: sends the codes of send.txt over a serial line, prints each byte that
// comes back. Codes 0 to 255 are bytes, 256 is a break, 512 + n waits for n characters.
#include <cstdio>
#include <fstream>
#include <vector>

#include "Vtop.h"

namespace {
constexpr int kBit = 8;  // clocks a bit
constexpr long kLimit = 400000;

// The level of the line over time, one entry a bit.
std::vector<bool> line_of(std::istream& codes) {
  std::vector<bool> line(20, true);
  for (int code; codes >> code;) {
    if (code >= 512) {
      line.insert(line.end(), 10 * (code - 512), true);
    } else if (code == 256) {
      line.insert(line.end(), 13, false);
      line.insert(line.end(), 20, true);
    } else {
      line.push_back(false);
      for (int i = 0; i < 8; i++) line.push_back(code >> i & 1);
      line.push_back(true);
    }
  }
  return line;
}

// Takes the line once a clock; says when a byte is whole.
class Receiver {
 public:
  // Returns the byte, -1 while there is none, -2 for a character without a stop bit.
  int sample(bool level) {
    if (wait_ < 0) {
      if (!level) wait_ = kBit + kBit / 2, bit_ = 0, byte_ = 0;
      return -1;
    }
    if (--wait_ > 0) return -1;
    wait_ = kBit;
    if (bit_ < 8) {
      byte_ |= level << bit_++;
      return -1;
    }
    wait_ = -1;
    return level ? byte_ : -2;
  }

 private:
  int wait_ = -1, bit_ = 0, byte_ = 0;
};
}  // namespace

int main() {
  std::ifstream codes("send.txt");
  const std::vector<bool> line = line_of(codes);
  const long last = kBit * static_cast<long>(line.size()) + 400 * kBit;
  Vtop top;
  Receiver receiver;
  top.locked_i = 1;
  top.button_i = 0;
  for (long clock = 0; clock < last && clock < kLimit; clock++) {
    const size_t bit = clock / kBit;
    top.rx_i = bit >= line.size() || line[bit];
    top.clk_i = 0;
    top.eval();
    top.clk_i = 1;
    top.eval();
    const int byte = receiver.sample(top.tx_o);
    if (byte == -2) return std::puts("no stop bit"), 1;
    if (byte >= 0) std::printf("byte %d\n", byte);
  }
  top.final();
  return 0;
}
