// What one bound kernel is, and one run of it on the CPU: buffers, copies, fills, programs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "metile_cpu.h"
#include "mlx/array.h"
#include "mlx/stream.h"
#include "strided_copy.h"
#include "thread_pool.h"

namespace metile {

namespace mx = mlx::core;

using Entry = void (*)(
    void* const* buffers,
    const metile_scalar* scalars,
    const uint32_t* grid,
    uint64_t begin,
    uint64_t end);

// A loaded kernel. Never unloaded, so `entry` stays valid.
struct Kernel {
  std::string name;
  Entry entry;
  std::vector<std::string> array_names;
  std::vector<mx::Dtype> array_dtypes;
  std::vector<std::string> scalar_names;
  std::vector<mx::Dtype> scalar_dtypes;
};

// How an output starts: kNothing, kZero, or a copy of the input of that number.
constexpr int kNothing = -1;
constexpr int kZero = -2;

// A vmapped axis: its length, and which inputs have it as their first axis.
struct BatchLevel {
  int extent;
  std::vector<bool> batched;

  bool operator==(const BatchLevel&) const = default;
};

using Batch = std::vector<BatchLevel>;  // outermost first

inline uint64_t batch_count(const Batch& batch) {
  uint64_t count = 1;
  for (const auto& level : batch) {
    count *= uint64_t(level.extent);
  }
  return count;
}

// Everything one evaluation needs once its buffers are known; runs on the stream's thread.
class Run {
 public:
  std::shared_ptr<const Kernel> kernel;
  std::vector<metile_scalar> scalars;
  uint32_t grid[3];
  uint64_t programs = 0;
  Batch batch;
  uint64_t batches = 1;
  std::vector<StridedCopy> copies;
  std::vector<void*> buffers;             // inputs, then outputs
  std::vector<std::vector<size_t>> steps;  // bytes from one batch to the next: [level][buffer]
  std::vector<int> init;                   // per output
  std::vector<size_t> output_bytes;        // per output, of one batch

  void operator()() const {
    for (const auto& copy : copies) {
      copy.run();
    }
    fill();
    if (programs && batches) {
      ThreadPool::shared().run(programs * batches, &Run::run_range, this);
    }
  }

 private:
  // The address of each buffer for one index of the batch.
  std::vector<void*> at(uint64_t index) const {
    auto shifted = buffers;
    for (size_t level = batch.size(); level-- > 0;) {
      const auto extent = uint64_t(batch[level].extent);
      const size_t position = index % extent;
      index /= extent;
      for (size_t i = 0; i < shifted.size(); ++i) {
        shifted[i] = static_cast<char*>(shifted[i]) + position * steps[level][i];
      }
    }
    return shifted;
  }

  void fill() const {
    const size_t inputs = buffers.size() - init.size();
    for (size_t i = 0; i < init.size(); ++i) {
      // With no program to run, nothing is written: then every element is the initial one.
      if (init[i] == kZero || (init[i] == kNothing && !programs)) {
        std::memset(buffers[inputs + i], 0, output_bytes[i] * batches);
      } else if (init[i] >= 0 && output_bytes[i]) {
        for (uint64_t index = 0; index < batches; ++index) {
          const auto pointers = at(index);
          std::memcpy(pointers[inputs + i], pointers[size_t(init[i])], output_bytes[i]);
        }
      }
    }
  }

  static void run_range(const void* context, uint64_t begin, uint64_t end) {
    const auto& run = *static_cast<const Run*>(context);
    const Entry entry = run.kernel->entry;
    if (run.batch.empty()) {
      entry(run.buffers.data(), run.scalars.data(), run.grid, begin, end);
      return;
    }
    while (begin < end) {
      const uint64_t index = begin / run.programs;
      const uint64_t first = begin % run.programs;
      const uint64_t last = std::min(run.programs, first + (end - begin));
      entry(run.at(index).data(), run.scalars.data(), run.grid, first, last);
      begin += last - first;
    }
  }
};

}  // namespace metile
