// SPDX-License-Identifier: Apache-2.0
// When the SDRAM controller (rtl/lib/sdram_*.sv) takes requests and gives words: its registers, cycle
// by cycle, without the data. All outputs follow from the registers, so what a cycle sees is read
// first, and `step` then moves everything by what the port asks. Tests hold it to the RTL.
#pragma once

#include <cstdint>
#include <deque>

// Cycles of two clocks of the chip; the parameters of sdram_port.
struct SdramTimes {
  int64_t rcd = 1, rp = 2, ras = 3, rfc = 5, rrd = 1, mrd = 1, close = 3, turn = 5, refresh = 486;
  int64_t delay = 5, column_words = 7;  // the latter as a power of two: words of a row
};

struct SdramAsks {
  bool ar_valid = false, aw_valid = false, w_valid = false, sync = false;
  uint64_t ar_address = 0, ar_length = 0, ar_id = 0, aw_address = 0, aw_length = 0, aw_id = 0;
};

class Sdram {
 public:
  explicit Sdram(const SdramTimes& given) : times(given) { power_up(); }

  bool ar_ready() const { return !ar_; }
  bool aw_ready() const { return !aw_; }
  bool w_ready() const { return can() && now_.write; }
  bool r_valid() const { return !reads_.empty() && reads_.front().due == cycle_; }
  uint64_t r_id() const { return reads_.front().id; }
  bool r_last() const { return reads_.front().last; }
  bool b_valid() const { return answer_; }
  uint64_t b_id() const { return answer_id_; }
  bool synced() const { return state_ == RUN && time_ == 0 && served_; }

  // As it is in the cycle behind a `synced`: rows closed, the interval at its beginning.
  void power_up() {
    reset();
    state_ = RUN;
    count_ = times.refresh - 1;
    time_ = left_ = gap_ = turn_ = rcd_ = rrd_ = 0;
    due_ = wrote_ = false;
    for (auto& bank : banks_) bank = Bank{};
  }

  // What rst_ni drops.
  void reset() {
    ar_ = aw_ = next_ = busy_ = answer_ = sync_ = served_ = false;
    reads_.clear();
  }

  void step(const SdramAsks& asks) {
    if (r_valid()) reads_.pop_front();
    ++cycle_;
    const bool over = time_ == 0, want_refresh = (due_ || sync_) && !served_, is_synced = synced();
    const bool hold = state_ != RUN || !over || want_refresh;
    bool quiet = !busy_;
    for (const auto& bank : banks_) quiet = quiet && bank.wait == 0;
    const bool clear = state_ == CLOSE && quiet;

    // Columns.
    const bool may = can(), column = may && (!now_.write || asks.w_valid), last = now_.left == 0;
    const Bank& wanted = banks_[next_ask_.bank];
    const bool same = wanted.row == next_ask_.row;
    const bool open = wanted.open && same && rcd_ == 0, give = next_ && open && !busy_ && !hold;
    // Rows.
    const bool row = next_ && !hold && wanted.wait == 0;
    const bool close = row && wanted.open && !same && !(busy_ && now_.bank == next_ask_.bank);
    const bool activate = row && !wanted.open && rrd_ == 0;

    answer_ = column && now_.write && last;
    answer_id_ = now_.id;
    if (column && !now_.write) reads_.push_back({cycle_ + 4 + times.delay, now_.id, last});
    gap_ = column ? 1 : gap_ - (gap_ > 0);
    turn_ = column && !now_.write ? times.turn - 1 : turn_ - (turn_ > 0);
    step_banks(clear, column, close, activate);
    step_sequence(over, want_refresh, is_synced, quiet, clear, asks.sync);

    busy_ = give || (busy_ && !(column && last));
    if (column) --now_.left;
    if (give) now_ = next_ask_;
    const bool free = !next_ || give, pick_write = aw_ && !(ar_ && wrote_);
    const bool take_aw = free && pick_write, take_ar = free && ar_ && !pick_write;
    if (free) next_ = aw_ || ar_;
    if (take_aw || take_ar) next_ask_ = pick_write ? aw_ask_ : ar_ask_;
    wrote_ = !is_synced && (take_aw || (wrote_ && !take_ar));
    if (!ar_) {
      ar_ = asks.ar_valid;
      ar_ask_ = placed(false, asks.ar_address, asks.ar_length, asks.ar_id);
    } else if (take_ar) {
      ar_ = false;
    }
    if (!aw_) {
      aw_ = asks.aw_valid;
      aw_ask_ = placed(true, asks.aw_address, asks.aw_length, asks.aw_id);
    } else if (take_aw) {
      aw_ = false;
    }
  }

 private:
  struct Ask { bool write = false; uint64_t bank = 0, row = 0, id = 0; int64_t left = 0; };
  struct Bank { bool open = false; uint64_t row = 0; int64_t wait = 0; };
  struct Read { int64_t due; uint64_t id; bool last; };
  enum State { CLOSE, RENEW, RUN };

  const SdramTimes times;
  int64_t cycle_ = 0;
  bool ar_ = false, aw_ = false, next_ = false, busy_ = false, answer_ = false;
  bool due_ = false, wrote_ = false, sync_ = false, served_ = false;
  Ask ar_ask_, aw_ask_, next_ask_, now_;
  uint64_t answer_id_ = 0;
  Bank banks_[4];
  std::deque<Read> reads_;
  State state_ = RUN;
  int64_t time_ = 0, count_ = 0, left_ = 0, gap_ = 0, turn_ = 0, rcd_ = 0, rrd_ = 0;

  bool can() const { return busy_ && gap_ == 0 && (!now_.write || turn_ == 0); }

  Ask placed(bool write, uint64_t address, uint64_t length, uint64_t id) const {
    const uint64_t bank = address >> (3 + times.column_words) & 3;
    const uint64_t row = address >> (5 + times.column_words) & 8191;
    return {write, bank ^ (row & 3), row, id, static_cast<int64_t>(length)};
  }

  void step_banks(bool clear, bool column, bool close, bool activate) {
    rcd_ -= rcd_ > 0;
    rrd_ -= rrd_ > 0;
    for (auto& bank : banks_) bank.wait -= bank.wait > 0;
    if (column) banks_[now_.bank].wait = times.close - 1;
    Bank& wanted = banks_[next_ask_.bank];
    if (close) wanted = {false, wanted.row, times.rp - 1};
    if (activate) {
      wanted = {true, next_ask_.row, times.ras - 1};
      rcd_ = times.rcd > 2 ? times.rcd - 2 : 0;
      rrd_ = times.rrd - 1;
    }
    if (!clear) return;
    rcd_ = rrd_ = 0;
    for (auto& bank : banks_) bank.open = false, bank.wait = 0;
  }

  void step_sequence(bool over, bool wanted, bool is_synced, bool quiet, bool clear, bool sync) {
    const State before = state_;
    time_ -= !over;
    if (before == CLOSE && quiet) state_ = RENEW, time_ = times.rp - 1;
    if (before == RENEW && over) {
      time_ = times.rfc - 1;
      state_ = RUN;
    }
    if (before == RUN && over && wanted) state_ = CLOSE;
    const bool expired = count_ == 0;
    count_ = is_synced || expired ? times.refresh - 1 : count_ - 1;
    due_ = !is_synced && (expired || (due_ && !clear));
    const bool was = sync_;
    sync_ = !is_synced && (sync_ || sync);
    served_ = !is_synced && (served_ || (clear && was));
  }
};
