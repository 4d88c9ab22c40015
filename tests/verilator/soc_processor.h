// SPDX-License-Identifier: Apache-2.0
// A processor at the registers of a design: what script.txt asks for, line by line. "write REGISTER
// VALUE", "read REGISTER", "load ADDRESS BYTES...", "dump ADDRESS COUNT", "wait" (for the end of a
// run), "at CYCLE" (since reset), "refuse ADDRESS" (an error of the memory from that address on).
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "Vtop.h"
#include "verilated.h"

static Vtop top;
static uint64_t cycle = 0;  // since reset; the bench counts
static void tick();         // of the bench: a cycle of design and memory

static void fail(const char *what) {
  std::printf("broken: %s\n", what);
  std::exit(1);
}
static void write_register(uint32_t address, uint32_t value) {
  top.s_axi_control_awaddr = address, top.s_axi_control_awvalid = 1;
  for (int k = 0; k < 3; k++) tick();  // the address waits for its data
  top.s_axi_control_wdata = value, top.s_axi_control_wvalid = 1, top.s_axi_control_wstrb = 15;
  for (bool taken = false; !taken;) {
    top.aclk = 0, top.eval();
    taken = top.s_axi_control_awready && top.s_axi_control_wready;
    tick();
  }
  top.s_axi_control_awvalid = top.s_axi_control_wvalid = 0;
  for (int k = 0; k < 2; k++) tick();
  top.s_axi_control_bready = 1;
  if (!top.s_axi_control_bvalid) fail("no answer to a write");
  tick();
  top.s_axi_control_bready = 0;
}
static uint32_t read_register(uint32_t address) {
  top.s_axi_control_araddr = address, top.s_axi_control_arvalid = 1;
  tick();
  top.s_axi_control_arvalid = 0;
  for (int k = 0; k < 2; k++) tick();
  if (!top.s_axi_control_rvalid) fail("no answer to a read");
  const uint32_t value = top.s_axi_control_rdata;
  top.s_axi_control_rready = 1;
  tick();
  top.s_axi_control_rready = 0;
  return value;
}


// Resets the design, then does what the script says.
static void run_script(std::vector<uint8_t> &memory, uint64_t &refuse) {
  top.aresetn = 0;
  for (int k = 0; k < 8; k++) tick();
  top.aresetn = 1;
  cycle = 0;
  for (int k = 0; k < 4; k++) tick();
  std::ifstream script("script.txt");
  for (std::string line; std::getline(script, line);) {
    std::istringstream words(line);
    std::string verb;
    uint64_t a = 0, b = 0;
    words >> verb;
    if (verb == "write") {
      words >> a >> b;
      write_register(uint32_t(a), uint32_t(b));
    } else if (verb == "read") {
      words >> a;
      std::printf("register %u\n", read_register(uint32_t(a)));
    } else if (verb == "load") {
      for (words >> a; words >> b;) memory.at(a++) = uint8_t(b);
    } else if (verb == "dump") {
      words >> a >> b;
      std::printf("memory");
      while (b--) std::printf(" %u", memory.at(a++));
      std::printf("\n");
    } else if (verb == "refuse") {
      words >> refuse;
    } else if (verb == "at") {
      words >> a;
      if (cycle > a) fail("it is too late for a cycle of the script");
      while (cycle < a) tick();
    } else if (verb == "wait") {
      int polls = 0;
      while (read_register(8) & 1)
        if (++polls > 20000) fail("not finished");
    }
  }
  top.final();
}
