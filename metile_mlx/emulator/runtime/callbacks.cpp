// The compiler's callbacks: every memory access of a checked kernel, and the checks of its indices.
// They have the names of ThreadSanitizer and UndefinedBehaviorSanitizer, whose libraries are not
// linked.
#include <cstddef>

#include "checker.h"

using metile::active_checker;

#define METILE_CODE reinterpret_cast<uintptr_t>(__builtin_return_address(0))
#define METILE_ACCESS(bytes)                                                                   \
  void __tsan_read##bytes(void* at) {                                                          \
    active_checker->access<false>(reinterpret_cast<uintptr_t>(at), bytes, METILE_CODE);        \
  }                                                                                            \
  void __tsan_write##bytes(void* at) {                                                         \
    active_checker->access<true>(reinterpret_cast<uintptr_t>(at), bytes, METILE_CODE);         \
  }                                                                                            \
  void __tsan_unaligned_read##bytes(void* at) {                                                \
    active_checker->access<false>(reinterpret_cast<uintptr_t>(at), bytes, METILE_CODE);        \
  }                                                                                            \
  void __tsan_unaligned_write##bytes(void* at) {                                               \
    active_checker->access<true>(reinterpret_cast<uintptr_t>(at), bytes, METILE_CODE);         \
  }

namespace {

// As clang lays out what it hands to the handlers.
struct Place {
  const char* file;
  uint32_t line;
  uint32_t column;
};
struct Type {
  uint16_t kind;
  uint16_t info;
  char name[1];
};
struct Mismatch {
  Place place;
  const Type* type;
  uint8_t log_align;
  uint8_t kind;
};
struct Index {
  Place place;
  const Type* array;
  const Type* index;
};

void index_fault(const Index* data, uintptr_t index) {
  active_checker->index_out_of_bounds(data->array->name, int64_t(index), data->place.line);
}

void mismatch(const Mismatch* data, uintptr_t at) {
  active_checker->misaligned(
      at, uint64_t(1) << data->log_align, data->type->name, data->place.line);
}

}  // namespace

extern "C" {

METILE_ACCESS(1)
METILE_ACCESS(2)
METILE_ACCESS(4)
METILE_ACCESS(8)
METILE_ACCESS(16)

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

void* __tsan_memcpy(void* target, const void* source, std::size_t bytes) {
  if (bytes) {
    active_checker->access<false>(reinterpret_cast<uintptr_t>(source), bytes, METILE_CODE);
    active_checker->access<true>(reinterpret_cast<uintptr_t>(target), bytes, METILE_CODE);
  }
  return __builtin_memcpy(target, source, bytes);
}
void* __tsan_memmove(void* target, const void* source, std::size_t bytes) {
  if (bytes) {
    active_checker->access<false>(reinterpret_cast<uintptr_t>(source), bytes, METILE_CODE);
    active_checker->access<true>(reinterpret_cast<uintptr_t>(target), bytes, METILE_CODE);
  }
  return __builtin_memmove(target, source, bytes);
}
void* __tsan_memset(void* target, int value, std::size_t bytes) {
  if (bytes) {
    active_checker->access<true>(reinterpret_cast<uintptr_t>(target), bytes, METILE_CODE);
  }
  return __builtin_memset(target, value, bytes);
}

void __ubsan_handle_type_mismatch_v1(void* data, uintptr_t at) {
  mismatch(static_cast<const Mismatch*>(data), at);
}
void __ubsan_handle_type_mismatch_v1_abort(void* data, uintptr_t at) {
  mismatch(static_cast<const Mismatch*>(data), at);
}
void __ubsan_handle_out_of_bounds(void* data, uintptr_t index) {
  index_fault(static_cast<const Index*>(data), index);
}
void __ubsan_handle_out_of_bounds_abort(void* data, uintptr_t index) {
  index_fault(static_cast<const Index*>(data), index);
}

void metile_atomic(const volatile void* at, metile_u32 bytes, metile_u32 kind) {
  active_checker->atomic(reinterpret_cast<uintptr_t>(at), bytes, kind, METILE_CODE);
}
void metile_inactive(const char* name, metile_u32 lane, metile_u32 line) {
  active_checker->inactive(name, lane, line);
}
}
