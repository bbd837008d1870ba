// A fiber: a stack of its own, switched to by saving only what the calling convention keeps.
//
// The record of a fiber is at the top of its stack, which is aligned to its size: the current fiber
// is found from the stack pointer, without thread-local storage.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <stdexcept>

#include "abi.h"

namespace metile {

constexpr uintptr_t kStackBytes = 128 * 1024;
constexpr uintptr_t kPageBytes = 4096;

class Worker;

enum class Wait : uint8_t { kRunning, kMeeting, kBarrier, kDone };

struct Fiber {
  void* stack_pointer;
  Worker* worker;
  metile_meeting* meeting;
  uint64_t barrier_site;  // line, then column
  uint32_t barrier_flags;
  Wait wait;
  metile_thread attributes;
};

extern "C" void metile_switch(void** save, void* load);
extern "C" void metile_fiber_start();

#if defined(__x86_64__)
inline void* first_stack_pointer(char* top, void (*main)(Fiber*), Fiber* fiber) {
  auto* word = reinterpret_cast<void**>(top);
  *--word = nullptr;  // two words, so that the stack is aligned at the call of main
  *--word = nullptr;
  *--word = reinterpret_cast<void*>(&metile_fiber_start);
  *--word = nullptr;                              // rbp
  *--word = nullptr;                              // rbx
  *--word = fiber;                                // r12
  *--word = reinterpret_cast<void*>(main);        // r13
  *--word = nullptr;                              // r14
  *--word = nullptr;                              // r15
  return word;
}
#elif defined(__aarch64__)
inline void* first_stack_pointer(char* top, void (*main)(Fiber*), Fiber* fiber) {
  auto* frame = reinterpret_cast<void**>(top - 160);
  for (int i = 0; i < 20; ++i) {
    frame[i] = nullptr;
  }
  frame[0] = fiber;                                            // x19
  frame[1] = reinterpret_cast<void*>(main);                    // x20
  frame[11] = reinterpret_cast<void*>(&metile_fiber_start);    // x30
  return frame;
}
#else
#error "the emulator switches fibers on x86-64 and aarch64"
#endif

inline Fiber* record_of(uintptr_t address_in_stack) {
  return reinterpret_cast<Fiber*>((address_in_stack | (kStackBytes - 1)) + 1) - 1;
}
__attribute__((always_inline)) inline Fiber* current_fiber() {
  return record_of(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)));
}

// Stacks of one worker, each with a guard page at its end.
class Stacks {
 public:
  explicit Stacks(uint32_t count) : count_(count) {
    const size_t bytes = (size_t(count) + 1) * kStackBytes;
    void* mapped = mmap(
        nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
      throw std::runtime_error("no memory for the stacks of the threads");
    }
    start_ = static_cast<char*>(mapped);
    bytes_ = bytes;
    const auto aligned = (reinterpret_cast<uintptr_t>(start_) + kStackBytes - 1) & ~(kStackBytes - 1);
    first_ = reinterpret_cast<char*>(aligned);
    for (uint32_t i = 0; i < count; ++i) {
      mprotect(first_ + i * kStackBytes, kPageBytes, PROT_NONE);
    }
  }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks() {
    munmap(start_, bytes_);
  }

  uint32_t count() const {
    return count_;
  }

  bool contains(const void* address) const {
    const char* at = static_cast<const char*>(address);
    return at >= first_ && at < first_ + count_ * kStackBytes;
  }

  Fiber* make(uint32_t i, Worker* worker, void (*main)(Fiber*)) {
    char* top = first_ + (i + 1) * kStackBytes - sizeof(Fiber);
    auto* fiber = new (top) Fiber();
    fiber->worker = worker;
    fiber->wait = Wait::kDone;
    // Different offsets, or the tops of all stacks would share a few sets of the cache.
    top -= 64 * (1 + i % 16) + 64;
    top = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(63));
    fiber->stack_pointer = first_stack_pointer(top, main, fiber);
    return fiber;
  }

 private:
  uint32_t count_;
  char* start_;
  char* first_;
  size_t bytes_;
};

}  // namespace metile
