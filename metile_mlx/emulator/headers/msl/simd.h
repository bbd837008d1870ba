// metal_simdgroup, metal_quadgroup and metal_compute: barriers and operations across lanes.
//
// Each operation is a meeting: every lane brings a record on its own stack, and the last to arrive
// makes the results of all.
#pragma once

#include "matrix.h"

#define METILE_HERE uint line = __builtin_LINE(), uint column = __builtin_COLUMN()

namespace metal {

enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16,
};
METILE_INLINE constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return mem_flags(uint(a) | uint(b));
}
METILE_INLINE constexpr mem_flags operator&(mem_flags a, mem_flags b) {
  return mem_flags(uint(a) & uint(b));
}

__attribute__((convergent)) METILE_INLINE void threadgroup_barrier(
    mem_flags flags, METILE_HERE) {
  ::metile_barrier(uint(flags), line, column);
}

template <typename T>
inline constexpr bool metile_is_lane_scalar =
    is_arithmetic_v<T> && !is_same_v<T, bool> && sizeof(T) <= 4;
template <typename T>
struct metile_lane_value : bool_constant<metile_is_lane_scalar<T>> {};
template <typename T, int N>
struct metile_lane_value<vec<T, N>> : bool_constant<metile_is_lane_scalar<T>> {};
// What travels between lanes: scalars of at most 32 bits but bool, and their vectors.
template <typename T>
using metile_for_lanes = enable_if_t<metile_lane_value<T>::value>;

template <typename T>
inline constexpr bool metile_is_float_value =
    is_floating_point_v<T> || is_floating_point_v<metile_element_of<T>>;

// The value of a lane that is not there: a pattern that no sensible result has.
template <typename T>
METILE_INLINE T metile_poison() {
  T out;
  __builtin_memset(&out, 0x7f, sizeof out);
  auto* bytes = reinterpret_cast<uchar*>(&out);
  for (size_t i = 0; i < sizeof out; i += 2) {
    bytes[i] = 0xc5;
  }
  return out;
}

METILE_INLINE void metile_gather(
    const char* name, void (*combine)(void**, uint, ulong), void* data, uint line, uint column,
    uint width, bool complete = false, uint memory = 0, bool is_float_reduction = false) {
  metile_meeting meeting;
  meeting.site = (ulong(line) << 32) | column;
  meeting.name = name;
  meeting.combine = combine;
  meeting.data = data;
  meeting.line = line;
  meeting.width = uchar(width);
  meeting.complete = complete;
  meeting.memory = uchar(memory);
  meeting.is_float_reduction = is_float_reduction;
  ::metile_meet(&meeting);
}

METILE_INLINE void simdgroup_barrier(mem_flags flags, METILE_HERE) {
  metile_gather("simdgroup_barrier", nullptr, nullptr, line, column, 32, true, uint(flags));
}

template <typename T>
struct metile_exchange {
  T value;
  T other;       // what fills, in shuffles that fill
  T result;
  uint lane;     // own lane
  uint argument;
  uint modulo;
  uint is_absent;  // the result comes from a lane that is not there
};

// Shuffles: `source(x)` is the lane to read; 32 and above keep the own value or fill.
template <typename T, typename F>
void metile_shuffle(void** lanes, uint active, ulong) {
  for (uint i = 0; i < 32; ++i) {
    if (!(active >> i & 1u)) {
      continue;
    }
    auto& own = *static_cast<metile_exchange<T>*>(lanes[i]);
    F::apply(own, lanes, active);
  }
}
template <typename T>
METILE_INLINE void metile_take(metile_exchange<T>& own, void** lanes, uint active, uint source) {
  if (source < 32u && (active >> source & 1u)) {
    own.result = static_cast<metile_exchange<T>*>(lanes[source])->value;
    return;
  }
  own.result = metile_poison<T>();
  own.is_absent = source + 1u;
}
struct metile_direct {
  template <typename T>
  static void apply(metile_exchange<T>& own, void** lanes, uint active) {
    metile_take(own, lanes, active, own.argument);
  }
};
struct metile_xor {
  template <typename T>
  static void apply(metile_exchange<T>& own, void** lanes, uint active) {
    metile_take(own, lanes, active, own.lane ^ own.argument);
  }
};
// The lanes that nothing reaches keep their value.
struct metile_down {
  template <typename T>
  static void apply(metile_exchange<T>& own, void** lanes, uint active) {
    const uint width = own.modulo;
    if (own.lane % width + own.argument >= width) {
      own.result = own.value;
    } else {
      metile_take(own, lanes, active, own.lane + own.argument);
    }
  }
};
struct metile_up {
  template <typename T>
  static void apply(metile_exchange<T>& own, void** lanes, uint active) {
    if (own.argument > own.lane % own.modulo) {
      own.result = own.value;
    } else {
      metile_take(own, lanes, active, own.lane - own.argument);
    }
  }
};
struct metile_rotate_down {
  template <typename T>
  static void apply(metile_exchange<T>& own, void** lanes, uint active) {
    const uint width = own.modulo, base = own.lane - own.lane % width;
    metile_take(own, lanes, active, base + (own.lane + own.argument) % width);
  }
};
struct metile_rotate_up {
  template <typename T>
  static void apply(metile_exchange<T>& own, void** lanes, uint active) {
    const uint width = own.modulo, base = own.lane - own.lane % width;
    metile_take(own, lanes, active, base + (own.lane + width - own.argument % width) % width);
  }
};
// The lanes that nothing reaches take the filling data of the lanes at the other end.
struct metile_fill_down {
  template <typename T>
  static void apply(metile_exchange<T>& own, void** lanes, uint active) {
    const uint width = own.modulo, base = own.lane - own.lane % width;
    const uint at = own.lane % width + own.argument;
    const uint source = base + at % width;
    metile_take(own, lanes, active, source);
    if (at >= width && (active >> source & 1u)) {
      own.result = static_cast<metile_exchange<T>*>(lanes[source])->other;
    }
  }
};
struct metile_fill_up {
  template <typename T>
  static void apply(metile_exchange<T>& own, void** lanes, uint active) {
    const uint width = own.modulo, base = own.lane - own.lane % width;
    const uint at = own.lane % width + width - own.argument;
    const uint source = base + at % width;
    metile_take(own, lanes, active, source);
    if (at < width && (active >> source & 1u)) {
      own.result = static_cast<metile_exchange<T>*>(lanes[source])->other;
    }
  }
};
struct metile_first {
  template <typename T>
  static void apply(metile_exchange<T>& own, void** lanes, uint active) {
    metile_take(own, lanes, active, uint(__builtin_ctz(active)));
  }
};
struct metile_quad_direct {
  template <typename T>
  static void apply(metile_exchange<T>& own, void** lanes, uint active) {
    metile_take(own, lanes, active, own.argument < 4u ? (own.lane & ~3u) + own.argument : 32u);
  }
};

template <typename F, typename T>
METILE_INLINE T metile_exchanged(
    const char* name, T value, T other, uint argument, uint modulo, uint width, uint line,
    uint column) {
  metile_exchange<T> record;
  record.value = value;
  record.other = other;
  record.lane = ::metile_lane();
  record.argument = argument;
  record.modulo = modulo;
  record.is_absent = 0;
  metile_gather(name, &metile_shuffle<T, F>, &record, line, column, width);
#ifdef METILE_CHECKED
  if (record.is_absent) {
    ::metile_inactive(name, record.is_absent - 1u, line);
  }
#endif
  return record.result;
}

#define METILE_SHUFFLE(name, functor, argument, width)                               \
  template <typename T, typename = metile_for_lanes<T>>                              \
  METILE_INLINE T name(T data, ushort argument, METILE_HERE) {                       \
    return metile_exchanged<functor>(#name, data, data, argument, width, width, line, column); \
  }
METILE_SHUFFLE(simd_shuffle, metile_direct, lane, 32)
METILE_SHUFFLE(simd_broadcast, metile_direct, lane, 32)
METILE_SHUFFLE(simd_shuffle_xor, metile_xor, mask, 32)
METILE_SHUFFLE(simd_shuffle_down, metile_down, delta, 32)
METILE_SHUFFLE(simd_shuffle_up, metile_up, delta, 32)
METILE_SHUFFLE(simd_shuffle_rotate_down, metile_rotate_down, delta, 32)
METILE_SHUFFLE(simd_shuffle_rotate_up, metile_rotate_up, delta, 32)
METILE_SHUFFLE(quad_shuffle, metile_quad_direct, lane, 4)
METILE_SHUFFLE(quad_broadcast, metile_quad_direct, lane, 4)
METILE_SHUFFLE(quad_shuffle_xor, metile_xor, mask, 4)
METILE_SHUFFLE(quad_shuffle_down, metile_down, delta, 4)
METILE_SHUFFLE(quad_shuffle_up, metile_up, delta, 4)
METILE_SHUFFLE(quad_shuffle_rotate_down, metile_rotate_down, delta, 4)
METILE_SHUFFLE(quad_shuffle_rotate_up, metile_rotate_up, delta, 4)
#undef METILE_SHUFFLE

#define METILE_FILL(name, functor, width)                                                      \
  template <typename T, typename = metile_for_lanes<T>>                                        \
  METILE_INLINE T name(                                                                        \
      T data, type_identity_t<T> filling, ushort delta, ushort modulo = width, METILE_HERE) {  \
    return metile_exchanged<functor>(#name, data, filling, delta, modulo, width, line, column); \
  }
METILE_FILL(simd_shuffle_and_fill_down, metile_fill_down, 32)
METILE_FILL(simd_shuffle_and_fill_up, metile_fill_up, 32)
METILE_FILL(quad_shuffle_and_fill_down, metile_fill_down, 4)
METILE_FILL(quad_shuffle_and_fill_up, metile_fill_up, 4)
template <typename T, typename = metile_for_lanes<T>>
METILE_INLINE T simd_broadcast_first(T data, METILE_HERE) {
  return metile_exchanged<metile_first>(
      "simd_broadcast_first", data, data, 0, 32, 32, line, column);
}
#undef METILE_FILL

}  // namespace metal
