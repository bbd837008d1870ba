// A pool that shares ranges of work between the hardware threads (SPEC X4).
//
// It is made on first use, again after a fork, and never destroyed: work that is still queued when
// the process exits runs while static objects are being torn down.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace metile {

class ThreadPool {
 public:
  // Must be pure: called from any thread, with disjoint ranges.
  using Body = void (*)(const void* context, uint64_t begin, uint64_t end);

  static ThreadPool& shared() {
    ThreadPool* pool = instance().load(std::memory_order_acquire);
    if (pool) {
      return *pool;
    }
    auto* fresh = new ThreadPool();
    if (instance().compare_exchange_strong(pool, fresh, std::memory_order_acq_rel)) {
      return *fresh;
    }
    delete fresh;  // another thread was first; this one has started no workers
    return *pool;
  }

  // The child of a fork has none of the parent's threads: forget them, and the locks they may hold.
  static void handle_forks() {
    pthread_atfork(nullptr, nullptr, [] { instance().store(nullptr); });
  }

  int size() const {
    return size_;
  }

  // Runs body over [0, total) and returns when all of it is done. The caller takes part, and does
  // everything itself where the first piece shows that waking others would cost more.
  void run(uint64_t total, Body body, const void* context) {
    if (size_ == 1 || total < 2) {
      body(context, 0, total);
      return;
    }
    const uint64_t pieces = std::max<uint64_t>(64, uint64_t(size_) * 16);
    const uint64_t first = std::max<uint64_t>(1, total / pieces);
    const auto start = Clock::now();
    body(context, 0, first);
    const double spent = std::chrono::duration<double>(Clock::now() - start).count();
    const double each = std::max(spent / double(first), 1e-12);
    const uint64_t left = total - first;
    if (each * double(left) < kInlineSeconds) {
      body(context, first, total);
      return;
    }
    const auto shortest = uint64_t(std::min(kChunkSeconds / each, double(left)));
    Job job{body, context, first, total, std::max<uint64_t>(1, shortest), size_};
    share(job);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr double kInlineSeconds = 20e-6;
  static constexpr double kChunkSeconds = 5e-6;
  static constexpr uint64_t kSharesPerThread = 4;

  struct Job {
    Job(Body body, const void* context, uint64_t begin, uint64_t end, uint64_t shortest, int threads)
        : body(body),
          context(context),
          end(end),
          shortest(shortest),
          shares(uint64_t(threads) * kSharesPerThread),
          next(begin) {}

    // Chunks get shorter as the end comes near, so that all threads arrive there together.
    void drain() {
      uint64_t begin = next.load(std::memory_order_relaxed);
      while (begin < end) {
        const uint64_t stop = std::min(end, begin + std::max(shortest, (end - begin) / shares));
        if (next.compare_exchange_weak(begin, stop, std::memory_order_relaxed)) {
          body(context, begin, stop);
          begin = next.load(std::memory_order_relaxed);
        }
      }
    }

    const Body body;
    const void* const context;
    const uint64_t end;
    const uint64_t shortest;  // programs in a chunk
    const uint64_t shares;    // into which what is left is divided for the next chunk
    std::atomic<uint64_t> next;
    int helpers = 0;  // guarded by the pool's mutex
  };

  ThreadPool() : size_(usable_threads()) {}

  static std::atomic<ThreadPool*>& instance() {
    static std::atomic<ThreadPool*> pool{nullptr};
    return pool;
  }

  static int usable_threads() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
      return std::max(1, CPU_COUNT(&set));
    }
    return std::max(1u, std::thread::hardware_concurrency());
  }

  void share(Job& job) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      start_workers();
      jobs_.push_back(&job);
    }
    wake_.notify_all();
    job.drain();
    std::unique_lock<std::mutex> lock(mutex_);
    forget(&job);
    idle_.wait(lock, [&] { return job.helpers == 0; });
  }

  void forget(Job* job) {
    jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), job), jobs_.end());
  }

  void start_workers() {
    if (started_) {
      return;
    }
    started_ = true;
    // Signals belong to the threads of the program, so workers start with all of them blocked.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (int i = 1; i < size_; ++i) {
        std::thread([this] { work(); }).detach();
      }
    } catch (const std::system_error&) {
      // Fewer workers than asked for: slower, and still right, since the caller takes part.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return !jobs_.empty(); });
      Job* job = jobs_.front();
      ++job->helpers;
      lock.unlock();
      job->drain();
      lock.lock();
      forget(job);
      if (--job->helpers == 0) {
        idle_.notify_all();
      }
    }
  }

  const int size_;
  bool started_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::vector<Job*> jobs_;
};

}  // namespace metile
