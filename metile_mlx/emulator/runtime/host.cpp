// The Python binding of the emulator: a kernel's shared object as a lazy MLX primitive.
//
// Compiled on the user's machine against the headers of the installed MLX.

#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "emulation.h"

namespace nb = nanobind;

namespace metile_emulator {

std::shared_ptr<Emulation> make_emulation(
    const std::string& path,
    const std::string& symbol,
    std::string name,
    std::vector<std::tuple<int, int, std::string>> bindings,
    std::vector<std::vector<int>> shapes,
    std::vector<mx::Dtype> dtypes,
    std::array<uint32_t, 3> grid,
    std::array<uint32_t, 3> threadgroup,
    bool ensure_row_contiguous,
    std::optional<float> init_value,
    bool is_checked,
    uint32_t schedules,
    uint32_t threads,
    std::string key) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  void* entry = library ? dlsym(library, symbol.c_str()) : nullptr;
  if (!entry) {
    const char* why = dlerror();
    throw std::runtime_error(why ? why : "no such symbol: " + symbol);
  }
  auto made = std::make_shared<Emulation>();
  made->entry = reinterpret_cast<Entry>(entry);
  made->name = std::move(name);
  for (auto& [kind, index, array] : bindings) {
    made->bindings.push_back({Binding::Kind(kind), size_t(index), std::move(array)});
  }
  for (const auto& shape : shapes) {
    made->shapes.emplace_back(shape.begin(), shape.end());
  }
  made->dtypes = std::move(dtypes);
  std::copy(grid.begin(), grid.end(), made->grid);
  std::copy(threadgroup.begin(), threadgroup.end(), made->threadgroup);
  made->ensure_row_contiguous = ensure_row_contiguous;
  made->init_value = init_value;
  made->is_checked = is_checked;
  made->schedules = schedules;
  made->threads = threads;
  made->key = std::move(key);
  return made;
}

std::vector<mx::array> launch(
    std::shared_ptr<Emulation> emulation,
    std::vector<mx::array> inputs,
    std::variant<std::monostate, mx::Stream> stream) {
  const mx::Stream where = std::holds_alternative<mx::Stream>(stream)
      ? std::get<mx::Stream>(stream)
      : mx::default_stream(mx::Device::cpu);
  auto primitive = std::make_shared<EmulatorPrimitive>(where, emulation);
  return mx::array::make_arrays(emulation->shapes, emulation->dtypes, primitive, inputs);
}

nb::dict as_dict(const metile_finding& found) {
  nb::dict out;
  out["fault"] = found.fault;
  out["access"] = found.access;
  out["other_access"] = found.other_access;
  out["line"] = found.line;
  out["group"] = nb::make_tuple(found.group[0], found.group[1], found.group[2]);
  out["thread"] = found.thread;
  out["other_group"] =
      nb::make_tuple(found.other_group[0], found.other_group[1], found.other_group[2]);
  out["other_thread"] = found.other_thread;
  out["byte_offset"] = found.byte_offset;
  out["bytes"] = found.bytes;
  out["array_bytes"] = found.array_bytes;
  out["item_bytes"] = found.item_bytes;
  out["is_threadgroup"] = bool(found.is_threadgroup);
  out["code"] = found.code;
  out["count"] = found.count;
  out["array"] = std::string(found.array, strnlen(found.array, sizeof found.array));
  out["detail"] = std::string(found.detail, strnlen(found.detail, sizeof found.detail));
  return out;
}

// (key, findings) of every checked launch since the last call.
nb::list take_results() {
  std::vector<Result> taken;
  {
    std::lock_guard<std::mutex> lock(results_mutex());
    taken.swap(results());
  }
  nb::list out;
  for (const auto& result : taken) {
    nb::list findings;
    for (const auto& each : result.findings) {
      findings.append(as_dict(each));
    }
    out.append(nb::make_tuple(result.key, findings));
  }
  return out;
}

}  // namespace metile_emulator

NB_MODULE(metile_emulator_host, m) {
  using namespace metile_emulator;
  nb::set_leak_warnings(false);  // arrays of the graph may outlive the interpreter
  nb::module_::import_("mlx.core");
  nb::class_<Emulation>(m, "Emulation").def_ro("name", &Emulation::name);
  m.def(
      "make", &make_emulation, nb::arg("path"), nb::arg("symbol"), nb::arg("name"),
      nb::arg("bindings"), nb::arg("shapes"), nb::arg("dtypes"), nb::arg("grid"),
      nb::arg("threadgroup"), nb::arg("ensure_row_contiguous"), nb::arg("init_value").none(),
      nb::arg("is_checked"), nb::arg("schedules"), nb::arg("threads"),
      nb::arg("key"));
  m.def("launch", &launch, nb::arg("emulation"), nb::arg("inputs"), nb::arg("stream").none());
  m.def("take_results", &take_results);
  m.def("completed_runs", [] {
    std::lock_guard<std::mutex> lock(results_mutex());
    return completed_runs();
  });
}
