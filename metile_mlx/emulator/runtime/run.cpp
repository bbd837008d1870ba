// A launch: threadgroups over OS threads, or one after another under the checker; crashes of a
// kernel end the launch and not the process.
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <thread>

#include "worker.h"

namespace metile {
namespace {

thread_local Worker* worker_of_thread = nullptr;
constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction previous_actions[sizeof kSignals / sizeof *kSignals];
std::atomic<bool> has_float_atomics{false};

uintptr_t& instruction(ucontext_t* context) {
#if defined(__x86_64__)
  return reinterpret_cast<uintptr_t&>(context->uc_mcontext.gregs[REG_RIP]);
#else
  return reinterpret_cast<uintptr_t&>(context->uc_mcontext.pc);
#endif
}
uintptr_t stack_of(const ucontext_t* context) {
#if defined(__x86_64__)
  return uintptr_t(context->uc_mcontext.gregs[REG_RSP]);
#else
  return uintptr_t(context->uc_mcontext.sp);
#endif
}

// Goes on as `metile_switch(&lost, load)` on the emergency stack.
void go_to_scheduler(ucontext_t* context, void* stack, void* load) {
  static thread_local void* lost;
  instruction(context) = reinterpret_cast<uintptr_t>(&metile_switch);
#if defined(__x86_64__)
  auto& registers = context->uc_mcontext.gregs;
  registers[REG_RSP] = greg_t(stack);
  registers[REG_RDI] = greg_t(&lost);
  registers[REG_RSI] = greg_t(load);
#else
  context->uc_mcontext.sp = reinterpret_cast<uintptr_t>(stack);
  context->uc_mcontext.regs[0] = reinterpret_cast<uintptr_t>(&lost);
  context->uc_mcontext.regs[1] = reinterpret_cast<uintptr_t>(load);
#endif
}

void handle(int signal, siginfo_t* info, void* raw) {
  auto* context = static_cast<ucontext_t*>(raw);
  Worker* worker = worker_of_thread;
  if (worker) {
    // At an overflow the stack pointer is in the guard page, which is of the same stack.
    Fiber* fiber = record_of(stack_of(context));
    if (worker->owns(fiber)) {
      void* load = worker->abandon(signal, instruction(context) + 1, fiber);
      go_to_scheduler(context, worker->emergency_stack(), load);
      return;
    }
  }
  // Whoever was asked once and did not end the process is not asked again.
  static std::atomic<bool> has_passed_on{false};
  if (has_passed_on.exchange(true)) {
    ::signal(signal, SIG_DFL);
    raise(signal);
    return;
  }
  for (size_t i = 0; i < sizeof kSignals / sizeof *kSignals; ++i) {
    if (kSignals[i] != signal) {
      continue;
    }
    const auto& before = previous_actions[i];
    if (before.sa_flags & SA_SIGINFO) {
      before.sa_sigaction(signal, info, raw);
    } else if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
      ::signal(signal, SIG_DFL);
    } else {
      before.sa_handler(signal);
    }
  }
}

// Before every launch: others (Python's faulthandler) may have put theirs in the place of ours.
void install_handlers() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (size_t i = 0; i < sizeof kSignals / sizeof *kSignals; ++i) {
    struct sigaction now {};
    sigaction(kSignals[i], nullptr, &now);
    if (!(now.sa_flags & SA_SIGINFO) || now.sa_sigaction != handle) {
      previous_actions[i] = now;
      sigaction(kSignals[i], &action, nullptr);
    }
  }
}

// A handler can't run on a stack that has overflowed.
class SignalStack {
 public:
  SignalStack() {
    stack_t now{};
    sigaltstack(nullptr, &now);
    if (now.ss_flags & SS_DISABLE) {
      memory_.reset(new char[kBytes]);
      stack_t mine{};
      mine.ss_sp = memory_.get();
      mine.ss_size = kBytes;
      sigaltstack(&mine, nullptr);
    }
  }
  ~SignalStack() {
    if (memory_) {
      stack_t off{};
      off.ss_flags = SS_DISABLE;
      sigaltstack(&off, nullptr);
    }
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  static constexpr size_t kBytes = 64 * 1024;
  std::unique_ptr<char[]> memory_;
};

// Stacks are kept between launches: their pages are touched already.
std::mutex stacks_mutex;
std::vector<std::shared_ptr<Stacks>>& kept_stacks() {
  static auto* kept = new std::vector<std::shared_ptr<Stacks>>();
  return *kept;
}
std::shared_ptr<Stacks> take_stacks(uint32_t count) {
  std::lock_guard<std::mutex> lock(stacks_mutex);
  auto& kept = kept_stacks();
  for (auto it = kept.begin(); it != kept.end(); ++it) {
    if ((*it)->count() >= count) {
      auto taken = *it;
      kept.erase(it);
      return taken;
    }
  }
  uint32_t size = 64;
  while (size < count) {
    size *= 2;
  }
  return std::make_shared<Stacks>(size);
}
void give_stacks(std::shared_ptr<Stacks> stacks) {
  std::lock_guard<std::mutex> lock(stacks_mutex);
  if (kept_stacks().size() < 2 * std::max(1u, std::thread::hardware_concurrency())) {
    kept_stacks().push_back(std::move(stacks));
  }
}

const char* signal_text(int signal) {
  return signal == SIGFPE ? "an integer division by zero or overflow"
      : signal == SIGILL  ? "an instruction that does not exist"
                          : "an access outside of all memory, or a stack that is full";
}

struct Outcome {
  std::mutex mutex;
  Crash crash;
  bool float_reductions = false;
};

void run_worker(const Dispatch& dispatch, std::atomic<uint64_t>& next, uint64_t step,
                const std::vector<uint64_t>& order, Outcome& outcome) {
  const SignalStack signal_stack;
  auto stacks = take_stacks(dispatch.group_threads());
  auto worker = std::make_unique<Worker>(dispatch, stacks);
  worker_of_thread = worker.get();
  const uint64_t count = dispatch.group_count();
  bool is_alive = true;
  for (uint64_t first; is_alive && (first = next.fetch_add(step)) < count;) {
    for (uint64_t i = first; is_alive && i < std::min(count, first + step); ++i) {
      is_alive = worker->run_group(order.empty() ? i : order[i]);
    }
  }
  worker_of_thread = nullptr;
  std::lock_guard<std::mutex> lock(outcome.mutex);
  outcome.float_reductions |= worker->float_reductions();
  if (!is_alive) {
    next.store(count);
    outcome.crash = worker->crash();
  } else {
    give_stacks(std::move(stacks));
  }
}

uint32_t thread_count(const Dispatch& dispatch) {
  constexpr uint64_t kWorthAThread = 16384;
  const uint64_t threads = dispatch.group_count() * dispatch.group_threads();
  const uint64_t wanted = dispatch.launch->threads ? dispatch.launch->threads
                                                   : std::thread::hardware_concurrency();
  return uint32_t(std::max<uint64_t>(
      1, std::min({wanted, dispatch.group_count(), threads / kWorthAThread + 1})));
}

std::vector<uint64_t> group_order(const Dispatch& dispatch) {
  constexpr uint64_t kMost = 1 << 24;
  std::vector<uint64_t> order;
  const uint64_t count = dispatch.group_count();
  uint64_t seed = dispatch.launch->schedule;
  if (seed && count <= kMost) {
    order.resize(count);
    for (uint64_t i = 0; i < count; ++i) {
      order[i] = i;
    }
    for (uint64_t i = count; i > 1; --i) {
      seed = seed * 6364136223846793005ull + 1442695040888963407ull;
      std::swap(order[i - 1], order[(seed >> 17) % i]);
    }
  }
  return order;
}

void run_all(const Dispatch& dispatch, Outcome& outcome) {
  const auto order = group_order(dispatch);
  std::atomic<uint64_t> next{0};
  const uint32_t threads = dispatch.checker ? 1 : thread_count(dispatch);
  const uint64_t step = std::max<uint64_t>(1, dispatch.group_count() / threads / 16);
  std::vector<std::thread> others;
  for (uint32_t i = 1; i < threads; ++i) {
    others.emplace_back([&] { run_worker(dispatch, next, step, order, outcome); });
  }
  run_worker(dispatch, next, step, order, outcome);
  for (auto& thread : others) {
    thread.join();
  }
}

bool fill(Dispatch& dispatch) {
  for (int axis = 0; axis < 3; ++axis) {
    const uint32_t grid = dispatch.launch->grid[axis];
    const uint32_t size = std::min(dispatch.launch->threadgroup[axis], grid);
    if (!size) {
      return false;
    }
    dispatch.threadgroup[axis] = size;
    dispatch.groups[axis] = uint32_t((uint64_t(grid) + size - 1) / size);
  }
  return true;
}

uint32_t run_checked(Dispatch& dispatch, metile_launch* launch, Outcome& outcome, bool is_empty) {
  static std::mutex one_at_a_time;
  std::lock_guard<std::mutex> lock(one_at_a_time);
  Checker checker(launch);
  active_checker = &checker;
  dispatch.checker = &checker;
  dispatch.buffers = checker.buffers().data();
  if (!is_empty) {
    run_all(dispatch, outcome);
  }
  if (outcome.crash.happened) {
    checker.crash(signal_text(outcome.crash.signal), outcome.crash.group, outcome.crash.thread,
        outcome.crash.code);
  }
  checker.finish(!outcome.crash.happened);
  active_checker = nullptr;
  return outcome.crash.happened ? METILE_CRASH : 0;
}

uint32_t run(metile_launch* launch, metile_thread_function function) {
  install_handlers();
  Dispatch dispatch{launch, function, nullptr, {}, {}, nullptr};
  Outcome outcome;
  const bool is_empty = !fill(dispatch);
  launch->finding_count = 0;
  has_float_atomics = false;
  uint32_t result = 0;
  if (launch->findings) {
    result = run_checked(dispatch, launch, outcome, is_empty);
  } else if (!is_empty) {
    std::vector<void*> buffers;
    for (uint32_t i = 0; i < launch->buffer_count; ++i) {
      buffers.push_back(launch->buffers[i].data);
    }
    dispatch.buffers = buffers.data();
    run_all(dispatch, outcome);
    result = outcome.crash.happened ? METILE_CRASH : 0;
  }
  if (result) {
    std::snprintf(launch->error, sizeof launch->error, "%s", signal_text(outcome.crash.signal));
  }
  launch->float_reductions = outcome.float_reductions || has_float_atomics;
  return result;
}

}  // namespace
}  // namespace metile

extern "C" {

void metile_float_atomic() {
  metile::has_float_atomics = true;
}

metile_u32 metile_run(metile_launch* launch, metile_thread_function function) {
  try {
    return metile::run(launch, function);
  } catch (const std::exception& error) {
    std::snprintf(launch->error, sizeof launch->error, "%s", error.what());
    return METILE_CRASH;
  }
}
}
