// metal_integer, metal_common, metal_relational, metal_geometric.
#pragma once

#include "functions.h"

namespace metal {

#define METILE_INTEGER_TYPES(M) \
  M(char) M(int8_t) M(uchar) M(short) M(ushort) M(int) M(uint) M(long) M(ulong)
// Concrete overloads: mixed arguments are ambiguous as in Metal.
#define METILE_INTEGER(T)                                                                   \
  METILE_INLINE constexpr T max(T x, T y) { return x < y ? y : x; }                         \
  METILE_INLINE constexpr T min(T x, T y) { return y < x ? y : x; }                         \
  METILE_INLINE constexpr T clamp(T x, T low, T high) { return min(max(x, low), high); }    \
  METILE_INLINE constexpr T max3(T x, T y, T z) { return max(x, max(y, z)); }               \
  METILE_INLINE constexpr T min3(T x, T y, T z) { return min(x, min(y, z)); }               \
  METILE_INLINE constexpr T median3(T x, T y, T z) {                                        \
    return max(min(x, y), min(max(x, y), z));                                               \
  }                                                                                         \
  METILE_INLINE constexpr T abs(T x) { return x < T(0) ? T(-x) : x; }                       \
  METILE_INLINE constexpr make_unsigned_t<T> absdiff(T x, T y) {                            \
    using U = make_unsigned_t<T>;                                                           \
    return x < y ? U(U(y) - U(x)) : U(U(x) - U(y));                                         \
  }                                                                                         \
  METILE_INLINE T addsat(T x, T y) {                                                        \
    T out;                                                                                  \
    if (!__builtin_add_overflow(x, y, &out)) return out;                                    \
    return is_signed_v<T> && x < T(0) ? numeric_limits<T>::min() : numeric_limits<T>::max(); \
  }                                                                                         \
  METILE_INLINE T subsat(T x, T y) {                                                        \
    T out;                                                                                  \
    if (!__builtin_sub_overflow(x, y, &out)) return out;                                    \
    return !is_signed_v<T> || x < T(0) ? numeric_limits<T>::min() : numeric_limits<T>::max(); \
  }                                                                                         \
  METILE_INLINE constexpr T popcount(T x) {                                                 \
    return T(__builtin_popcountl(ulong(make_unsigned_t<T>(x))));                            \
  }                                                                                         \
  METILE_INLINE constexpr T clz(T x) {                                                      \
    const ulong u = ulong(make_unsigned_t<T>(x));                                           \
    return T(u ? __builtin_clzl(u) - (64 - int(sizeof(T)) * 8) : int(sizeof(T)) * 8);       \
  }                                                                                         \
  METILE_INLINE constexpr T ctz(T x) {                                                      \
    const ulong u = ulong(make_unsigned_t<T>(x));                                           \
    return T(u ? __builtin_ctzl(u) : int(sizeof(T)) * 8);                                   \
  }                                                                                         \
  METILE_INLINE constexpr T reverse_bits(T x) {                                             \
    return T(make_unsigned_t<T>(                                                            \
        __builtin_bitreverse64(ulong(make_unsigned_t<T>(x))) >> (64 - sizeof(T) * 8)));     \
  }                                                                                         \
  METILE_INLINE constexpr T rotate(T x, T y) {                                              \
    using U = make_unsigned_t<T>;                                                           \
    constexpr uint bits = sizeof(T) * 8;                                                    \
    const uint by = uint(U(y)) % bits;                                                      \
    return T(U(U(x) << by) | U(by ? U(x) >> (bits - by) : U(0)));                           \
  }                                                                                         \
  METILE_INLINE constexpr T hadd(T x, T y) { return T((x >> 1) + (y >> 1) + (x & y & T(1))); } \
  METILE_INLINE constexpr T rhadd(T x, T y) { return T((x >> 1) + (y >> 1) + ((x | y) & T(1))); } \
  METILE_INLINE constexpr T mulhi(T x, T y) {                                               \
    using W = conditional_t<is_signed_v<T>, __int128, unsigned __int128>;                   \
    return T((W(x) * W(y)) >> (sizeof(T) * 8));                                             \
  }                                                                                         \
  METILE_INLINE constexpr T madhi(T x, T y, T z) { return T(mulhi(x, y) + z); }             \
  METILE_INLINE constexpr T extract_bits(T x, uint offset, uint bits) {                     \
    using U = make_unsigned_t<T>;                                                           \
    constexpr uint width = sizeof(T) * 8;                                                   \
    if (!bits) return T(0);                                                                 \
    const U up = U(U(x) << (width - offset - bits));                                        \
    return T(T(up) >> (width - bits));                                                      \
  }                                                                                         \
  METILE_INLINE constexpr T insert_bits(T base, T insert, uint offset, uint bits) {         \
    using U = make_unsigned_t<T>;                                                           \
    if (!bits) return base;                                                                 \
    const U mask = U(U(numeric_limits<U>::max() >> (sizeof(T) * 8 - bits)) << offset);      \
    return T(U(U(base) & U(~mask)) | U(U(U(insert) << offset) & mask));                     \
  }
METILE_INTEGER_TYPES(METILE_INTEGER)
#undef METILE_INTEGER

METILE_INLINE int mul24(int x, int y) {
  return x * y;
}
METILE_INLINE uint mul24(uint x, uint y) {
  return x * y;
}
METILE_INLINE int mad24(int x, int y, int z) {
  return x * y + z;
}
METILE_INLINE uint mad24(uint x, uint y, uint z) {
  return x * y + z;
}
METILE_INLINE int mad(int x, int y, int z) {
  return x * y + z;
}

// The same for vectors of integers.
#define METILE_INTEGER_VEC1(name)                                                        \
  template <typename T, int N, typename = enable_if_t<is_integral_v<T>>, typename = void> \
  METILE_INLINE auto name(vec<T, N> x) -> vec<decltype(name(x.x)), N> {                  \
    vec<decltype(name(x.x)), N> out{};                                                   \
    for (int i = 0; i < N; ++i) out.metile_data[i] = name(x.metile_data[i]);             \
    return out;                                                                          \
  }
#define METILE_INTEGER_VEC2(name)                                                            \
  template <typename T, int N, typename = enable_if_t<is_integral_v<T>>, typename = void>     \
  METILE_INLINE auto name(vec<T, N> x, type_identity_t<vec<T, N>> y)                         \
      -> vec<decltype(name(x.x, x.x)), N> {                                                  \
    vec<decltype(name(x.x, x.x)), N> out{};                                                  \
    for (int i = 0; i < N; ++i) out.metile_data[i] = name(x.metile_data[i], y.metile_data[i]); \
    return out;                                                                              \
  }
METILE_INTEGER_VEC1(abs)
METILE_INTEGER_VEC1(popcount)
METILE_INTEGER_VEC1(clz)
METILE_INTEGER_VEC1(ctz)
METILE_INTEGER_VEC1(reverse_bits)
METILE_INTEGER_VEC2(max)
METILE_INTEGER_VEC2(min)
METILE_INTEGER_VEC2(addsat)
METILE_INTEGER_VEC2(subsat)
METILE_INTEGER_VEC2(absdiff)
METILE_INTEGER_VEC2(mulhi)
METILE_INTEGER_VEC2(rotate)
#undef METILE_INTEGER_VEC1
#undef METILE_INTEGER_VEC2
template <typename T, int N, typename = enable_if_t<is_integral_v<T>>, typename = void>
METILE_INLINE vec<T, N> clamp(
    vec<T, N> x, type_identity_t<vec<T, N>> low, type_identity_t<vec<T, N>> high) {
  return min(max(x, low), high);
}

// select(a, b, c): b where c is true (for vectors of c's element type: its highest bit).
template <typename T, typename = enable_if_t<is_arithmetic_v<T>>>
METILE_INLINE T select(T a, T b, bool c) {
  return c ? b : a;
}
template <typename T, int N>
METILE_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
  vec<T, N> out{};
  for (int i = 0; i < N; ++i) {
    out.metile_data[i] = c.metile_data[i] ? b.metile_data[i] : a.metile_data[i];
  }
  return out;
}
template <typename T, int N>
METILE_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, bool c) {
  return c ? b : a;
}
METILE_INLINE bool all(bool x) {
  return x;
}
METILE_INLINE bool any(bool x) {
  return x;
}
template <int N>
METILE_INLINE bool all(vec<bool, N> x) {
  bool out = true;
  for (int i = 0; i < N; ++i) {
    out = out && x.metile_data[i];
  }
  return out;
}
template <int N>
METILE_INLINE bool any(vec<bool, N> x) {
  bool out = false;
  for (int i = 0; i < N; ++i) {
    out = out || x.metile_data[i];
  }
  return out;
}

template <typename T, int N>
METILE_INLINE T dot(vec<T, N> x, vec<T, N> y) {
  T sum = T(x.metile_data[0] * y.metile_data[0]);
  for (int i = 1; i < N; ++i) {
    sum = T(sum + x.metile_data[i] * y.metile_data[i]);
  }
  return sum;
}
template <typename T, int N>
METILE_INLINE T length_squared(vec<T, N> x) {
  return dot(x, x);
}
template <typename T, int N>
METILE_INLINE T length(vec<T, N> x) {
  return sqrt(dot(x, x));
}
template <typename T, int N>
METILE_INLINE T distance(vec<T, N> x, vec<T, N> y) {
  return length(x - y);
}
template <typename T, int N>
METILE_INLINE T distance_squared(vec<T, N> x, vec<T, N> y) {
  return length_squared(x - y);
}
template <typename T, int N>
METILE_INLINE vec<T, N> normalize(vec<T, N> x) {
  return x * rsqrt(dot(x, x));
}
template <typename T>
METILE_INLINE vec<T, 3> cross(vec<T, 3> x, vec<T, 3> y) {
  return {T(x.y * y.z - x.z * y.y), T(x.z * y.x - x.x * y.z), T(x.x * y.y - x.y * y.x)};
}

}  // namespace metal
