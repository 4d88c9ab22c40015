// SPDX-License-Identifier: Apache-2.0
// Clock cycle by clock cycle, when the engine's instructions begin and end; no data. The rules are
// those of the modules engine_*.sv, stream_fifo.sv and axi_arbiter.sv of rtl/lib, a structure each;
// the memory is the test bench's own (sim/memory.h): the same seed makes the same stalls. All of a
// cycle is decided from the state at its beginning, then everything moves. See engine/timing.py.
#include <deque>
#include <new>

#include "memory.h"

namespace {

enum Kind { CONF, EXEC, LOAD, STORE, HALT };
constexpr int64_t LOOKS = 1 << 20;  // cycles between two questions whether to go on
constexpr int BURST = 16, QUEUE = 16, STORE_PLACES = 32, FETCH_PLACES = 32;

using Stops = int (*)(int64_t);  // of the cycle: whether to end here

// One row of the program: as engine/timing.py writes it.
struct Instruction {
  int64_t kind, wait, signal, period, features, x, y, z, memory, memory_y, memory_z;
};

struct Fifo {  // stream_fifo: a word is on the output 3 cycles behind its coming
  Fifo(int64_t places, bool luts) : depth(places), lut(luts) {}
  int64_t depth, count = 0, stored = 0;  // stored: may be read from the RAM
  bool lut, between = false, out = false;  // LUT RAM waits in front of the RAM, block RAM behind
  bool ready() const { return count < depth; }
  void step(bool in, bool take) {
    count += in - (out && take);
    const bool free = !out || take;
    if (lut) {
      const bool read = stored > 0 && free;
      stored += between - read;
      between = in;
      if (free) out = read;
    } else {
      const bool read = stored > 0 && (!between || free);
      stored += in - read;
      if (free) out = between;
      if (!between || free) between = read;
    }
  }
};

struct Bursts {  // engine_bursts
  const Instruction* of = nullptr;
  int64_t at = 0, run = 0, block = 0, x = 0, y = 0, z = 0;
  void start(const Instruction& block_of) {
    of = &block_of;
    at = run = block = of->memory;
    x = of->x;
    y = of->y - 1;
    z = of->z - 1;
  }
  int64_t room() const { return BURST - (at & (BURST - 1)); }
  int64_t length() const { return x < room() ? x : room(); }
  bool last() const { return x <= room() && y == 0 && z == 0; }
  void next() {
    if (x > room()) {
      x -= room();
      at += room();
      return;
    }
    x = of->x;
    if (y == 0) {
      block += of->memory_z;
      at = run = block;
      y = of->y - 1;
      --z;
    } else {
      run += of->memory_y;
      at = run;
      --y;
    }
  }
};

struct Request { int64_t at = 0, length = 0, unit = 0; };

struct Skid {  // stream_skid
  bool main = false, second = false;
  Request first, waiting;
  bool ready() const { return !second; }
  void step(bool in, const Request& request, bool out_ready) {
    const bool fire = in && ready(), free = !main || out_ready;
    if (free) {
      first = second ? waiting : request;
      main = second || fire;
      second = false;
    } else if (fire) {
      second = true;
      waiting = request;
    }
  }
};

struct Queue : Fifo {  // of a unit, with which instructions
  Queue() : Fifo(QUEUE, true) {}
  std::deque<int64_t> held;
  int64_t head() const { return held.front(); }
  void move(bool in, int64_t number, bool take) {
    if (out && take) held.pop_front();
    if (in) held.push_back(number);
    step(in, take);
  }
};

class Engine {
 public:
  Engine(const Instruction* rows, int64_t rows_count, int64_t word_bytes, Memory& outside)
      : program(rows), count(rows_count), bytes(word_bytes), words(32 / word_bytes),
        memory(outside) {}

  // Runs of the program one after the other. 0: all are over, 1: `limit` cycles were not enough, 3:
  // `stops` said so.
  int run(int64_t runs, int64_t pause, int64_t limit, Stops stops, int64_t* begin, int64_t* end,
          int64_t* starts, int64_t* ends) {
    int64_t number = 0, waited = 0;
    bool running = false;
    for (cycle = 0; cycle < limit; ++cycle) {
      if ((cycle + 1) % LOOKS == 0 && stops(cycle)) return 3;
      const bool start = !running && number < runs && waited++ >= pause;
      begins = begin + number * count;
      completes = end + number * count;
      if (running && done) {
        ends[number++] = cycle;
        running = false;
        waited = 0;
        if (number == runs) return 0;
      }
      if (start) starts[number] = cycle;
      running |= start;
      step(start);
    }
    return 1;
  }

 private:
  const Instruction* program;
  int64_t count, bytes, words, cycle = 0;
  Memory& memory;
  int64_t *begins = nullptr, *completes = nullptr;
  bool active = false, done = false, even = true;  // run_q, done_o, even_q
  int64_t pending = 0;
  int64_t tokens[3][3] = {};  // of a taker, from a giver
  bool held[3] = {};  // in the cycle before, the head of the queue had all its tokens
  Queue queues[3];
  Skid skid;

  // Fetcher.
  bool f_over = false, f_asks = false, f_full = false;
  int64_t f_free = FETCH_PLACES, f_next = 0, f_at = 0, f_beats = 0, f_number = 0;
  Fifo f_fifo{FETCH_PLACES, true};
  // L.
  bool l_asking = false, l_asks = false, l_next = false, l_fill = false, l_done = false;
  const int64_t load_places = bytes > 8 ? 256 : 64;  // engine_units
  int64_t l_free = load_places, l_next_number = 0, l_number = 0, l_left = 0, l_asked = 0;
  int64_t l_done_number = 0;
  Bursts l_bursts;
  Request l_request;
  Fifo l_fifo{load_places, false};
  // X.
  int64_t x_free_at = 0;
  std::deque<std::pair<int64_t, int64_t>> x_ends;  // cycle of the end, number
  // S.
  bool s_run = false, s_asking = false, s_burst = false, s_sending = false;
  bool s_arrive[4] = {};  // a word was read 1, 2, 3, 4 cycles ago
  int64_t s_pending = 0, s_number = 0, s_free = STORE_PLACES, s_left = 0, s_send_left = 0;
  Bursts s_bursts;
  Request s_reading;
  std::deque<Request> s_read;
  Fifo s_read_fifo{4, true}, s_words{STORE_PLACES, true};

  bool ready(int unit) const {  // the tokens of the head of its queue
    if (!queues[unit].out) return false;
    const int64_t wait = program[queues[unit].head()].wait;
    for (int other = 0; other < 3; ++other) {
      if (other != unit && (wait >> other & 1) && tokens[unit][other] == 0) return false;
    }
    return true;
  }

  void take_tokens(int unit, int64_t number) {
    for (int other = 0; other < 3; ++other) {
      if (other != unit) tokens[unit][other] -= program[number].wait >> other & 1;
    }
    begins[number] = cycle;
  }

  void give_tokens(int unit, int64_t number) {
    for (int other = 0; other < 3; ++other) {
      if (other != unit) tokens[other][unit] += program[number].signal >> other & 1;
    }
    completes[number] = cycle;
  }

  void step(bool start) {
    if (start && memory.chip) memory.chip->power_up();  // what the console sees to
    const MemorySays says = memory.before(static_cast<uint64_t>(cycle));

    // The address channel: L before the fetcher.
    const bool taken_l = l_asks && skid.ready(), taken_f = f_asks && !l_asks && skid.ready();
    const Request asked = l_asks ? l_request : Request{f_at, BURST, 1};

    // Fetcher.
    const int64_t opcode = f_full ? program[f_number].kind : -1;
    const int unit = opcode == LOAD ? 0 : opcode == STORE ? 2 : 1;
    const bool deal = f_full && opcode != HALT && queues[unit].ready();
    const bool f_taken = f_fifo.out && (f_over || !f_full || deal);
    const bool f_request = active && !f_over && (!f_asks || taken_f) && f_free >= BURST;
    const bool halted = active && f_over && !f_asks && f_free == FETCH_PLACES;

    // S, which goes before L in the features.
    const bool s_go = held[2] && !s_run;
    const bool s_done = s_run && !s_asking && s_pending == 0;
    const bool s_begin = s_asking && !s_burst && s_read_fifo.ready() && s_pending < 32 &&
                         s_free >= BURST;
    const bool s_reads = s_burst && !even, s_last = s_reads && s_left == 1;
    const bool aw = s_read_fifo.out && !s_sending, s_taken = aw && says.aw_ready;
    const bool w = s_sending && s_words.out, s_sent = w && says.w_ready;

    // L.
    const bool l_go = held[0] && !l_asking && !l_next;
    const bool l_request_now =
        l_asking && (!l_asks || taken_l) && l_free >= BURST;
    const bool l_slot = l_fill && (program[l_number].features ? !even && !s_reads : true);
    const bool l_taken = l_fifo.out && l_slot, l_last = l_taken && l_left == 1;
    const bool l_start = l_next && !l_fill;

    // X.
    const bool x_exec = queues[1].out && program[queues[1].head()].kind == EXEC;
    const bool x_spent = queues[1].out && !x_exec;
    const bool x_own = x_exec && (program[queues[1].head()].wait >> 1 & 1);
    const bool x_go = x_exec && held[1] && cycle >= x_free_at && (!x_own || x_ends.empty());
    const bool x_done = !x_ends.empty() && x_ends.front().first == cycle;

    const bool takes[3] = {l_go, x_go || x_spent, s_go};
    for (int u = 0; u < 3; ++u) held[u] = ready(u) && !takes[u];

    const bool over = active && halted && pending == 0;

    // What the memory is asked.
    MemoryAsks asks;
    asks.r_ready = asks.b_ready = true;
    asks.ar_valid = skid.main;
    asks.ar_address = memory.base + static_cast<uint64_t>(skid.first.at * bytes);
    asks.ar_length = static_cast<uint64_t>(skid.first.length - 1);
    asks.ar_id = static_cast<uint64_t>(skid.first.unit);
    asks.aw_valid = aw;
    if (aw) {
      asks.aw_address = memory.base + static_cast<uint64_t>(s_read.front().at * bytes);
      asks.aw_length = static_cast<uint64_t>(s_read.front().length - 1);
    }
    asks.w_valid = w;
    asks.w_last = s_send_left == 1;
    memory.after(static_cast<uint64_t>(cycle), asks);
    const bool l_beat = says.r_valid && says.r_id == 0, f_beat = says.r_valid && says.r_id == 1;

    // Everything moves: first the numbers of instructions, then registers.
    const int64_t l_head = l_go ? queues[0].head() : 0, x_head = x_go ? queues[1].head() : 0;
    const int64_t s_head = s_go ? queues[2].head() : 0;
    if (l_go) take_tokens(0, l_head);
    if (x_go) take_tokens(1, x_head);
    if (s_go) take_tokens(2, s_head);
    if (l_done) give_tokens(0, l_done_number);
    if (x_done) give_tokens(1, x_ends.front().second);
    if (s_done) give_tokens(2, s_number);
    pending += deal - x_spent - l_done - x_done - s_done;

    for (int u = 0; u < 3; ++u) {
      queues[u].move(deal && unit == u, f_number, takes[u]);
    }
    skid.step(l_asks || f_asks, asked, says.ar_ready);

    move_fetch(start, f_request, taken_f, f_taken, deal, opcode, f_beat);
    move_load(l_go, l_head, l_request_now, taken_l, l_taken, l_last, l_start, l_beat);
    if (x_done) x_ends.pop_front();
    if (x_go) {
      x_free_at = cycle + program[x_head].period;
      x_ends.emplace_back(x_free_at + result, x_head);
    }
    move_store(s_go, s_head, s_done, s_begin, s_reads, s_last, s_taken, s_sent,
               says.b_valid);

    if (start) {
      for (auto& row : tokens) for (auto& token : row) token = 0;
    }
    done = over || (done && !start);
    active = start || (active && !over);
    even = start || !even;
  }

  void move_fetch(bool start, bool request, bool asked, bool taken, bool deal, int64_t opcode,
                  bool beat) {
    f_free += taken - (request ? BURST : 0);
    if (request) f_at = f_next;
    f_asks = request || (f_asks && !asked);
    f_next = start ? 0 : f_next + (request ? BURST : 0);
    f_fifo.step(beat, taken);
    if (start) {
      f_beats = f_number = 0;
      f_full = f_over = false;
    } else if (!f_over) {
      const bool whole = taken && f_beats == words - 1;
      if (taken) f_beats = (f_beats + 1) % words;
      if (deal) ++f_number;
      f_over = opcode == HALT;
      f_full = (f_full && !deal) || whole;
    } else {
      f_full = false;
    }
  }

  void move_load(bool go, int64_t head, bool request, bool asked, bool taken, bool last,
                 bool start, bool beat) {
    l_free += taken - (request ? l_bursts.length() : 0);
    const bool asked_all = request && l_bursts.last();
    if (request) {
      l_request = {l_bursts.at, l_bursts.length(), 0};
      l_bursts.next();
    }
    l_asks = request || (l_asks && !asked);
    l_asking = go || (l_asking && !asked_all);
    l_fifo.step(beat, taken);
    l_done = last;
    l_done_number = l_number;
    if (taken) --l_left;
    if (start) {
      l_number = l_next_number;
      const auto& row = program[l_number];
      l_left = row.x * row.y * row.z;
    }
    l_fill = start || (l_fill && !last);
    l_next = go || (l_next && !start);
    if (go) {
      l_next_number = head;
      l_bursts.start(program[head]);
    }
  }

  void move_store(bool go, int64_t head, bool finished, bool begin, bool reads, bool last,
                  bool taken, bool sent, bool answered) {
    s_free += sent - (begin ? s_bursts.length() : 0);
    s_pending += begin - answered;
    const bool begun_all = begin && s_bursts.last();
    s_sending = taken || (s_sending && !(sent && s_send_left == 1));
    if (taken) {
      s_send_left = s_read.front().length;
      s_read.pop_front();
    } else if (sent) {
      --s_send_left;
    }
    if (last) s_read.push_back(s_reading);
    s_read_fifo.step(last, taken);
    s_words.step(s_arrive[3], sent);
    s_arrive[3] = s_arrive[2];
    s_arrive[2] = s_arrive[1];
    s_arrive[1] = s_arrive[0];
    s_arrive[0] = reads;
    if (begin) {
      s_left = s_bursts.length();
      s_reading = {s_bursts.at, s_left, 0};
      s_bursts.next();
    } else if (reads) {
      --s_left;
    }
    s_burst = begin || (s_burst && !last);
    s_run = go || (s_run && !finished);
    s_asking = go || (s_asking && !begun_all);
    if (go) {
      s_number = head;
      s_bursts.start(program[head]);
    }
  }

 public:
  int64_t result = 0;  // cycles from the end of an EXEC's period to its end
};

}  // namespace

extern "C" {

// `shape`: bytes of a word, cycles of a result, runs, pause, limit. `outside`: base, latency, jitter,
// mixed, size in bytes, seed; `rates`: words a cycle, stop, go; `sdram`: the fields of SdramTimes, or
// zeros for none. `stops`: asked now and then. 0: done, 1: too many cycles, 2: the memory was asked
// for something that it does not have, 3: stopped, 4: no room for the memory.
int bw_engine_timing(const void* program, int64_t count, const int64_t* shape,
                     const int64_t* outside, const double* rates, const SdramTimes* sdram,
                     Stops stops, int64_t* begin, int64_t* end, int64_t* starts, int64_t* ends) {
  Sdram chip(*sdram);
  Memory memory;
  if (sdram->refresh) memory.chip = &chip;
  memory.name = "memory";
  memory.writable = true;
  memory.width = static_cast<uint64_t>(shape[0]) * 8;
  memory.base = static_cast<uint64_t>(outside[0]);
  memory.latency = static_cast<uint64_t>(outside[1]);
  memory.jitter = static_cast<uint64_t>(outside[2]);
  memory.mixed = outside[3] != 0;
  memory.size = static_cast<uint64_t>(outside[4]);
  memory.rate = rates[0];
  for (Stall* stall : {&memory.stall, &memory.write_stall, &memory.word_stall}) {
    stall->stop = rates[1];
    stall->go = rates[2];
  }
  memory.seed(static_cast<uint64_t>(outside[5]));
  try {
    memory.grow();
    Engine engine(static_cast<const Instruction*>(program), count, shape[0], memory);
    engine.result = shape[1];
    return engine.run(shape[2], shape[3], shape[4], stops, begin, end, starts, ends);
  } catch (const std::bad_alloc&) {
    return 4;
  } catch (const std::exception&) {
    return 2;
  }
}

int64_t bw_engine_instruction_size(void) { return sizeof(Instruction); }
int64_t bw_engine_sdram_size(void) { return sizeof(SdramTimes); }

}  // extern "C"
