// A generated CPU kernel as an MLX primitive: evaluation, vmap, gradients (SPEC X4, X7, X8).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <mutex>

#include "launch.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "mlx/transforms.h"
#include "mlx/utils.h"

namespace nb = nanobind;

namespace metile {

// The package's own error classes, set once by the Python side and kept for the process.
inline PyObject* gradient_error = nullptr;
inline PyObject* launch_error = nullptr;

[[noreturn]] inline void raise(PyObject* type, const std::string& message) {
  PyErr_SetString(type ? type : PyExc_RuntimeError, message.c_str());
  throw nb::python_error();
}

// A Python object that may be dropped on any thread. The stream's thread must not wait for the GIL
// (at exit it would wait for ever), so what it drops is left for the next Python call to release.
class PyRef {
 public:
  explicit PyRef(nb::handle object) : object_(object.inc_ref().ptr()) {}
  PyRef(const PyRef&) = delete;
  PyRef& operator=(const PyRef&) = delete;

  ~PyRef() {
    if (Py_IsInitialized() && PyGILState_Check()) {
      Py_DECREF(object_);
      return;
    }
    std::lock_guard<std::mutex> lock(mutex());
    dropped().push_back(object_);
  }

  nb::handle get() const {
    return object_;
  }

  // Needs the GIL.
  static void release_dropped() {
    std::vector<PyObject*> taken;
    {
      std::lock_guard<std::mutex> lock(mutex());
      taken.swap(dropped());
    }
    for (PyObject* object : taken) {
      Py_DECREF(object);
    }
  }

 private:
  static std::mutex& mutex() {
    static auto* instance = new std::mutex();
    return *instance;
  }
  static std::vector<PyObject*>& dropped() {
    static auto* instance = new std::vector<PyObject*>();
    return *instance;
  }

  PyObject* object_;
};

struct Bound {
  std::shared_ptr<const Kernel> kernel;
  std::vector<mx::Shape> shapes;  // of the outputs
  std::vector<mx::Dtype> dtypes;  // of the outputs
  std::array<uint32_t, 3> grid;
  std::vector<int> init;
  std::optional<std::vector<mx::Shape>> input_shapes;
  mx::StreamOrDevice stream;
  std::unique_ptr<PyRef> transforms;

  uint64_t programs() const {
    return uint64_t(grid[0]) * grid[1] * grid[2];
  }

  bool same_work(const Bound& other) const {
    return kernel->entry == other.kernel->entry && grid == other.grid && init == other.init &&
        shapes == other.shapes && dtypes == other.dtypes;
  }
};

inline bool is_float(const mx::array& a) {
  const auto type = a.dtype();
  return type == mx::float32 || type == mx::float16 || type == mx::bfloat16;
}

class KernelPrimitive : public mx::Primitive {
 public:
  KernelPrimitive(
      mx::Stream stream,
      std::shared_ptr<const Bound> bound,
      std::vector<metile_scalar> scalars,
      Batch batch = {})
      : Primitive(stream),
        bound_(std::move(bound)),
        scalars_(std::move(scalars)),
        batch_(std::move(batch)) {}

  const char* name() const override {
    return bound_->kernel->name.c_str();
  }

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    auto run = std::make_shared<Run>();
    run->kernel = bound_->kernel;
    run->scalars = scalars_;
    std::copy(bound_->grid.begin(), bound_->grid.end(), run->grid);
    run->programs = bound_->programs();
    run->batch = batch_;
    run->batches = batch_count(batch_);
    run->init = bound_->init;
    run->buffers.reserve(inputs.size() + outputs.size());
    for (const auto& input : inputs) {
      encoder.set_input_array(input);
      run->buffers.push_back(contiguous(input, encoder, *run));
    }
    size_t written = 0;
    for (auto& output : outputs) {
      output.set_data(mx::allocator::malloc(output.nbytes()));
      encoder.set_output_array(output);
      run->buffers.push_back(output.data<char>());
      run->output_bytes.push_back(output.nbytes() / std::max<uint64_t>(1, run->batches));
      written += output.nbytes();
    }
    if (!written) {
      return;
    }
    set_steps(inputs, outputs, *run);
    encoder.dispatch([run = std::move(run)]() { (*run)(); });
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error(
        "[metile] kernel " + bound_->kernel->name +
        " is compiled for the cpu backend and was put on a GPU stream; use a CPU stream, or "
        "another backend.");
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>&) override {
    throw std::invalid_argument(
        "[metile] kernel " + bound_->kernel->name +
        " is compiled for fixed shapes; call mx.compile without shapeless=True.");
  }

  bool is_equivalent(const Primitive& other) const override {
    const auto* that = dynamic_cast<const KernelPrimitive*>(&other);
    return that && bound_->same_work(*that->bound_) && batch_ == that->batch_ &&
        scalars_.size() == that->scalars_.size() &&
        std::equal(scalars_.begin(), scalars_.end(), that->scalars_.begin(), [](auto a, auto b) {
             return a.raw == b.raw;
           });
  }

  std::pair<std::vector<mx::array>, std::vector<int>> vmap(
      const std::vector<mx::array>& inputs, const std::vector<int>& axes) override {
    BatchLevel level{1, std::vector<bool>(inputs.size())};
    auto moved = inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (axes[i] >= 0) {
        level.extent = inputs[i].shape(axes[i]);
        level.batched[i] = true;
        moved[i] = mx::moveaxis(inputs[i], axes[i], 0, stream());
      }
    }
    Batch batch{level};
    batch.insert(batch.end(), batch_.begin(), batch_.end());
    std::vector<mx::Shape> shapes;
    for (const auto& shape : bound_->shapes) {
      mx::Shape full;
      for (const auto& each : batch) {
        full.push_back(each.extent);
      }
      full.insert(full.end(), shape.begin(), shape.end());
      shapes.push_back(std::move(full));
    }
    auto primitive = std::make_shared<KernelPrimitive>(stream(), bound_, scalars_, batch);
    return {
        mx::array::make_arrays(std::move(shapes), bound_->dtypes, primitive, moved),
        std::vector<int>(bound_->shapes.size(), 0)};
  }

  std::vector<mx::array> vjp(
      const std::vector<mx::array>& primals,
      const std::vector<mx::array>& cotangents,
      const std::vector<int>& argnums,
      const std::vector<mx::array>& outputs) override {
    std::vector<int> wanted;
    for (int i : argnums) {
      if (is_float(primals[i])) {
        wanted.push_back(i);
      }
    }
    std::vector<mx::array> pulled;
    if (!wanted.empty()) {
      pulled = pull(0, primals, cotangents, wanted, outputs);
    }
    std::vector<mx::array> result;
    auto next = pulled.begin();
    for (int i : argnums) {
      result.push_back(
          is_float(primals[i]) ? std::move(*next++) : mx::zeros_like(primals[i], stream()));
    }
    return result;
  }

  std::vector<mx::array> jvp(
      const std::vector<mx::array>& primals,
      const std::vector<mx::array>& tangents,
      const std::vector<int>& argnums) override {
    return push(0, primals, tangents, argnums);
  }

 private:
  using Arrays = std::vector<mx::array>;

  // The input's data in row-major order: its own, or a temporary's that the run fills first.
  void* contiguous(const mx::array& input, mx::cpu::CommandEncoder& encoder, Run& run) {
    if (input.flags().row_contiguous || input.size() == 0) {
      return const_cast<char*>(input.data<char>());
    }
    mx::array copy(input.shape(), input.dtype(), nullptr, {});
    copy.set_data(mx::allocator::malloc(copy.nbytes()));
    auto* target = copy.data<char>();
    run.copies.emplace_back(
        input.data<char>(), target, input.shape(), input.strides(), input.itemsize());
    encoder.add_temporary(std::move(copy));
    return target;
  }

  void set_steps(const Arrays& inputs, const Arrays& outputs, Run& run) const {
    std::vector<size_t> bytes;
    for (const auto& each : inputs) {
      bytes.push_back(each.nbytes());
    }
    for (const auto& each : outputs) {
      bytes.push_back(each.nbytes());
    }
    for (const auto& level : batch_) {
      auto& steps = run.steps.emplace_back(bytes.size(), 0);
      for (size_t i = 0; i < bytes.size(); ++i) {
        if (level.extent && (i >= inputs.size() || level.batched[i])) {
          bytes[i] /= size_t(level.extent);
          steps[i] = bytes[i];
        }
      }
    }
  }

  nb::object transform(const char* what) const {
    if (bound_->transforms) {
      return nb::borrow(bound_->transforms->get());
    }
    raise(
        gradient_error,
        "kernel " + bound_->kernel->name + " has no gradient: " + what +
            " was asked for and the kernel has no transforms");
  }

  // vjp below `depth` vmapped axes; an input without the axis gets the sum over it.
  Arrays pull(
      size_t depth,
      const Arrays& primals,
      const Arrays& cotangents,
      const std::vector<int>& argnums,
      const Arrays& outputs) {
    if (depth == batch_.size()) {
      nb::gil_scoped_acquire gil;
      auto result = nb::cast<Arrays>(
          transform("vjp").attr("vjp")(primals, cotangents, argnums, outputs));
      check_count("vjp", result.size(), argnums.size());
      return result;
    }
    const auto& batched = batch_[depth].batched;
    const size_t n = primals.size(), m = cotangents.size();
    Arrays all = primals;
    all.insert(all.end(), cotangents.begin(), cotangents.end());
    all.insert(all.end(), outputs.begin(), outputs.end());
    auto body = [&](const Arrays& given) {
      const auto p = given.begin() + long(n), c = p + long(m);
      return pull(
          depth + 1, Arrays(given.begin(), p), Arrays(p, c), argnums, Arrays(c, given.end()));
    };
    auto axes = axes_of(batched);
    axes.resize(all.size(), 0);
    auto result = mx::vmap(body, axes, std::vector<int>(argnums.size(), 0))(all);
    for (size_t i = 0; i < argnums.size(); ++i) {
      if (!batched[argnums[i]]) {
        result[i] = mx::sum(result[i], 0, false, stream());
      }
    }
    return result;
  }

  Arrays push(
      size_t depth,
      const Arrays& primals,
      const Arrays& tangents,
      const std::vector<int>& argnums) {
    if (depth == batch_.size()) {
      nb::gil_scoped_acquire gil;
      auto result = nb::cast<Arrays>(transform("jvp").attr("jvp")(primals, tangents, argnums));
      check_count("jvp", result.size(), bound_->shapes.size());
      return result;
    }
    const auto& batched = batch_[depth].batched;
    const size_t n = primals.size();
    Arrays all = primals;
    all.insert(all.end(), tangents.begin(), tangents.end());
    auto axes = axes_of(batched);
    for (int i : argnums) {
      axes.push_back(batched[i] ? 0 : -1);
    }
    auto body = [&](const Arrays& given) {
      const auto p = given.begin() + long(n);
      return push(depth + 1, Arrays(given.begin(), p), Arrays(p, given.end()), argnums);
    };
    return mx::vmap(body, axes, std::vector<int>(bound_->shapes.size(), 0))(all);
  }

  static std::vector<int> axes_of(const std::vector<bool>& batched) {
    std::vector<int> axes;
    for (const bool each : batched) {
      axes.push_back(each ? 0 : -1);
    }
    return axes;
  }

  void check_count(const char* what, size_t given, size_t expected) const {
    if (given != expected) {
      raise(
          gradient_error,
          "kernel " + bound_->kernel->name + ": its " + what + " returned " +
              std::to_string(given) + " arrays, expected " + std::to_string(expected));
    }
  }

  const std::shared_ptr<const Bound> bound_;
  const std::vector<metile_scalar> scalars_;
  const Batch batch_;
};

}  // namespace metile
