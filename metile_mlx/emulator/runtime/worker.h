// One OS thread that runs threadgroups: their threads as fibers, simdgroup after simdgroup.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "checker.h"
#include "fiber.h"

namespace metile {

constexpr uint32_t kLanes = 32;
constexpr uint32_t kMaxSites = 256;
constexpr uint64_t kSharedBytes = 1 << 20;

// What all workers of a launch share.
struct Dispatch {
  const metile_launch* launch;
  metile_thread_function function;
  void* const* buffers;
  uint32_t threadgroup[3];  // of a full one, not larger than the grid
  uint32_t groups[3];
  Checker* checker;  // null: unchecked

  uint32_t group_threads() const {
    return threadgroup[0] * threadgroup[1] * threadgroup[2];
  }
  uint64_t group_count() const {
    return uint64_t(groups[0]) * groups[1] * groups[2];
  }
};

struct Crash {
  bool happened = false;
  int signal = 0;
  uintptr_t code = 0;  // after the instruction
  uint32_t group[3] = {};
  uint32_t thread = 0;
};

class Worker {
 public:
  Worker(const Dispatch& dispatch, std::shared_ptr<Stacks> stacks);

  // False where a crash ended the threadgroup: the worker can't be used any more.
  bool run_group(uint64_t number);

  void block(Fiber* fiber) {
    metile_switch(&fiber->stack_pointer, stack_pointer_);
  }
  void* shared(uint32_t site, uint64_t bytes, uint64_t align, uint32_t item, const char* name);

  const Crash& crash() const {
    return crash_;
  }
  // Once is enough where several orders of threads are tried.
  bool prints() const {
    return dispatch_.launch->schedule == 0;
  }
  bool float_reductions() const {
    return float_reductions_;
  }
  // Called by the signal handler on a fiber's stack: where the scheduler goes on.
  void* abandon(int signal, uintptr_t code, Fiber* fiber);
  bool owns(const Fiber* fiber) const {
    return stacks_->contains(fiber);
  }
  void* emergency_stack() {
    return emergency_ + sizeof emergency_ - 64;
  }

 private:
  struct Simdgroup {
    uint32_t present = 0;  // lanes the grid has
    uint32_t done = 0;
    uint32_t meeting = 0;  // lanes that wait at a simdgroup or quadgroup operation
    uint32_t barrier = 0;  // lanes that wait at a threadgroup barrier
  };

  static void fiber_main(Fiber* fiber);
  void place(uint64_t number);
  void begin(Fiber* fiber, uint32_t thread);
  void enter(Fiber* fiber);
  void start(uint32_t simdgroup);
  void resume(uint32_t simdgroup, uint32_t lanes);
  void settle(uint32_t simdgroup);
  void settle_together(uint32_t count);
  uint32_t choose(uint32_t simdgroup) const;
  void meet(uint32_t simdgroup, uint32_t lanes);
  bool release_barrier();
  void report_missing(uint64_t site, uint32_t first);
  uint64_t random();
  void shuffle(std::vector<uint32_t>& order);

  const Dispatch& dispatch_;
  std::shared_ptr<Stacks> stacks_;
  void* stack_pointer_ = nullptr;
  std::vector<Fiber*> free_;
  std::vector<Fiber*> of_thread_;  // the fiber of each thread of the threadgroup that has started
  std::vector<Simdgroup> simdgroups_;
  std::vector<uint32_t> simdgroup_order_;
  std::vector<uint32_t> lane_order_;
  std::vector<uint32_t> released_;  // lanes of each simdgroup that a barrier lets go
  uint32_t starting_[kLanes] = {};  // the lanes of the simdgroup that starts, and which is next
  uint32_t next_ = 0;
  uint32_t end_ = 0;
  uint32_t first_ = 0;  // thread of lane 0 of the simdgroup that starts
  metile_thread group_{};
  uint32_t threads_ = 0;
  uint64_t seed_;
  bool float_reductions_ = false;
  Crash crash_;
  void* sites_[kMaxSites] = {};
  std::unique_ptr<char[]> arena_;
  uint64_t shared_bytes_ = 0;
  alignas(64) char emergency_[4096];
};

}  // namespace metile
