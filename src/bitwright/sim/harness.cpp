// SPDX-License-Identifier: Apache-2.0
// Drives a verilated design with ready/valid streams and records every transfer, or has it run the
// programs in its memories, run after run. The design comes in through glue.cpp; what to do is told
// by "key value" lines in the file named by the first argument. Writes raw beats and cycle stamps
// per port, memories and events per run, and a result.json into the folder given there. Cycle 0 is
// the first one after the (last) reset.

#include "harness.h"
#include "memory.h"
#include "random.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

namespace {

struct Port : Signals {
  explicit Port(const Signals& signals) : Signals(signals), bytes((signals.width + 7) / 8) {}
  size_t bytes;
  Stall stall;
  std::vector<uint8_t> buffer;   // inputs: all beats; outputs: beats so far
  std::vector<uint64_t> stamps;  // cycle of every transfer
  std::vector<char> lasts;       // inputs: tlast of every beat; empty: where it belongs
  size_t total = 0, done = 0;
  bool offering = false, moving = false;
  int64_t bad_last = -1;
};

std::vector<Port> ports(const std::vector<Signals>& signals) {
  return std::vector<Port>(signals.begin(), signals.end());
}

// A memory with the signals of its port.
struct Outside : Memory {
  explicit Outside(const MemorySignals& port) : signals(port) {
    name = port.name;
    width = port.width;
    writable = port.writable;
  }
  MemorySignals signals;
  MemoryAsks asks;
};

struct Patch {
  uint64_t run, memory, at;
  std::string file;
};

// Bytes of a memory that are answered with an error in one run.
struct Fault { uint64_t run, memory, low, high; };

// One run of a program: cycles of start and end, and what the design says at the end.
struct Run { uint64_t start, end, status, counted, events; };

struct Job {
  uint64_t seed = 1, frames = 1, max_cycles = 0, idle_limit = 100000, drain = 0, throttle = 0;
  uint64_t pause = 0;  // cycles before every start of a program
  int64_t again = -1;  // cycles behind a start of one that must be ignored; -1: none
  int64_t reset_at = -1;
  std::string folder = ".", trace;
};

class Bench {
 public:
  Bench(int argc, char** argv) : inputs{ports(input_signals())}, outputs{ports(output_signals())} {
    for (const auto& signals : memory_signals()) memories.emplace_back(signals);
    programs = runs_programs();
    read_job(argc > 1 ? argv[1] : "");
    context.randReset(2);  // registers without a reset start at random values
    context.randSeed(static_cast<int>(job.seed % 0x7fffffff) + 1);
    context.traceEverOn(!job.trace.empty());
    context.fatalOnError(true);
    top.reset(make_model(context));
    if (!job.trace.empty()) top->open_trace(job.trace.c_str());
  }

  int run() {
    prepare();
    prepare_memories();
    reset();
    const char* status = "done";
    uint64_t idle = 0, drained = 0;
    while (true) {
      if (job.reset_at >= 0 && cycle == static_cast<uint64_t>(job.reset_at)) {
        job.reset_at = -1;
        reset();
        idle = 0;
      }
      const bool moved = step();
      idle = moved ? 0 : idle + 1;
      if (finished() && job.reset_at < 0) {
        if (drained++ >= job.drain) break;
        if (extra) { status = "extra"; break; }
      } else if (idle > job.idle_limit) {
        status = "deadlock";
        break;
      } else if (job.max_cycles && spent >= job.max_cycles) {
        status = "max_cycles";
        break;
      }
    }
    frame_error = top->frame_error();
    top->finish();
    write_result(status);
    return 0;
  }

 private:
  VerilatedContext context;
  std::unique_ptr<Model> top;
  Job job;
  std::vector<Port> inputs, outputs;
  std::vector<Outside> memories;
  std::vector<Patch> patches;
  std::vector<Fault> faults;
  std::vector<Run> runs;         // complete ones
  std::vector<uint64_t> events;  // cycle, bits
  uint64_t cycle = 0, spent = 0, finish_cycle = 0, frame_error = 0, waited = 0, started = 0;
  bool extra = false, programs = false, running = false;

  void tick(bool level) {
    top->clock(level);
    top->eval();
    top->dump_trace(context.time());
    context.timeInc(1);
  }

  void reset() {
    for (auto& port : inputs) {
      port.done = 0;
      port.offering = false;
      port.stamps.clear();
      port.drive(*top, port.buffer.data(), false, false);
    }
    for (auto& port : outputs) {
      port.done = 0;
      port.stamps.clear();
      port.buffer.clear();
      port.bad_last = -1;
      port.accept(*top, false);
    }
    for (auto& memory : memories) {
      memory.reset(cycle);
      memory.signals.set_base(*top, memory.base);
      memory.signals.say(*top, MemorySays{});
    }
    if (programs) {
      top->start(false);
      runs.clear();
      events.clear();
      running = false;
      waited = 0;
      apply_patches();
    }
    top->reset(true);
    for (int i = 0; i < 4; ++i) {
      tick(false);
      tick(true);
      ++spent;
    }
    top->reset(false);
    cycle = 0;
  }

  bool offered(const Port& port) const {  // with a throttle, beats are spread evenly over it
    if (!job.throttle) return true;
    const uint64_t frame = port.done / port.beats, beat = port.done % port.beats;
    return cycle >= frame * job.throttle + beat * job.throttle / port.beats;
  }

  bool step() {
    for (auto& port : inputs) {
      const bool go = port.stall.step();
      if (!port.offering && go && port.done < port.total && offered(port)) {
        port.offering = true;
        const bool last = port.lasts.empty() ? port.done % port.beats == port.beats - 1
                                             : port.lasts[port.done] != 0;
        port.drive(*top, port.buffer.data() + port.done * port.bytes, true, last);
      } else if (!port.offering) {
        port.drive(*top, port.buffer.data() + port.total * port.bytes, false, false);
      }
    }
    for (auto& port : outputs) port.accept(*top, port.moving = port.stall.step());
    for (auto& memory : memories) memory.signals.say(*top, memory.before(cycle));
    const bool start = programs && !running && runs.size() < job.frames && waited++ >= job.pause;
    const bool again = running && job.again >= 0 && cycle - started == static_cast<uint64_t>(job.again);
    if (programs) top->start(start || again);
    tick(false);
    bool moved = programs && watch(start);
    for (auto& port : inputs) {
      if (port.offering && port.ready(*top)) {
        port.stamps.push_back(cycle);
        ++port.done;
        port.offering = false;
        moved = true;
      }
    }
    for (auto& port : outputs) {
      if (port.moving && port.valid(*top)) {
        take(port);
        moved = true;
      }
    }
    for (auto& memory : memories) {
      memory.signals.ask(*top, memory.asks);
      const bool did = memory.after(cycle, memory.asks);
      moved |= programs && did;
    }
    tick(true);
    ++cycle;
    ++spent;
    return moved;
  }

  void take(Port& port) {
    if (port.done >= port.total) {
      extra = true;
      return;
    }
    const size_t at = port.buffer.size();
    port.buffer.resize(at + port.bytes);
    port.data(*top, port.buffer.data() + at);
    port.stamps.push_back(cycle);
    const bool last = port.done % port.beats == port.beats - 1;
    if (port.has_last && port.last(*top) != last && port.bad_last < 0) {
      port.bad_last = static_cast<int64_t>(port.done);
    }
    ++port.done;
    finish_cycle = cycle + 1;
  }

  // What a design that runs programs does in this cycle; false: nothing.
  bool watch(bool start) {
    if (start) {
      running = true;
      started = cycle;
      return true;
    }
    const uint64_t bits = top->events();
    if (bits) {
      events.push_back(cycle);
      events.push_back(bits);
    }
    if (!running || !top->running_done()) return bits != 0;
    runs.push_back({started, cycle, top->status(), top->counted(), events.size() / 2});
    running = false;
    waited = 0;
    finish_cycle = cycle + 1;
    for (size_t i = 0; i < memories.size(); ++i) {
      const std::string name = "memory" + std::to_string(i) + "." + std::to_string(runs.size() - 1);
      dump(job.folder + "/" + name + ".bytes", memories[i].bytes);
      dump(job.folder + "/" + name + ".defined", memories[i].defined);
    }
    apply_patches();
    return true;
  }

  void apply_patches() {  // what is written before the coming run
    for (const auto& patch : patches) {
      if (patch.run != runs.size()) continue;
      std::ifstream file(job.folder + "/" + patch.file, std::ios::binary);
      const std::vector<uint8_t> data{std::istreambuf_iterator<char>(file), {}};
      memories.at(patch.memory).patch(patch.at, data);
    }
    for (auto& memory : memories) memory.bad_low = memory.bad_high = 0;
    for (const auto& fault : faults) {
      if (fault.run != runs.size()) continue;
      memories.at(fault.memory).bad_low = fault.low;
      memories.at(fault.memory).bad_high = fault.high;
    }
  }

  bool finished() const {
    if (programs && runs.size() < job.frames) return false;
    for (const auto& port : outputs) if (port.done < port.total) return false;
    for (const auto& port : inputs) if (port.done < port.total) return false;
    return true;
  }

  void read_job(const char* path) {
    std::ifstream file(path);
    std::string line, key;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      if (!(words >> key)) continue;
      if (key == "seed") words >> job.seed;
      else if (key == "frames") words >> job.frames;
      else if (key == "max_cycles") words >> job.max_cycles;
      else if (key == "idle_limit") words >> job.idle_limit;
      else if (key == "drain") words >> job.drain;
      else if (key == "throttle") words >> job.throttle;
      else if (key == "reset_at") words >> job.reset_at;
      else if (key == "pause") words >> job.pause;
      else if (key == "again") words >> job.again;
      else if (key == "folder") std::getline(words >> std::ws, job.folder);
      else if (key == "trace") std::getline(words >> std::ws, job.trace);
      else if (key == "stall_in" || key == "stall_out") {
        size_t port = 0;
        double stop = 0, go = 1;
        words >> port >> stop >> go;
        auto& stall = (key == "stall_in" ? inputs : outputs).at(port).stall;
        stall.stop = stop;
        stall.go = go;
      } else if (key == "memory") {
        size_t number = 0;
        words >> number;
        auto& memory = memories.at(number);
        words >> memory.base >> memory.latency >> memory.jitter >> memory.rate >> memory.mixed;
        words >> memory.forgets >> memory.size;
        words >> memory.stall.stop >> memory.stall.go;
        for (Stall* stall : {&memory.write_stall, &memory.word_stall}) {
          stall->stop = memory.stall.stop;
          stall->go = memory.stall.go;
        }
        std::getline(words >> std::ws, memory.image);
      } else if (key == "fault") {
        Fault fault{};
        words >> fault.run >> fault.memory >> fault.low >> fault.high;
        faults.push_back(fault);
      } else if (key == "patch") {
        Patch patch{};
        words >> patch.run >> patch.memory >> patch.at;
        std::getline(words >> std::ws, patch.file);
        patches.push_back(patch);
      } else {
        std::fprintf(stderr, "unknown key %s\n", key.c_str());
        std::exit(2);
      }
    }
  }

  void prepare() {
    uint64_t number = 0;
    for (auto& port : inputs) {
      port.stall.random = Random(job.seed * 1000 + number);
      std::ifstream lasts(path("in", number, "lasts"), std::ios::binary);
      port.lasts.assign(std::istreambuf_iterator<char>(lasts), {});
      port.total = port.lasts.empty() ? job.frames * port.beats : port.lasts.size();
      std::ifstream file(path("in", number++, "beats"), std::ios::binary);
      port.buffer.assign(std::istreambuf_iterator<char>(file), {});
      if (port.buffer.size() != port.total * port.bytes) {
        std::fprintf(stderr, "%s: %zu bytes of beats, expected %zu\n", port.name,
                     port.buffer.size(), port.total * port.bytes);
        std::exit(2);
      }
      // While nothing is offered the data lines carry noise that no design may depend on.
      for (size_t i = 0; i < port.bytes; ++i) port.buffer.push_back(0x5a);
      if (port.width % 8) port.buffer.back() &= (1u << port.width % 8) - 1;
    }
    number = 500;
    for (auto& port : outputs) {
      port.stall.random = Random(job.seed * 1000 + number++);
      port.total = job.frames * port.beats;
    }
  }

  void prepare_memories() {
    uint64_t number = 900;
    for (auto& memory : memories) {
      memory.seed(job.seed * 1000 + number++);
      memory.load();
    }
  }

  std::string path(const char* side, uint64_t number, const char* what) const {
    return job.folder + "/" + side + std::to_string(number) + "." + what;
  }

  template <class T> void dump(const std::string& name, const std::vector<T>& values) const {
    std::ofstream file(name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(T)));
    if (!file.flush()) {
      std::fprintf(stderr, "cannot write %s\n", name.c_str());
      std::exit(2);
    }
  }

  void write_result(const char* status) const {
    std::ostringstream text;
    text << "{\"status\": \"" << status << "\", \"cycles\": " << cycle << ", \"spent\": " << spent
         << ", \"finish\": " << finish_cycle << ", \"frame_error\": " << frame_error
         << ", \"inputs\": [";
    for (size_t i = 0; i < inputs.size(); ++i) {
      dump(path("in", i, "cycles"), inputs[i].stamps);
      text << (i ? ", " : "") << "{\"done\": " << inputs[i].done << ", \"total\": " << inputs[i].total
           << ", \"waiting\": " << (inputs[i].offering ? "true" : "false") << "}";
    }
    text << "], \"outputs\": [";
    for (size_t i = 0; i < outputs.size(); ++i) {
      dump(path("out", i, "beats"), outputs[i].buffer);
      dump(path("out", i, "cycles"), outputs[i].stamps);
      text << (i ? ", " : "") << "{\"done\": " << outputs[i].done
           << ", \"total\": " << outputs[i].total << ", \"bad_last\": " << outputs[i].bad_last << "}";
    }
    text << "], \"memories\": [";
    for (size_t i = 0; i < memories.size(); ++i) {
      text << (i ? ", " : "") << "{\"beats\": " << memories[i].beats
           << ", \"bursts\": " << memories[i].bursts
           << ", \"beats_written\": " << memories[i].beats_written << "}";
    }
    text << "], \"runs\": [";
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto& run = runs[i];
      text << (i ? ", " : "") << "{\"start\": " << run.start << ", \"end\": " << run.end
           << ", \"status\": " << run.status << ", \"counted\": " << run.counted
           << ", \"events\": " << run.events << "}";
    }
    dump(job.folder + "/events", events);
    text << "]}\n";
    std::ofstream file(job.folder + "/result.json");
    file << text.str();
    if (!file.flush()) std::exit(2);
  }
};

}  // namespace

int main(int argc, char** argv) {
  try {
    return Bench(argc, argv).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%%Error: %s\n", error.what());
    return 2;
  }
}
