// metal_atomic. Atomic accesses order nothing but themselves: memory_order_relaxed.
#pragma once

#include "vote.h"

namespace metal {

enum memory_order : int {
  memory_order_relaxed = 0,
  memory_order_acquire = 2,
  memory_order_release = 3,
  memory_order_acq_rel = 4,
  memory_order_seq_cst = 5,
};
enum thread_scope : int {
  thread_scope_thread = 0,
  thread_scope_simdgroup = 4,
  thread_scope_threadgroup = 1,
  thread_scope_device = 2,
};

template <typename T>
struct atomic {
  static_assert(
      is_same_v<T, int> || is_same_v<T, uint> || is_same_v<T, float> || is_same_v<T, bool> ||
          is_same_v<T, ulong>,
      "atomic<T> exists for int, uint, float, bool and ulong");
  T metile_value;
};

#ifdef METILE_CHECKED
#define METILE_NOTE_ATOMIC(pointer, kind) \
  ::metile_atomic(&(pointer)->metile_value, sizeof(T), kind)
#define METILE_NOTE_FLOAT(T)                  \
  if constexpr (is_floating_point_v<T>) {     \
    ::metile_float_atomic();                  \
  }
#else
#define METILE_NOTE_ATOMIC(pointer, kind)
#define METILE_NOTE_FLOAT(T)
#endif
// The host's own access, hidden from the instrumentation: the check is the line above it.
#define METILE_HIDDEN __attribute__((disable_sanitizer_instrumentation, noinline))

template <typename T>
METILE_HIDDEN T metile_atomic_load(const volatile T* at) {
  T out;
  __atomic_load(const_cast<const T*>(at), &out, __ATOMIC_RELAXED);
  return out;
}
template <typename T>
METILE_HIDDEN void metile_atomic_store(volatile T* at, T value) {
  __atomic_store(const_cast<T*>(at), &value, __ATOMIC_RELAXED);
}
template <typename T>
METILE_HIDDEN T metile_atomic_swap(volatile T* at, T value) {
  T out;
  __atomic_exchange(const_cast<T*>(at), &value, &out, __ATOMIC_RELAXED);
  return out;
}
template <typename T>
METILE_HIDDEN bool metile_atomic_swap_if(volatile T* at, T* expected, T desired) {
  return __atomic_compare_exchange(
      const_cast<T*>(at), expected, &desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
template <typename F, typename T>
METILE_HIDDEN T metile_atomic_modify(volatile T* at, T operand) {
  T kept = metile_atomic_load(at);
  T next = F::template apply<T>(kept, operand);
  while (!__atomic_compare_exchange(
      const_cast<T*>(at), &kept, &next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    next = F::template apply<T>(kept, operand);
  }
  return kept;
}
struct metile_subtract {
  template <typename T>
  static T apply(T a, T b) { return T(a - b); }
};

template <typename T>
METILE_INLINE T atomic_load_explicit(const volatile atomic<T>* object, memory_order) {
  METILE_NOTE_ATOMIC(object, METILE_LOAD);
  return metile_atomic_load(&object->metile_value);
}
template <typename T>
METILE_INLINE void atomic_store_explicit(
    volatile atomic<T>* object, type_identity_t<T> desired, memory_order) {
  METILE_NOTE_ATOMIC(object, METILE_STORE);
  metile_atomic_store(&object->metile_value, desired);
}
template <typename T>
METILE_INLINE T atomic_exchange_explicit(
    volatile atomic<T>* object, type_identity_t<T> desired, memory_order) {
  METILE_NOTE_ATOMIC(object, METILE_MODIFY);
  return metile_atomic_swap(&object->metile_value, desired);
}
template <typename T>
METILE_INLINE bool atomic_compare_exchange_weak_explicit(
    volatile atomic<T>* object, T* expected, type_identity_t<T> desired, memory_order,
    memory_order) {
  METILE_NOTE_ATOMIC(object, METILE_MODIFY);
  return metile_atomic_swap_if(&object->metile_value, expected, desired);
}
#define METILE_FETCH(name, functor, condition)                                             \
  template <typename T, typename = enable_if_t<condition>>                                 \
  METILE_INLINE T atomic_fetch_##name##_explicit(                                          \
      volatile atomic<T>* object, type_identity_t<T> operand, memory_order) {              \
    METILE_NOTE_ATOMIC(object, METILE_MODIFY);                                                      \
    METILE_NOTE_FLOAT(T);                                                                  \
    return metile_atomic_modify<functor>(&object->metile_value, operand);                  \
  }
METILE_FETCH(add, metile_add, (!is_same_v<T, bool>))
METILE_FETCH(sub, metile_subtract, (!is_same_v<T, bool>))
METILE_FETCH(min, metile_least, (is_integral_v<T> && !is_same_v<T, bool>))
METILE_FETCH(max, metile_most, (is_integral_v<T> && !is_same_v<T, bool>))
METILE_FETCH(and, metile_and, (is_integral_v<T>))
METILE_FETCH(or, metile_or, (is_integral_v<T>))
METILE_FETCH(xor, metile_exclusive_or, (is_integral_v<T>))
#undef METILE_FETCH
#undef METILE_NOTE_ATOMIC
#undef METILE_NOTE_FLOAT
#undef METILE_HIDDEN

METILE_INLINE void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_bool = atomic<bool>;
using atomic_ulong = atomic<ulong>;
using atomic_float = atomic<float>;

}  // namespace metal

using metal::atomic_bool;
using metal::atomic_float;
using metal::atomic_int;
using metal::atomic_uint;
