// The Python binding of the cpu backend: `Kernel` is a loaded function; `bind` fixes all that is
// equal in every call of it, so that a call only converts its arguments and makes lazy arrays.
//
// Compiled on the user's machine against the headers of the installed MLX (SPEC X4).

#include "primitive.h"

#include <dlfcn.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <limits>

namespace metile {

using Val = mx::Dtype::Val;

std::string kind_of(nb::handle object) {
  return Py_TYPE(object.ptr())->tp_name;
}

std::string shown(const mx::Shape& shape) {
  std::string text = "(";
  for (const int each : shape) {
    text += std::to_string(each) + ",";
  }
  return text + ")";
}

std::string shown(const mx::Dtype& dtype) {
  return nb::cast<std::string>(nb::str(nb::cast(dtype)));
}

// A list or tuple, or anything that can become one; borrowed items stay valid while it lives.
class Items {
 public:
  explicit Items(nb::handle object) : fast_(PySequence_Fast(object.ptr(), "expected a sequence")) {
    if (!fast_) {
      throw nb::python_error();
    }
  }
  Items(const Items&) = delete;
  Items& operator=(const Items&) = delete;
  ~Items() {
    Py_DECREF(fast_);
  }

  size_t size() const {
    return size_t(PySequence_Fast_GET_SIZE(fast_));
  }
  nb::handle operator[](size_t i) const {
    return PySequence_Fast_GET_ITEM(fast_, Py_ssize_t(i));
  }

 private:
  PyObject* fast_;
};

[[noreturn]] void bad_scalar(
    const Kernel& kernel, size_t i, nb::handle given, const std::string& why) {
  PyErr_Clear();
  raise(
      launch_error,
      "kernel " + kernel.name + ": scalar '" + kernel.scalar_names[i] + "' = " +
          nb::cast<std::string>(nb::repr(given)) + " (" + kind_of(given) + ") " + why);
}

template <typename T>
int64_t integer(const Kernel& kernel, size_t i, nb::handle given) {
  PyObject* index = PyNumber_Index(given.ptr());
  if (!index) {
    bad_scalar(kernel, i, given, "is not an integer");
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index, &overflow);
  uint64_t wide = uint64_t(value);
  bool fits = !overflow && value >= int64_t(std::numeric_limits<T>::min()) &&
      (value < 0 || uint64_t(value) <= uint64_t(std::numeric_limits<T>::max()));
  if (std::is_same_v<T, uint64_t> && overflow > 0) {
    wide = PyLong_AsUnsignedLongLong(index);
    fits = !PyErr_Occurred();
  }
  Py_DECREF(index);
  if (!fits) {
    bad_scalar(
        kernel, i, given,
        "does not fit " + shown(kernel.scalar_dtypes[i]) + ", which holds " +
            std::to_string(std::numeric_limits<T>::min()) + " to " +
            std::to_string(std::numeric_limits<T>::max()));
  }
  return int64_t(wide);
}

float real(const Kernel& kernel, size_t i, nb::handle given) {
  const double value = PyFloat_AsDouble(given.ptr());
  if (value == -1.0 && PyErr_Occurred()) {
    bad_scalar(kernel, i, given, "is not a number");
  }
  return float(value);
}

metile_scalar convert_scalar(const Kernel& kernel, size_t i, nb::handle given) {
  metile_scalar out;
  out.raw = 0;
  switch (kernel.scalar_dtypes[i].val()) {
    case Val::float32:
      out.f = real(kernel, i, given);
      break;
    case Val::float16:
      out.u = metile_f32_to_f16(real(kernel, i, given));
      break;
    case Val::bfloat16:
      out.u = metile_f32_to_bf16(real(kernel, i, given));
      break;
    case Val::bool_: {
      const int truth = PyObject_IsTrue(given.ptr());
      if (truth < 0) {
        bad_scalar(kernel, i, given, "is neither true nor false");
      }
      out.b = uint8_t(truth);
      break;
    }
    case Val::int8:
      out.i = int32_t(integer<int8_t>(kernel, i, given));
      break;
    case Val::int16:
      out.i = int32_t(integer<int16_t>(kernel, i, given));
      break;
    case Val::int32:
      out.i = int32_t(integer<int32_t>(kernel, i, given));
      break;
    case Val::uint8:
      out.u = uint32_t(integer<uint8_t>(kernel, i, given));
      break;
    case Val::uint16:
      out.u = uint32_t(integer<uint16_t>(kernel, i, given));
      break;
    case Val::uint32:
      out.u = uint32_t(integer<uint32_t>(kernel, i, given));
      break;
    case Val::int64:
      out.raw = integer<int64_t>(kernel, i, given);
      break;
    case Val::uint64:
      out.raw = integer<uint64_t>(kernel, i, given);
      break;
    default:
      bad_scalar(kernel, i, given, "has a dtype no scalar can have");
  }
  return out;
}

void check_array(const Bound& bound, size_t i, const mx::array& given) {
  const Kernel& kernel = *bound.kernel;
  if (given.dtype() != kernel.array_dtypes[i]) {
    raise(
        launch_error,
        "kernel " + kernel.name + ": array '" + kernel.array_names[i] + "' has dtype " +
            shown(given.dtype()) + ", compiled for " + shown(kernel.array_dtypes[i]));
  }
  if (bound.input_shapes && given.shape() != (*bound.input_shapes)[i]) {
    raise(
        launch_error,
        "kernel " + kernel.name + ": array '" + kernel.array_names[i] + "' has shape " +
            shown(given.shape()) + ", prepared for " + shown((*bound.input_shapes)[i]));
  }
}

std::vector<mx::array> convert_arrays(const Bound& bound, nb::handle given) {
  const Kernel& kernel = *bound.kernel;
  const Items items(given);
  if (items.size() != kernel.array_names.size()) {
    raise(
        launch_error,
        "kernel " + kernel.name + " takes " + std::to_string(kernel.array_names.size()) +
            " arrays, " + std::to_string(items.size()) + " given");
  }
  std::vector<mx::array> arrays;
  arrays.reserve(items.size());
  static const PyTypeObject* const array_type =
      reinterpret_cast<PyTypeObject*>(nb::type<mx::array>().ptr());
  for (size_t i = 0; i < items.size(); ++i) {
    if (Py_TYPE(items[i].ptr()) != array_type && !nb::isinstance<mx::array>(items[i])) {
      raise(
          launch_error,
          "kernel " + kernel.name + ": array '" + kernel.array_names[i] +
              "' must be an mlx.core.array, " + kind_of(items[i]) + " given");
    }
    const auto& array = *nb::inst_ptr<mx::array>(items[i]);
    check_array(bound, i, array);
    arrays.push_back(array);
  }
  return arrays;
}

std::vector<metile_scalar> convert_scalars(const Kernel& kernel, nb::handle given) {
  const Items items(given);
  if (items.size() != kernel.scalar_names.size()) {
    raise(
        launch_error,
        "kernel " + kernel.name + " takes " + std::to_string(kernel.scalar_names.size()) +
            " scalars, " + std::to_string(items.size()) + " given");
  }
  std::vector<metile_scalar> scalars;
  scalars.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    scalars.push_back(convert_scalar(kernel, i, items[i]));
  }
  return scalars;
}

mx::Device::DeviceType device_of(const mx::StreamOrDevice& stream) {
  if (const auto* one = std::get_if<mx::Stream>(&stream)) {
    return one->device.type;
  }
  if (const auto* one = std::get_if<mx::ThreadLocalStream>(&stream)) {
    return one->device.type;
  }
  if (const auto* one = std::get_if<mx::Device>(&stream)) {
    return one->type;
  }
  const auto* type = std::get_if<mx::Device::DeviceType>(&stream);
  return type ? *type : mx::Device::cpu;
}

mx::Stream stream_of(const Bound& bound) {
  if (std::holds_alternative<std::monostate>(bound.stream)) {
    return mx::default_stream(mx::Device::cpu);
  }
  return mx::to_stream(bound.stream);
}

// A read_write output starts as a copy of its input, so both must be of one size.
void check_init(const Bound& bound, const std::vector<mx::array>& inputs) {
  for (size_t i = 0; i < bound.init.size(); ++i) {
    if (bound.init[i] < 0) {
      continue;
    }
    const auto& input = inputs[size_t(bound.init[i])];
    if (input.shape() != bound.shapes[i] || input.dtype() != bound.dtypes[i]) {
      raise(
          launch_error,
          "kernel " + bound.kernel->name + ": output " + std::to_string(i) +
              " starts as a copy of array '" +
              bound.kernel->array_names[size_t(bound.init[i])] + "' " + shown(input.shape()) +
              " and has another shape or dtype: " + shown(bound.shapes[i]));
    }
  }
}

nb::object call(const std::shared_ptr<const Bound>& bound, nb::handle arrays, nb::handle scalars) {
  PyRef::release_dropped();
  auto inputs = convert_arrays(*bound, arrays);
  check_init(*bound, inputs);
  auto primitive = std::make_shared<KernelPrimitive>(
      stream_of(*bound), bound, convert_scalars(*bound->kernel, scalars));
  nb::list result;
  if (bound->shapes.size() == 1) {
    result.append(mx::array(
        bound->shapes[0], bound->dtypes[0], std::move(primitive), std::move(inputs)));
    return result;
  }
  for (auto& output : mx::array::make_arrays(bound->shapes, bound->dtypes, primitive, inputs)) {
    result.append(std::move(output));
  }
  return result;
}

// What Python holds. A shared_ptr that Python handed out would take the GIL when it is dropped, and
// the stream's thread drops it last.
struct KernelHandle {
  std::shared_ptr<const Kernel> kernel;
};

nb::object bind(
    const KernelHandle& handle,
    std::vector<std::vector<int>> shapes,
    std::vector<mx::Dtype> dtypes,
    std::array<uint32_t, 3> grid,
    std::vector<int> init,
    mx::StreamOrDevice stream,
    nb::object transforms,
    std::optional<std::vector<std::vector<int>>> input_shapes) {
  auto bound = std::make_shared<Bound>();
  bound->kernel = handle.kernel;
  for (const auto& shape : shapes) {
    bound->shapes.emplace_back(shape.begin(), shape.end());
  }
  bound->dtypes = std::move(dtypes);
  bound->grid = grid;
  bound->init = std::move(init);
  bound->stream = stream;
  if (!transforms.is_none()) {
    bound->transforms = std::make_unique<PyRef>(transforms);
  }
  if (input_shapes) {
    bound->input_shapes.emplace();
    for (const auto& shape : *input_shapes) {
      bound->input_shapes->emplace_back(shape.begin(), shape.end());
    }
  }
  if (device_of(stream) != mx::Device::cpu) {
    raise(
        launch_error,
        "kernel " + bound->kernel->name +
            " is compiled for the cpu backend; a GPU stream was given");
  }
  return nb::cpp_function(
      [bound = std::shared_ptr<const Bound>(bound)](nb::handle arrays, nb::handle scalars) {
        return call(bound, arrays, scalars);
      },
      nb::arg("inputs"), nb::arg("scalars"));
}

KernelHandle load(
    const std::string& path,
    const std::string& symbol,
    std::string name,
    std::vector<std::string> array_names,
    std::vector<mx::Dtype> array_dtypes,
    std::vector<std::string> scalar_names,
    std::vector<mx::Dtype> scalar_dtypes) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  void* entry = library ? dlsym(library, symbol.c_str()) : nullptr;
  if (!entry) {
    const char* why = dlerror();
    throw std::runtime_error(why ? why : "no such symbol: " + symbol);
  }
  return {std::make_shared<const Kernel>(Kernel{
      std::move(name), reinterpret_cast<Entry>(entry), std::move(array_names),
      std::move(array_dtypes), std::move(scalar_names), std::move(scalar_dtypes)})};
}

}  // namespace metile

NB_MODULE(metile_cpu_runtime, m) {
  nb::set_leak_warnings(false);  // arrays of the graph may outlive the interpreter
  nb::module_::import_("mlx.core");
  metile::ThreadPool::handle_forks();
  nb::class_<metile::KernelHandle>(m, "Kernel")
      .def_prop_ro("name", [](const metile::KernelHandle& k) { return k.kernel->name; });
  m.def("load", &metile::load);
  m.def(
      "bind", &metile::bind, nb::arg("kernel"), nb::arg("shapes"), nb::arg("dtypes"),
      nb::arg("grid"), nb::arg("init"), nb::arg("stream").none(), nb::arg("transforms").none(),
      nb::arg("input_shapes").none());
  m.def("set_errors", [](nb::object gradient, nb::object launch) {
    metile::gradient_error = gradient.release().ptr();
    metile::launch_error = launch.release().ptr();
  });
  m.def("element_count", [](const mlx::core::array& array) { return array.size(); });
  m.def("thread_count", [] { return metile::ThreadPool::shared().size(); });
}
