// What a checked run knows of every byte the kernel may touch.
//
// Buffers and threadgroup variables lie in an address range of their own, each in a slot so wide
// that no 32-bit index leaves it: an address names its array, and what is outside of the array is
// out of bounds. The checker's run is on one OS thread.
//
// Time is a counter that grows at every synchronisation. A record is the time of an access and its
// thread. Since a barrier holds all of a threadgroup, an access of another thread is ordered before
// this one exactly if a barrier of that memory, or one of a simdgroup that both are in, came
// between: no vector clocks are needed.
#pragma once

#include <cstdint>
#include <vector>

#include "abi.h"

namespace metile {

constexpr uint64_t kSlotBits = 35;
constexpr uint64_t kSlots = 256;
constexpr uint64_t kArenaBytes = kSlots << kSlotBits;
constexpr uint32_t kSimdgroups = 32;
constexpr uint32_t kNobody = ~0u;

// time << 16 | simdgroup << 10 | lane << 5 | another lane of the same time
using Record = uint64_t;

struct Accesses {
  Record recent;   // the last simdgroup's
  Record other;    // another simdgroup's since the last barrier
  Record earlier;  // another threadgroup's
};

struct Cell {
  Record write;
  Accesses reads;
};

struct AtomicCell {
  Accesses accesses;
  uint64_t has_written;
};

enum Space : uint32_t { kDevice = 0, kThreadgroup = 1 };

struct Region {
  uintptr_t base = 0;
  uint64_t bytes = 0;
  uint64_t lead = 0;  // bytes before element 0
  Cell* cells = nullptr;  // null where the kernel only reads: nothing to race with
  AtomicCell* atomics = nullptr;
  uint64_t cell_count = 0;
  uint32_t shift = 0;  // log2 of the bytes of a cell
  Space space = kDevice;
  bool is_initialised = false;
  bool is_output = false;
  uint32_t item_bytes = 1;
  void* host = nullptr;
  char name[64] = {};
};

class Checker {
 public:
  explicit Checker(metile_launch* launch);
  ~Checker();
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  // The addresses that the kernel gets for its buffers.
  const std::vector<void*>& buffers() const {
    return addresses_;
  }

  void begin_group(const metile_thread& group);
  void set_thread(uint32_t thread) {
    thread_ = thread;
  }
  void barrier(uint32_t flags);
  void meet(const metile_meeting& meeting, uint32_t simdgroup, uint32_t lanes, uint32_t live);
  void divergent_barrier(uint32_t line, uint32_t thread, uint32_t missing, bool has_ended);
  void* add_threadgroup(const char* name, uint64_t bytes, uint32_t item, uint64_t total);
  void inactive(const char* name, uint32_t lane, uint32_t line);
  void crash(const char* what, const uint32_t* group, uint32_t thread, uintptr_t code);
  // Reports what was never written and hands the outputs to the host.
  void finish(bool is_complete);

  template <bool WRITES>
  void access(uintptr_t address, uint64_t bytes, uintptr_t code) {
    const uint64_t offset = address - arena_;
    if (offset >= kArenaBytes) {
      return;  // the stack, or a constant of the program
    }
    Region& region = regions_[offset >> kSlotBits];
    const uint64_t at = address - region.base;
    if (at >= region.bytes || bytes > region.bytes - at) {
      out_of_bounds(region, address, bytes, WRITES ? METILE_WRITE : METILE_READ, code);
      return;
    }
    if (!region.cells) {
      if (WRITES) {
        out_of_bounds(region, address, bytes, METILE_WRITE, code);
      }
      return;
    }
    const uint64_t mask = (uint64_t(1) << region.shift) - 1;
    if ((at & mask) || (bytes & mask)) {
      split(region);
    }
    const uint64_t last = (at + bytes - 1) >> region.shift;
    for (uint64_t i = at >> region.shift; i <= last; ++i) {
      WRITES ? write(region, i, code) : read(region, i, code);
    }
  }
  void atomic(uintptr_t address, uint64_t bytes, uint32_t kind, uintptr_t code);
  void misaligned(uintptr_t address, uint64_t align, const char* type, uint32_t line);
  void index_out_of_bounds(const char* type, int64_t index, uint32_t line);

 private:
  Record now() const {
    const uint64_t lane = thread_ % 32;
    return time_ << 16 | uint64_t(thread_ / 32) << 10 | lane << 5 | lane;
  }
  static uint64_t time_of(Record record) {
    return record >> 16;
  }
  bool is_ordered(Record record, Space space) const {
    const uint64_t time = time_of(record);
    const uint32_t simdgroup = record >> 10 & 31;
    if (time < group_start_) {
      return space == kThreadgroup;  // memory of a threadgroup that is gone
    }
    return time < barrier_[space] ||
        (simdgroup == thread_ / 32 && time < simdgroup_barrier_[space][simdgroup]);
  }
  // The thread of a record that this thread's access races with, or kNobody.
  uint32_t conflict(Record record, Space space) const {
    if (!record || is_ordered(record, space)) {
      return kNobody;
    }
    const uint32_t group = record >> 10 & 31, one = group * 32 + (record >> 5 & 31);
    if (one != thread_ || time_of(record) < group_start_) {
      return one;
    }
    const uint32_t two = group * 32 + (record & 31);
    return two == thread_ ? kNobody : two;
  }
  bool races(Region&, uint64_t cell, const Accesses&, uint32_t mine, uint32_t theirs, uintptr_t);
  void remember(Accesses& accesses, Space space) const;
  void read(Region& region, uint64_t cell, uintptr_t code);
  void write(Region& region, uint64_t cell, uintptr_t code);
  bool is_written(const Region& region, uint64_t cell) const;
  void race(
      Region& region, uint64_t cell, Record record, uint32_t thread, uint32_t mine,
      uint32_t theirs, uintptr_t code);
  void out_of_bounds(
      Region& region, uintptr_t address, uint64_t bytes, uint32_t access, uintptr_t code);
  void split(Region& region);
  void open_page(uintptr_t address, uint64_t bytes);
  void add_cells(Region& region, uint64_t item);
  void flush_index();
  uint32_t add_region(const char* name, uint64_t bytes, uint64_t offset);
  metile_finding* find(
      uint32_t fault, const Region* region, uint32_t access, uint32_t other, uint32_t line,
      uintptr_t code);
  void who(metile_finding& finding, uint32_t thread) const;
  void where(metile_finding& finding, const Region& region, int64_t offset, uint64_t bytes) const;
  void group_at(uint64_t time, uint32_t* group) const;

  metile_launch* launch_;
  uintptr_t arena_ = 0;
  std::vector<Region> regions_;
  std::vector<void*> addresses_;
  std::vector<uintptr_t> opened_;  // pages outside of arrays that faults have made readable
  uint32_t region_count_ = 0;
  uint32_t thread_ = 0;
  uint64_t time_ = 1;
  uint64_t group_start_ = 1;
  uint64_t barrier_[2] = {1, 1};
  uint64_t simdgroup_barrier_[2][kSimdgroups];
  uint32_t group_[3] = {};
  struct Started {
    uint64_t time;
    uint32_t group[3];
  };
  std::vector<Started> started_;
  struct {
    bool is_set = false;
    const char* type = nullptr;
    int64_t index = 0;
    uint32_t line = 0;
    uint32_t thread = 0;
  } index_;
};

// The checker of the run in progress; there is one at a time.
extern Checker* active_checker;

}  // namespace metile
