// SPDX-License-Identifier: Apache-2.0
// Ties one verilated design to the harness. bitwright_config.h (generated) names the class, clock,
// reset and streams.
#include <cstring>

#include "bitwright_config.h"
#include "harness.h"
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif

namespace {

struct Glue final : Model {
  BW_TOP top;
  explicit Glue(VerilatedContext& context) : top{&context} {}
  void clock(bool level) override { top.BW_CLOCK = level; }
  void reset(bool active) override { top.BW_RESET = !active; }
  void eval() override { top.eval(); }
  uint64_t frame_error() override { return BW_FRAME_ERROR; }
#if VM_TRACE
  VerilatedVcdC trace;
  bool tracing = false;
  void open_trace(const char* path) override {
    top.trace(&trace, 99);
    trace.open(path);
    tracing = true;
  }
  void dump_trace(uint64_t time) override { if (tracing) trace.dump(time); }
  void finish() override {
    top.final();
    if (tracing) trace.close();
  }
#else
  void open_trace(const char*) override {}
  void dump_trace(uint64_t) override {}
  void finish() override { top.final(); }
#endif
};

BW_TOP& of(Model& model) { return static_cast<Glue&>(model).top; }

template <class T> void put(T& port, const uint8_t* bytes, size_t count) {
  T value = 0;
  std::memcpy(&value, bytes, count);
  port = value;
}
template <std::size_t N> void put(VlWide<N>& port, const uint8_t* bytes, size_t count) {
  std::memset(port.data(), 0, N * sizeof(EData));
  std::memcpy(port.data(), bytes, count);
}
template <class T> void get(const T& port, uint8_t* bytes, size_t count) {
  std::memcpy(bytes, &port, count);
}
template <std::size_t N> void get(const VlWide<N>& port, uint8_t* bytes, size_t count) {
  std::memcpy(bytes, port.data(), count);
}

#define BW_MAKE_INPUT(NAME, DATA, VALID, READY, SET_LAST, HAS_LAST, WIDTH, BEATS) \
  Signals{NAME, WIDTH, BEATS,                                                     \
          [](Model& m, const uint8_t* d, bool v, bool l) {                        \
            BW_TOP& t = of(m);                                                       \
            put(t.DATA, d, (WIDTH + 7) / 8);                                      \
            t.VALID = v;                                                          \
            (void)l;                                                              \
            SET_LAST;                                                             \
          },                                                                      \
          [](Model& m) { return of(m).READY != 0; },                              \
          nullptr, nullptr, nullptr, nullptr, HAS_LAST},

#define BW_MAKE_OUTPUT(NAME, DATA, VALID, READY, GET_LAST, HAS_LAST, WIDTH, BEATS) \
  Signals{NAME, WIDTH, BEATS, nullptr, nullptr,                                    \
          [](Model& m, bool r) { of(m).READY = r; },                               \
          [](Model& m) { return of(m).VALID != 0; },                               \
          [](Model& m) {                                                           \
            BW_TOP& t = of(m);                                                        \
            (void)t;                                                               \
            return GET_LAST;                                                       \
          },                                                                       \
          [](Model& m, uint8_t* d) { get(of(m).DATA, d, (WIDTH + 7) / 8); }, HAS_LAST},

#define BW_MAKE_MEMORY(NAME, PORT, BASE, WIDTH)                                   \
  MemorySignals{NAME, WIDTH,                                                      \
                [](Model& m, uint64_t base) { of(m).BASE = base; },               \
                [](Model& m, bool ready) { of(m).PORT##_arready = ready; },       \
                [](Model& m, uint64_t& address, uint64_t& length, uint64_t& id) { \
                  BW_TOP& t = of(m);                                              \
                  address = t.PORT##_araddr;                                      \
                  length = t.PORT##_arlen;                                        \
                  id = t.PORT##_arid;                                             \
                  return t.PORT##_arvalid != 0;                                   \
                },                                                                \
                [](Model& m, const uint8_t* data, uint64_t id, bool last) {       \
                  BW_TOP& t = of(m);                                              \
                  put(t.PORT##_rdata, data, WIDTH / 8);                           \
                  t.PORT##_rid = id;                                              \
                  t.PORT##_rresp = 0;                                             \
                  t.PORT##_rlast = last;                                          \
                  t.PORT##_rvalid = 1;                                            \
                },                                                                \
                [](Model& m) { of(m).PORT##_rvalid = 0; },                        \
                [](Model& m) { return of(m).PORT##_rready != 0; }},

}  // namespace

Model* make_model(VerilatedContext& context) { return new Glue{context}; }
std::vector<Signals> input_signals() { return {BW_INPUTS(BW_MAKE_INPUT)}; }
std::vector<Signals> output_signals() { return {BW_OUTPUTS(BW_MAKE_OUTPUT)}; }
std::vector<MemorySignals> memory_signals() { return {BW_MEMORIES(BW_MAKE_MEMORY)}; }
