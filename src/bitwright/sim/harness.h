// SPDX-License-Identifier: Apache-2.0
// What the harness and the glue of one design share. A beat is ceil(width/8) bytes, little endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "verilated.h"

// One verilated design behind a fixed interface, so that the harness is compiled once per machine.
struct Model {
  virtual ~Model() = default;
  virtual void clock(bool level) = 0;
  virtual void reset(bool active) = 0;
  virtual void eval() = 0;
  virtual void finish() = 0;
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

// Defined by the glue.
Model* make_model(VerilatedContext& context);
std::vector<Signals> input_signals();
std::vector<Signals> output_signals();
