// Reductions and prefix scans over the lanes of a simdgroup or quadgroup.
#pragma once

#include "simd.h"

namespace metal {

// Reductions, in the order the launch asks for: 0 ascending, 1 butterfly, else shuffled by it.
template <typename T>
struct metile_reduction {
  T value;
  T result;
};
struct metile_add {
  template <typename T>
  static T apply(T a, T b) { return T(a + b); }
};
struct metile_multiply {
  template <typename T>
  static T apply(T a, T b) { return T(a * b); }
};
struct metile_least {
  template <typename T>
  static T apply(T a, T b) { return min(a, b); }
};
struct metile_most {
  template <typename T>
  static T apply(T a, T b) { return max(a, b); }
};
struct metile_and {
  template <typename T>
  static T apply(T a, T b) { return T(a & b); }
};
struct metile_or {
  template <typename T>
  static T apply(T a, T b) { return T(a | b); }
};
struct metile_exclusive_or {
  template <typename T>
  static T apply(T a, T b) { return T(a ^ b); }
};

template <typename F, typename T>
T metile_tree(const T* values, uint count) {
  T work[32];
  for (uint i = 0; i < count; ++i) {
    work[i] = values[i];
  }
  for (uint step = 1; step < count; step *= 2) {
    for (uint i = 0; i + step < count; i += 2 * step) {
      work[i] = F::template apply<T>(work[i], work[i + step]);
    }
  }
  return work[0];
}

template <typename F, typename T>
T metile_ordered(T* values, uint count, ulong order) {
  if (order == 1) {
    return metile_tree<F>(values, count);
  }
  for (uint i = count; order > 1 && i > 1; --i) {
    order = order * 6364136223846793005ul + 1442695040888963407ul;
    swap(values[i - 1], values[(order >> 33) % i]);
  }
  T result = values[0];
  for (uint i = 1; i < count; ++i) {
    result = F::template apply<T>(result, values[i]);
  }
  return result;
}

template <typename F, typename T, uint WIDTH>
void metile_reduce(void** lanes, uint active, ulong order) {
  for (uint first = 0; first < 32; first += WIDTH) {
    T values[WIDTH];
    uint count = 0;
    for (uint i = first; i < first + WIDTH; ++i) {
      if (active >> i & 1u) {
        values[count++] = static_cast<metile_reduction<T>*>(lanes[i])->value;
      }
    }
    if (!count) {
      continue;
    }
    const T result = metile_ordered<F, T>(values, count, order);
    for (uint i = first; i < first + WIDTH; ++i) {
      if (active >> i & 1u) {
        static_cast<metile_reduction<T>*>(lanes[i])->result = result;
      }
    }
  }
}

template <typename F, typename T, uint WIDTH>
METILE_INLINE T metile_reduced(
    const char* name, T data, uint line, uint column, bool is_float_reduction) {
  metile_reduction<T> record;
  record.value = data;
  metile_gather(
      name, &metile_reduce<F, T, WIDTH>, &record, line, column, WIDTH, false, 0,
      is_float_reduction);
  return record.result;
}

#define METILE_REDUCE(name, functor, rounds)                                          \
  template <typename T, typename = metile_for_lanes<T>>                               \
  METILE_INLINE T simd_##name(T data, METILE_HERE) {                                  \
    return metile_reduced<functor, T, 32>(                                            \
        "simd_" #name, data, line, column, rounds && metile_is_float_value<T>);       \
  }                                                                                   \
  template <typename T, typename = metile_for_lanes<T>>                               \
  METILE_INLINE T quad_##name(T data, METILE_HERE) {                                  \
    return metile_reduced<functor, T, 4>(                                             \
        "quad_" #name, data, line, column, rounds && metile_is_float_value<T>);       \
  }
METILE_REDUCE(sum, metile_add, true)
METILE_REDUCE(product, metile_multiply, true)
METILE_REDUCE(min, metile_least, false)
METILE_REDUCE(max, metile_most, false)
METILE_REDUCE(and, metile_and, false)
METILE_REDUCE(or, metile_or, false)
METILE_REDUCE(xor, metile_exclusive_or, false)
#undef METILE_REDUCE

template <typename F, typename T, uint WIDTH, bool INCLUSIVE>
void metile_scan(void** lanes, uint active, ulong) {
  for (uint first = 0; first < 32; first += WIDTH) {
    T running = F::template apply<int>(0, 0) == 0 && F::template apply<int>(2, 3) == 5 ? T(0) : T(1);
    for (uint i = first; i < first + WIDTH; ++i) {
      if (active >> i & 1u) {
        auto& own = *static_cast<metile_reduction<T>*>(lanes[i]);
        const T next = F::template apply<T>(running, own.value);
        own.result = INCLUSIVE ? next : running;
        running = next;
      }
    }
  }
}
#define METILE_SCAN_ONE(prefix, width, kind, name, functor, inclusive)                   \
  template <typename T, typename = metile_for_lanes<T>>                                  \
  METILE_INLINE T prefix##_prefix_##kind##_##name(T data, METILE_HERE) {                 \
    metile_reduction<T> record;                                                          \
    record.value = data;                                                                 \
    metile_gather(                                                                          \
        #prefix "_prefix_" #kind "_" #name, &metile_scan<functor, T, width, inclusive>,  \
        &record, line, column, width, false, 0, metile_is_float_value<T>);               \
    return record.result;                                                                \
  }
#define METILE_SCAN(prefix, width)                                           \
  METILE_SCAN_ONE(prefix, width, inclusive, sum, metile_add, true)           \
  METILE_SCAN_ONE(prefix, width, exclusive, sum, metile_add, false)          \
  METILE_SCAN_ONE(prefix, width, inclusive, product, metile_multiply, true)  \
  METILE_SCAN_ONE(prefix, width, exclusive, product, metile_multiply, false)
METILE_SCAN(simd, 32)
METILE_SCAN(quad, 4)
#undef METILE_SCAN
#undef METILE_SCAN_ONE

}  // namespace metal
