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
#ifdef BW_START
  void start(bool level) override { top.BW_START = level; }
  bool running_done() override { return top.BW_DONE != 0; }
  uint64_t status() override {
    return top.BW_CODE | static_cast<uint64_t>(top.BW_ERROR) << BW_CODE_BITS;
  }
  uint64_t counted() override { return top.BW_COUNTED; }
  uint64_t events() override { return top.BW_EVENTS; }
#endif
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

#define BW_READ_CHANNELS(PORT, WIDTH)             \
  t.PORT##_arready = says.ar_ready;               \
  t.PORT##_rvalid = says.r_valid;                 \
  if (says.r_valid) {                             \
    put(t.PORT##_rdata, says.r_data, WIDTH / 8);  \
    t.PORT##_rid = says.r_id;                     \
    t.PORT##_rresp = says.r_error ? 2 : 0;        \
    t.PORT##_rlast = says.r_last;                 \
  }
#define BW_READ_REQUESTS(PORT)             \
  asks.ar_valid = t.PORT##_arvalid != 0;   \
  asks.ar_address = t.PORT##_araddr;       \
  asks.ar_length = t.PORT##_arlen;         \
  asks.ar_id = t.PORT##_arid;              \
  asks.r_ready = t.PORT##_rready != 0;
#define BW_WRITE_CHANNELS(PORT)      \
  t.PORT##_awready = says.aw_ready;  \
  t.PORT##_wready = says.w_ready;    \
  t.PORT##_bvalid = says.b_valid;    \
  t.PORT##_bid = says.b_id;          \
  t.PORT##_bresp = says.b_error ? 2 : 0;
#define BW_WRITE_REQUESTS(PORT, WIDTH)                            \
  asks.aw_valid = t.PORT##_awvalid != 0;                          \
  asks.aw_address = t.PORT##_awaddr;                              \
  asks.aw_length = t.PORT##_awlen;                                \
  asks.aw_id = t.PORT##_awid;                                     \
  asks.w_valid = t.PORT##_wvalid != 0;                            \
  asks.w_last = t.PORT##_wlast != 0;                              \
  asks.b_ready = t.PORT##_bready != 0;                            \
  if (asks.w_valid) {                                             \
    get(t.PORT##_wdata, asks.w_data, WIDTH / 8);                  \
    get(t.PORT##_wstrb, asks.w_strobes, (WIDTH / 8 + 7) / 8);     \
  }

#define BW_MAKE_MEMORY(NAME, PORT, BASE, WIDTH)                                     \
  MemorySignals{NAME, WIDTH, false,                                                 \
                [](Model& m, uint64_t base) { of(m).BASE = base; },                 \
                [](Model& m, const MemorySays& says) {                              \
                  BW_TOP& t = of(m);                                                \
                  BW_READ_CHANNELS(PORT, WIDTH)                                     \
                },                                                                  \
                [](Model& m, MemoryAsks& asks) {                                    \
                  BW_TOP& t = of(m);                                                \
                  BW_READ_REQUESTS(PORT)                                            \
                }},

#define BW_MAKE_WRITABLE(NAME, PORT, BASE, WIDTH)                                   \
  MemorySignals{NAME, WIDTH, true,                                                  \
                [](Model& m, uint64_t base) { of(m).BASE = base; },                 \
                [](Model& m, const MemorySays& says) {                              \
                  BW_TOP& t = of(m);                                                \
                  BW_READ_CHANNELS(PORT, WIDTH)                                     \
                  BW_WRITE_CHANNELS(PORT)                                           \
                },                                                                  \
                [](Model& m, MemoryAsks& asks) {                                    \
                  BW_TOP& t = of(m);                                                \
                  BW_READ_REQUESTS(PORT)                                            \
                  BW_WRITE_REQUESTS(PORT, WIDTH)                                    \
                }},

}  // namespace

Model* make_model(VerilatedContext& context) { return new Glue{context}; }
std::vector<Signals> input_signals() { return {BW_INPUTS(BW_MAKE_INPUT)}; }
std::vector<Signals> output_signals() { return {BW_OUTPUTS(BW_MAKE_OUTPUT)}; }
std::vector<MemorySignals> memory_signals() {
  return {BW_MEMORIES(BW_MAKE_MEMORY, BW_MAKE_WRITABLE)};
}
bool runs_programs() {
#ifdef BW_START
  return true;
#else
  return false;
#endif
}
