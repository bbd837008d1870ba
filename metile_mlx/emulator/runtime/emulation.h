// One launch of an emulated kernel: what is fixed, and its evaluation on a CPU stream.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "abi.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "mlx/utils.h"
#include "orders.h"
#include "strided_copy.h"

namespace metile_emulator {

namespace mx = mlx::core;

using Entry = metile_u32 (*)(metile_launch*);

// What a parameter of the kernel is bound to.
struct Binding {
  enum Kind { kInput = 0, kShape = 1, kStrides = 2, kDimensions = 3, kOutput = 4 };
  Kind kind;
  size_t index;  // of the input or output
  std::string name;
};

struct Emulation {
  Entry entry;
  std::string name;
  std::string key;
  std::vector<Binding> bindings;
  std::vector<mx::Shape> shapes;  // of the outputs
  std::vector<mx::Dtype> dtypes;  // of the outputs
  uint32_t grid[3];
  uint32_t threadgroup[3];
  bool ensure_row_contiguous;
  std::optional<float> init_value;
  bool is_checked;
  uint32_t schedules;
  uint32_t threads;  // OS threads; 0 chooses
};

struct Result {
  std::string key;
  std::vector<metile_finding> findings;
};
inline std::mutex& results_mutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}
inline std::vector<Result>& results() {
  static auto* all = new std::vector<Result>();
  return *all;
}

// Launches that have run, checked or not.
inline uint64_t& completed_runs() {
  static uint64_t count = 0;
  return count;
}

// `value` as `dtype` at each of the elements.
template <typename T>
void fill_as(void* data, size_t count, float value) {
  std::fill_n(static_cast<T*>(data), count, static_cast<T>(value));
}
inline void fill(void* data, size_t count, const mx::Dtype& dtype, float value) {
  switch (dtype.val()) {
    case mx::Dtype::Val::bool_: return fill_as<bool>(data, count, value);
    case mx::Dtype::Val::uint8: return fill_as<uint8_t>(data, count, value);
    case mx::Dtype::Val::uint16: return fill_as<uint16_t>(data, count, value);
    case mx::Dtype::Val::uint32: return fill_as<uint32_t>(data, count, value);
    case mx::Dtype::Val::uint64: return fill_as<uint64_t>(data, count, value);
    case mx::Dtype::Val::int8: return fill_as<int8_t>(data, count, value);
    case mx::Dtype::Val::int16: return fill_as<int16_t>(data, count, value);
    case mx::Dtype::Val::int32: return fill_as<int32_t>(data, count, value);
    case mx::Dtype::Val::int64: return fill_as<int64_t>(data, count, value);
    case mx::Dtype::Val::float16: return fill_as<mx::float16_t>(data, count, value);
    case mx::Dtype::Val::bfloat16: return fill_as<mx::bfloat16_t>(data, count, value);
    case mx::Dtype::Val::float32: return fill_as<float>(data, count, value);
    case mx::Dtype::Val::float64: return fill_as<double>(data, count, value);
    case mx::Dtype::Val::complex64: return fill_as<mx::complex64_t>(data, count, value);
  }
}

// MLX's CPU allocator aligns to 8 bytes, devices to far more: kernels get aligned copies.
class Aligned {
 public:
  explicit Aligned(std::vector<metile_buffer>& buffers) : buffers_(buffers) {
    for (auto& buffer : buffers) {
      hosts_.push_back(buffer.data);
      if (reinterpret_cast<uintptr_t>(buffer.data) % kAlign == 0) {
        continue;
      }
      const size_t lead = (buffer.lead_bytes + kAlign - 1) / kAlign * kAlign;
      const size_t bytes = lead + (buffer.bytes + kAlign) / kAlign * kAlign;
      char* copy = static_cast<char*>(std::aligned_alloc(kAlign, bytes));
      copies_.push_back(copy);
      std::memcpy(
          copy + lead - buffer.lead_bytes, static_cast<char*>(buffer.data) - buffer.lead_bytes,
          buffer.lead_bytes + buffer.bytes);
      buffer.data = copy + lead;
    }
  }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  ~Aligned() {
    for (size_t i = 0; i < hosts_.size(); ++i) {
      auto& buffer = buffers_[i];
      if (buffer.data == hosts_[i]) {
        continue;
      }
      if (buffer.role == METILE_OUTPUT) {
        std::memcpy(hosts_[i], buffer.data, buffer.bytes);
      }
    }
    for (char* copy : copies_) {
      std::free(copy);
    }
  }

 private:
  static constexpr size_t kAlign = 64;
  std::vector<char*> copies_;
  std::vector<metile_buffer>& buffers_;
  std::vector<void*> hosts_;
};

// Everything one evaluation needs once its buffers are known; runs on the stream's thread.
struct Run {
  std::shared_ptr<const Emulation> emulation;
  std::vector<metile::StridedCopy> copies;
  std::vector<metile_buffer> buffers;
  std::vector<std::vector<int32_t>> shapes;
  std::vector<std::vector<int64_t>> strides;
  std::vector<int32_t> dimensions;
  std::vector<mx::Dtype> dtypes;  // of the outputs, as the buffers list them

  void operator()() {
    for (const auto& copy : copies) {
      copy.run();
    }
    const Aligned aligned(buffers);
    std::vector<metile_finding> findings(64);
    const uint32_t schedules = emulation->is_checked ? std::max(1u, emulation->schedules) : 1;
    metile_launch launch = run(0, findings);
    findings.resize(launch.finding_count);
    if (schedules > 1) {
      compare(schedules, launch.float_reductions != 0, findings);
    }
    for (auto& each : findings) {
      Dl_info info{};
      if (each.code && dladdr(reinterpret_cast<void*>(each.code), &info)) {
        each.code -= reinterpret_cast<uintptr_t>(info.dli_fbase);
      }
    }
    if (!emulation->is_checked && !findings.empty()) {
      std::fprintf(
          stderr, "metile emulator: kernel %s crashed: %s\n", emulation->name.c_str(),
          findings[0].detail);
    }
    std::lock_guard<std::mutex> lock(results_mutex());
    ++completed_runs();
    if (emulation->is_checked || !findings.empty()) {
      results().push_back({emulation->key, std::move(findings)});
    }
  }

 private:
  metile_launch run(uint32_t schedule, std::vector<metile_finding>& findings) {
    size_t output = 0;
    for (const auto& buffer : buffers) {
      if (buffer.role == METILE_OUTPUT) {
        const auto& dtype = dtypes[output++];
        if (emulation->init_value) {
          fill(buffer.data, buffer.bytes / size_of(dtype), dtype, *emulation->init_value);
        }
      }
    }
    metile_launch launch{};
    launch.buffers = buffers.data();
    launch.buffer_count = uint32_t(buffers.size());
    std::copy_n(emulation->grid, 3, launch.grid);
    std::copy_n(emulation->threadgroup, 3, launch.threadgroup);
    launch.threads = emulation->threads;
    launch.reduction_order = schedule % 3;
    launch.schedule = schedule * 0x9e3779b97f4a7c15ull;
    if (emulation->is_checked) {
      launch.findings = findings.data();
      launch.finding_capacity = uint32_t(findings.size());
    }
    const metile_u32 outcome = emulation->entry(&launch);
    if (outcome && !launch.finding_count) {
      metile_finding& finding = findings[launch.finding_count++] = {};
      finding.fault = outcome;
      finding.access = finding.other_access = METILE_NO_ACCESS;
      finding.thread = finding.other_thread = ~0u;
      finding.count = 1;
      std::snprintf(finding.detail, sizeof finding.detail, "%s", launch.error);
    }
    return launch;
  }

  // Other orders of threads must give the same bits; where floats are reduced, nearly the same
  // floats, and integers may follow from them.
  void compare(uint32_t schedules, bool has_reductions, std::vector<metile_finding>& findings) {
    std::vector<std::vector<char>> first;
    for (const auto& buffer : buffers) {
      const char* data = static_cast<const char*>(buffer.data);
      const bool is_output = buffer.role == METILE_OUTPUT;
      first.emplace_back(data, data + (is_output ? buffer.bytes : 0));
    }
    for (uint32_t schedule = 1; schedule < schedules; ++schedule) {
      std::vector<metile_finding> more(64);
      const metile_launch launch = run(schedule, more);
      more.resize(launch.finding_count);
      for (const auto& each : more) {
        add(findings, each);
      }
      has_reductions |= launch.float_reductions != 0;
      size_t output = 0;
      for (size_t i = 0; i < buffers.size(); ++i) {
        if (buffers[i].role != METILE_OUTPUT) {
          continue;
        }
        const auto& dtype = dtypes[output++];
        const char* data = static_cast<const char*>(buffers[i].data);
        const size_t at = has_reductions ? far_from(data, first[i], dtype)
                                         : differs_from(data, first[i]);
        if (at < first[i].size()) {
          add(findings, schedule_finding(buffers[i], at, schedule));
        }
      }
    }
    for (size_t i = 0; i < buffers.size(); ++i) {
      std::memcpy(buffers[i].data, first[i].data(), first[i].size());
    }
  }

  static metile_finding schedule_finding(
      const metile_buffer& buffer, size_t at, uint32_t schedule) {
    metile_finding finding{};
    finding.fault = METILE_SCHEDULE;
    finding.access = finding.other_access = METILE_NO_ACCESS;
    finding.thread = finding.other_thread = ~0u;
    finding.byte_offset = int64_t(at);
    finding.bytes = finding.item_bytes = buffer.item_bytes;
    finding.array_bytes = buffer.bytes;
    finding.count = 1;
    std::strncpy(finding.array, buffer.name, sizeof finding.array - 1);
    std::snprintf(finding.detail, sizeof finding.detail, "order %u of the threads", schedule);
    return finding;
  }

  static void add(std::vector<metile_finding>& all, const metile_finding& one) {
    for (auto& each : all) {
      if (each.fault == one.fault && each.line == one.line && each.code == one.code &&
          each.access == one.access && each.other_access == one.other_access &&
          std::strcmp(each.array, one.array) == 0) {
        each.count += one.count;
        return;
      }
    }
    all.push_back(one);
  }
};

class EmulatorPrimitive : public mx::Primitive {
 public:
  EmulatorPrimitive(mx::Stream stream, std::shared_ptr<const Emulation> emulation)
      : Primitive(stream), emulation_(std::move(emulation)) {}

  const char* name() const override {
    return "CustomKernel";
  }

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    auto run = std::make_shared<Run>();
    run->emulation = emulation_;
    for (auto& output : outputs) {
      output.set_data(mx::allocator::malloc(output.nbytes()));
      encoder.set_output_array(output);
    }
    std::vector<mx::array> given;
    for (const auto& input : inputs) {
      encoder.set_input_array(input);
      given.push_back(contiguous(input, encoder, *run));
    }
    // Their data must not move once the buffers point to them.
    const size_t count = emulation_->bindings.size();
    run->shapes.reserve(count);
    run->strides.reserve(count);
    run->dimensions.reserve(count);
    for (const auto& binding : emulation_->bindings) {
      const auto& array =
          binding.kind == Binding::kOutput ? outputs[binding.index] : given[binding.index];
      run->buffers.push_back(bind(binding, array, *run));
    }
    encoder.dispatch([run = std::move(run)]() { (*run)(); });
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error(
        "[metile] emulated kernel " + emulation_->name + " was put on a GPU stream");
  }

 private:
  mx::array contiguous(
      const mx::array& input, mx::cpu::CommandEncoder& encoder, Run& run) const {
    if (!emulation_->ensure_row_contiguous || input.flags().row_contiguous || !input.size()) {
      return input;
    }
    mx::array copy(input.shape(), input.dtype(), nullptr, {});
    copy.set_data(mx::allocator::malloc(copy.nbytes()));
    run.copies.emplace_back(
        input.data<char>(), copy.data<char>(), input.shape(), input.strides(), input.itemsize());
    encoder.add_temporary(copy);
    return copy;
  }

  metile_buffer bind(const Binding& binding, const mx::array& array, Run& run) const {
    metile_buffer buffer{};
    buffer.name = binding.name.c_str();
    buffer.role = METILE_INFO;
    buffer.initialised = 1;
    switch (binding.kind) {
      case Binding::kShape: {
        auto& shape = run.shapes.emplace_back(array.shape().begin(), array.shape().end());
        return as_buffer(buffer, shape.data(), shape.size() * 4, 4);
      }
      case Binding::kStrides: {
        auto& strides = run.strides.emplace_back(array.strides().begin(), array.strides().end());
        return as_buffer(buffer, strides.data(), strides.size() * 8, 8);
      }
      case Binding::kDimensions:
        return as_buffer(buffer, &run.dimensions.emplace_back(array.ndim()), 4, 4);
      case Binding::kOutput:
        buffer.role = METILE_OUTPUT;
        buffer.initialised = emulation_->init_value.has_value();
        run.dtypes.push_back(array.dtype());
        break;
      case Binding::kInput:
        buffer.role = METILE_INPUT;
        buffer.view_offset = uint32_t(array.offset() % 64);
        buffer.lead_bytes = extent(array, -1);
        break;
    }
    return as_buffer(
        buffer, const_cast<char*>(array.data<char>()),
        array.size() ? extent(array, 1) + array.itemsize() : 0, array.itemsize());
  }

  static metile_buffer as_buffer(
      metile_buffer buffer, void* data, size_t bytes, size_t item) {
    buffer.data = data;
    buffer.bytes = bytes;
    buffer.item_bytes = uint32_t(item);
    return buffer;
  }

  // Bytes from the first element to the farthest that strides of this sign reach.
  static size_t extent(const mx::array& array, int sign) {
    size_t farthest = 0;
    for (int axis = 0; axis < int(array.ndim()); ++axis) {
      const int64_t stride = sign * array.strides()[axis];
      if (stride > 0 && array.shape(axis) > 1) {
        farthest += size_t(stride) * size_t(array.shape(axis) - 1);
      }
    }
    return array.size() ? farthest * array.itemsize() : 0;
  }

  const std::shared_ptr<const Emulation> emulation_;
};

}  // namespace metile_emulator
