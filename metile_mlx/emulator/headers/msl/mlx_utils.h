// What MLX puts before the text of a custom kernel, with the same names and meaning.
#pragma once

#include "mlx_complex.h"

namespace mlx {
struct os_log {
  constexpr os_log(const char*, const char*) {}
  template <typename... A>
  void log_debug(const char*, A...) const {}
};
}  // namespace mlx

#define MLX_MTL_PRAGMA_UNROLL _Pragma("clang loop unroll(full)")

template <typename U>
struct WorkPerThread {
  static_assert(sizeof(U) <= 8, "Type too large");
  static constexpr int n = 8 / sizeof(U);
};

// Infinite where the type has infinity; the finite extremes beside it.
template <typename U>
struct Limits {
  static constexpr U max = metal::numeric_limits<U>::max();
  static constexpr U min = metal::numeric_limits<U>::min();
  static constexpr U finite_max = max;
  static constexpr U finite_min = min;
};
template <typename U>
struct metile_float_limits {
  static constexpr U max = metal::numeric_limits<U>::infinity();
  static constexpr U min = -metal::numeric_limits<U>::infinity();
  static constexpr U finite_max = metal::numeric_limits<U>::max();
  static constexpr U finite_min = -metal::numeric_limits<U>::max();
};
template <>
struct Limits<float> : metile_float_limits<float> {};
template <>
struct Limits<half> : metile_float_limits<half> {};
template <>
struct Limits<bfloat16_t> : metile_float_limits<bfloat16_t> {};
template <>
struct Limits<bool> {
  static constexpr bool max = true;
  static constexpr bool min = false;
};
template <typename T>
struct Limits<complex_t<T>> {
  static constexpr complex_t<T> max = complex_t<T>(
      metal::numeric_limits<T>::infinity(), metal::numeric_limits<T>::infinity());
  static constexpr complex_t<T> min = complex_t<T>(
      -metal::numeric_limits<T>::infinity(), -metal::numeric_limits<T>::infinity());
};

// Where element number `elem` of an array of this shape is, in elements.
template <typename IdxT = int64_t>
METAL_FUNC IdxT elem_to_loc(IdxT elem, const int* shape, const int64_t* strides, int ndim) {
  IdxT loc = 0;
  for (int i = ndim - 1; i >= 0 && elem > 0; --i) {
    loc += (elem % shape[i]) * IdxT(strides[i]);
    elem /= shape[i];
  }
  return loc;
}
// The same for a position whose x and y are the last two coordinates.
template <typename IdxT = int64_t>
METAL_FUNC IdxT elem_to_loc(uint3 elem, const int* shape, const int64_t* strides, int ndim) {
  IdxT loc = elem.x * IdxT(strides[ndim - 1]) + elem.y * IdxT(strides[ndim - 2]);
  for (int d = ndim - 3; d >= 0; --d) {
    loc += (elem.z % shape[d]) * IdxT(strides[d]);
    elem.z /= shape[d];
  }
  return loc;
}
template <typename IdxT = int64_t>
METAL_FUNC IdxT elem_to_loc_1(uint elem, const int64_t& stride) {
  return elem * IdxT(stride);
}
template <typename IdxT = int64_t>
METAL_FUNC IdxT elem_to_loc_2(uint2 elem, const int64_t strides[2]) {
  return elem.x * IdxT(strides[1]) + elem.y * IdxT(strides[0]);
}
template <typename IdxT = int64_t>
METAL_FUNC IdxT elem_to_loc_3(uint3 elem, const int64_t strides[3]) {
  return elem.x * IdxT(strides[2]) + elem.y * IdxT(strides[1]) + elem.z * IdxT(strides[0]);
}
template <typename IdxT = int64_t>
METAL_FUNC vec<IdxT, 2> elem_to_loc_2_nd(
    uint3 elem, const int* shape, const int64_t* a_strides, const int64_t* b_strides, int ndim) {
  return {elem_to_loc<IdxT>(elem, shape, a_strides, ndim),
          elem_to_loc<IdxT>(elem, shape, b_strides, ndim)};
}
template <typename IdxT = int64_t>
METAL_FUNC vec<IdxT, 3> elem_to_loc_3_nd(
    uint3 elem, const int* shape, const int64_t* a_strides, const int64_t* b_strides,
    const int64_t* c_strides, int ndim) {
  return {elem_to_loc<IdxT>(elem, shape, a_strides, ndim),
          elem_to_loc<IdxT>(elem, shape, b_strides, ndim),
          elem_to_loc<IdxT>(elem, shape, c_strides, ndim)};
}

// Walks over the elements in order, keeping the location.
template <int DIM, typename OffsetT = size_t, bool General = true>
struct LoopedElemToLoc {
  int dim;
  OffsetT offset{0};
  OffsetT metile_element{0};

  LoopedElemToLoc(int dim) : dim(dim) {}
  void next(const int* shape, const int64_t* strides) {
    next(1, shape, strides);
  }
  void next(int n, const int* shape, const int64_t* strides) {
    metile_element += OffsetT(n);
    offset = elem_to_loc<OffsetT>(metile_element, shape, strides, dim);
  }
  OffsetT location() {
    return offset;
  }
};

template <typename T, typename U>
inline T ceildiv(T N, U M) {
  return (N + M - 1) / M;
}

inline float log1p(float x) {
  const float up = 1.0f + x;
  if (up == Limits<float>::max) {
    return Limits<float>::max;
  }
  return up == 1.0f ? x : x * (metal::log(up) / (up - 1.0f));
}
inline bfloat16_t log1p(bfloat16_t x) {
  return bfloat16_t(log1p(float(x)));
}
inline complex64_t log1p(complex64_t in) {
  const float x = in.real, y = in.imag;
  const float theta = metal::atan2(y, x + 1.0f);
  if (metal::sqrt(x * x + y * y) < 0.5f) {
    const float r = x * (2.0f + x) + y * y;
    return r == 0.0f ? complex64_t(x, theta) : complex64_t(0.5f * log1p(r), theta);
  }
  return {metal::log(metal::sqrt((x + 1.0f) * (x + 1.0f) + y * y)), theta};
}
inline float hypot(float x, float y) {
  return __builtin_hypotf(x, y);
}

// Shuffles of what Metal's own overloads lack: 64-bit integers, bool, complex.
#define METILE_WIDE_SHUFFLE(name)                                              \
  inline uint64_t name(uint64_t data, uint16_t by, METILE_HERE) {              \
    return as_type<uint64_t>(metal::name(as_type<uint2>(data), by, line, column)); \
  }                                                                            \
  inline int64_t name(int64_t data, uint16_t by, METILE_HERE) {                \
    return as_type<int64_t>(metal::name(as_type<uint2>(data), by, line, column)); \
  }                                                                            \
  inline bool name(bool data, uint16_t by, METILE_HERE) {                      \
    return metal::name(uint32_t(data), by, line, column) != 0u;                \
  }                                                                            \
  inline complex64_t name(complex64_t data, uint16_t by, METILE_HERE) {        \
    return complex64_t(                                                        \
        metal::name(data.real, by, line, column), metal::name(data.imag, by, line, column)); \
  }
METILE_WIDE_SHUFFLE(simd_shuffle_down)
METILE_WIDE_SHUFFLE(simd_shuffle_up)
METILE_WIDE_SHUFFLE(simd_shuffle)
#undef METILE_WIDE_SHUFFLE
inline uint64_t simd_shuffle_and_fill_up(uint64_t data, uint64_t filling, uint16_t delta) {
  return as_type<uint64_t>(
      metal::simd_shuffle_and_fill_up(as_type<uint2>(data), as_type<uint2>(filling), delta));
}
inline int64_t simd_shuffle_and_fill_up(int64_t data, int64_t filling, uint16_t delta) {
  return as_type<int64_t>(
      metal::simd_shuffle_and_fill_up(as_type<uint2>(data), as_type<uint2>(filling), delta));
}
inline bool simd_shuffle_and_fill_up(bool data, bool filling, uint16_t delta) {
  return metal::simd_shuffle_and_fill_up(uint32_t(data), uint32_t(filling), delta) != 0u;
}
inline complex64_t simd_shuffle_and_fill_up(
    complex64_t data, complex64_t filling, uint16_t delta) {
  return complex64_t(
      metal::simd_shuffle_and_fill_up(data.real, filling.real, delta),
      metal::simd_shuffle_and_fill_up(data.imag, filling.imag, delta));
}
