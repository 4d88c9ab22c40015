// SPDX-License-Identifier: Apache-2.0
// What the harness and the glue of one design share. A beat is ceil(width/8) bytes, little endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory.h"
#include "verilated.h"

// One verilated design behind a fixed interface, so that the harness is compiled once per machine.
struct Model {
  virtual ~Model() = default;
  virtual void clock(bool level) = 0;
  virtual void reset(bool active) = 0;
  virtual void eval() = 0;
  virtual void finish() = 0;
  virtual uint64_t frame_error() = 0;  // one bit an input; 0 without such a signal
  // Of a design that runs programs; another has none of these.
  virtual void start(bool) {}
  virtual bool running_done() { return false; }
  virtual uint64_t status() { return 0; }
  virtual uint64_t counted() { return 0; }  // cycles, as the design says
  virtual uint64_t events() { return 0; }   // of this cycle, a bit each
  virtual void open_trace(const char* path) = 0;
  virtual void dump_trace(uint64_t time) = 0;
};

// Signals of one stream. Inputs have drive and ready, outputs the rest.
struct Signals {
  const char* name;
  size_t width, beats;  // bits of a beat, beats of a frame
  void (*drive)(Model&, const uint8_t*, bool valid, bool last);
  bool (*ready)(Model&);
  void (*accept)(Model&, bool ready);
  bool (*valid)(Model&);
  bool (*last)(Model&);
  void (*data)(Model&, uint8_t*);
  bool has_last;
};

// Signals of one AXI4 port and of the address at which its memory starts.
struct MemorySignals {
  const char* name;
  size_t width;   // bits of a beat
  bool writable;  // it has the channels of writes, too
  void (*set_base)(Model&, uint64_t);
  void (*say)(Model&, const MemorySays&);
  void (*ask)(Model&, MemoryAsks&);
};

// Defined by the glue.
Model* make_model(VerilatedContext& context);
std::vector<Signals> input_signals();
std::vector<Signals> output_signals();
std::vector<MemorySignals> memory_signals();
bool runs_programs();
