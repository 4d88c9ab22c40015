// SPDX-License-Identifier: Apache-2.0
// A sender of bytes to shell_uart_rx. Arguments: clocks a bit of the receiver, by how much the
// sender's bits are longer (a share, may be negative), disturbances (0, or 1: one clock of every
// start and data bit is turned over), seed. Sends all bytes in random order without pauses, then a break, then a
// byte; prints each byte that was received, and "break".
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "Vtop.h"

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const double bit = std::atof(argv[1]) * (1 + std::atof(argv[2]));  // clocks
  const bool disturbed = std::atoi(argv[3]);
  std::mt19937 random(std::atoi(argv[4]));
  std::vector<int> bytes(256);
  for (int i = 0; i < 256; i++) bytes[i] = i;
  std::shuffle(bytes.begin(), bytes.end(), random);

  std::vector<bool> line(12, true);  // one entry a bit
  for (int byte : bytes) {
    line.push_back(false);
    for (int i = 0; i < 8; i++) line.push_back(byte >> i & 1);
    line.push_back(true);
  }
  line.insert(line.end(), 12, true);
  const size_t calm = line.size();
  line.insert(line.end(), 13, false);
  line.insert(line.end(), 12, true);
  for (int i = 0; i < 10; i++) line.push_back(0x0b5 >> (9 - i) & 1);  // start, 0x5a, stop
  line.insert(line.end(), 12, true);

  std::uniform_real_distribution<double> share(0, 1);
  const double begin = share(random);
  Vtop top;
  top.rst_ni = 0;
  size_t now = 0;
  long turned = -1;
  for (long clock = -8; clock < static_cast<long>(bit * line.size()); clock++) {
    const size_t place = clock < 0 ? 0 : static_cast<size_t>((clock + begin) / bit);
    if (clock == 0 || place != now) {
      now = place;
      const bool stop = now < 12 || (now - 12) % 10 == 9;
      turned = disturbed && now < calm && !stop ? clock + static_cast<long>(share(random) * (bit - 1)) : -1;
    }
    top.rst_ni = clock >= 0;
    top.rx_i = (now >= line.size() || line[now]) ^ (clock == turned);
    top.clk_i = 0;
    top.eval();
    if (top.out_valid_o) std::printf("%d\n", top.out_data_o);
    if (top.break_o) std::puts("break");
    top.clk_i = 1;
    top.eval();
  }
  top.final();
  std::puts("sent");
  for (int byte : bytes) std::printf("%d\n", byte);
  return 0;
}
