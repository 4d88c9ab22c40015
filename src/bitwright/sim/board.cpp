// SPDX-License-Identifier: Apache-2.0
// A board in simulation: the serial pins of a verilated top behind a pseudo terminal, bit by bit.
// Arguments: clocks a bit, clocks of silence before it sleeps, shares of bytes lost, flipped and
// repeated on the way in either direction, seed. Prints the terminal's name; ends with its standard
// input, and prints what it has done.
#include <fcntl.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>

#include "bitwright_config.h"
#include "verilated.h"

namespace {

// What a bad line does to bytes.
class Faults {
 public:
  Faults(double lost, double flipped, double repeated, unsigned seed)
      : lost_(lost), flipped_(lost + flipped), repeated_(lost + flipped + repeated), random_(seed) {}

  template <class Out> void pass(uint8_t byte, Out out) {
    const double draw = std::uniform_real_distribution<double>(0, 1)(random_);
    bytes++;
    if (draw < lost_) {
      lost++;
    } else if (draw < flipped_) {
      flipped++;
      out(static_cast<uint8_t>(byte ^ std::uniform_int_distribution<int>(1, 255)(random_)));
    } else {
      out(byte);
      if (draw < repeated_) repeated++, out(byte);
    }
  }

  uint64_t bytes = 0, lost = 0, flipped = 0, repeated = 0;

 private:
  double lost_, flipped_, repeated_;
  std::mt19937 random_;
};

// Bytes to levels, one a clock.
class Transmitter {
 public:
  explicit Transmitter(int clocks) : clocks_(clocks) {}
  std::deque<uint8_t> bytes;
  bool idle() const { return bytes.empty() && left_ == 0; }
  bool level() {
    if (left_ == 0) {
      if (bytes.empty()) return true;
      shift_ = 0x200u | bytes.front() << 1;
      bytes.pop_front();
      left_ = 10 * clocks_;
    }
    const bool bit = shift_ >> ((10 * clocks_ - left_) / clocks_) & 1;
    left_--;
    return bit;
  }

 private:
  int clocks_, left_ = 0;
  unsigned shift_ = 0;
};

// Levels, one a clock, to bytes.
class Receiver {
 public:
  explicit Receiver(int clocks) : clocks_(clocks) {}
  bool idle() const { return wait_ < 0; }
  // The byte that is whole now, or -1.
  int sample(bool level) {
    if (wait_ < 0) {
      if (!level) wait_ = clocks_ + clocks_ / 2, bit_ = 0, byte_ = 0;
      return -1;
    }
    if (--wait_ > 0) return -1;
    wait_ = clocks_;
    if (bit_ < 8) {
      byte_ |= level << bit_++;
      return -1;
    }
    wait_ = -1;
    return level ? byte_ : -1;
  }

 private:
  int clocks_, wait_ = -1, bit_ = 0, byte_ = 0;
};

int open_terminal() {
  const int fd = posix_openpt(O_RDWR | O_NOCTTY);
  if (fd < 0 || grantpt(fd) != 0 || unlockpt(fd) != 0) return -1;
  const char* name = ptsname(fd);
  const int other = open(name, O_RDWR | O_NOCTTY);  // kept: no end of file between two hosts
  if (other < 0) return -1;
  termios raw{};
  tcgetattr(other, &raw);
  cfmakeraw(&raw);
  tcsetattr(other, TCSANOW, &raw);
  fcntl(fd, F_SETFL, O_NONBLOCK);
  std::printf("%s\n", name);
  std::fflush(stdout);
  return fd;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  const int clocks = std::atoi(argv[1]);
  const uint64_t patience = std::strtoull(argv[2], nullptr, 10);
  const double shares[] = {std::atof(argv[3]), std::atof(argv[4]), std::atof(argv[5])};
  const unsigned seed = static_cast<unsigned>(std::strtoul(argv[6], nullptr, 10));
  Faults in{shares[0], shares[1], shares[2], 2 * seed}, out{shares[0], shares[1], shares[2], 2 * seed + 1};
  const int terminal = open_terminal();
  if (terminal < 0) return std::perror("pseudo terminal"), 3;

  VerilatedContext context;
  context.randReset(2);
  context.randSeed(static_cast<int>(seed % 0x7fffffff) + 1);
  context.fatalOnError(true);
  BW_TOP top{&context};
  Transmitter to_board{clocks};
  Receiver from_board{clocks};
  std::deque<uint8_t> got;
  top.locked_i = 1;
  top.button_i = 0;
  uint64_t cycle = 0, silent = 0, since_byte = 0, refused = 0;
  bool running = true;
  while (running) {
    if (to_board.idle() || cycle % 4096 == 0) {
      // Asleep while nothing happens: the host is what makes things go on.
      pollfd fds[] = {{terminal, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
      const bool asleep = silent > patience;
      if ((asleep || cycle % 256 == 0) && poll(fds, 2, asleep ? 1000 : 0) > 0) {
        uint8_t bytes[4096];
        const ssize_t count = fds[0].revents & POLLIN ? read(terminal, bytes, sizeof bytes) : 0;
        for (ssize_t i = 0; i < count; i++) {
          in.pass(bytes[i], [&](uint8_t byte) { to_board.bytes.push_back(byte); });
        }
        if (fds[1].revents && read(STDIN_FILENO, bytes, sizeof bytes) <= 0) running = false;
      }
    }
    top.rx_i = to_board.level();
    top.clk_i = 0;
    top.eval();
    top.clk_i = 1;
    top.eval();
    context.timeInc(1);
    cycle++;
    since_byte++;
    const int byte = from_board.sample(top.tx_o);
    if (byte >= 0) {
      since_byte = 0;
      out.pass(static_cast<uint8_t>(byte), [&](uint8_t b) { got.push_back(b); });
    }
    silent = to_board.idle() && from_board.idle() ? silent + 1 : 0;
    if (!got.empty() && (got.size() >= 64 || since_byte > static_cast<uint64_t>(20 * clocks))) {
      uint8_t bytes[256];
      size_t count = 0;
      for (; count < sizeof bytes && !got.empty(); count++) bytes[count] = got.front(), got.pop_front();
      const ssize_t written = write(terminal, bytes, count);  // a host that does not read loses
      refused += count - (written > 0 ? static_cast<size_t>(written) : 0);
    }
  }
  top.final();
  std::printf("{\"cycles\": %llu, \"refused\": %llu, \"to_board\": [%llu, %llu, %llu, %llu], "
              "\"from_board\": [%llu, %llu, %llu, %llu]}\n",
              static_cast<unsigned long long>(cycle), static_cast<unsigned long long>(refused),
              static_cast<unsigned long long>(in.bytes), static_cast<unsigned long long>(in.lost),
              static_cast<unsigned long long>(in.flipped), static_cast<unsigned long long>(in.repeated),
              static_cast<unsigned long long>(out.bytes), static_cast<unsigned long long>(out.lost),
              static_cast<unsigned long long>(out.flipped), static_cast<unsigned long long>(out.repeated));
  return 0;
}
