// Vectors. Elements keep their own addresses; no vector converts to another type implicitly.
#pragma once

#include "bfloat.h"
#include "swizzle.h"

namespace metal {

template <typename T, int N>
struct vec;
template <typename T, int N>
struct packed_vec;

template <typename A>
struct metile_components {
  static constexpr int value = is_arithmetic_v<decay_t<A>> ? 1 : 0;
};
template <typename T, int N>
struct metile_components<vec<T, N>> {
  static constexpr int value = N;
};
template <typename T, int N>
struct metile_components<packed_vec<T, N>> {
  static constexpr int value = N;
};
template <typename... A>
inline constexpr int metile_count = (0 + ... + metile_components<decay_t<A>>::value);

template <typename V, typename A>
METILE_INLINE constexpr void metile_fill(V& out, int& at, const A& value) {
  using T = typename V::metile_element;
  if constexpr (is_arithmetic_v<A>) {
    out.metile_data[at++] = T(value);
  } else {
    for (int i = 0; i < metile_components<A>::value; ++i) {
      out.metile_data[at++] = T(value.metile_data[i]);
    }
  }
}

#define METILE_VEC_BINARY(op)                                         \
  METILE_INLINE friend constexpr vec operator op(vec a, vec b) {      \
    vec out{};                                                        \
    for (int i = 0; i < metile_size; ++i) {                           \
      out.metile_data[i] = T(a.metile_data[i] op b.metile_data[i]);   \
    }                                                                 \
    return out;                                                       \
  }                                                                   \
  METILE_INLINE friend vec& operator op##=(vec& a, vec b) {           \
    return a = a op b;                                                \
  }
#define METILE_VEC_COMPARE(op)                                                      \
  METILE_INLINE friend constexpr vec<bool, metile_size> operator op(vec a, vec b) { \
    vec<bool, metile_size> out{};                                                   \
    for (int i = 0; i < metile_size; ++i) {                                         \
      out.metile_data[i] = a.metile_data[i] op b.metile_data[i];                    \
    }                                                                               \
    return out;                                                                     \
  }

// A trivial copy checks no alignment; in checked kernels each copy is a call, whose operands are
// references and so are checked.
#ifdef METILE_CHECK_COPIES
#define METILE_VEC_COPY(N)                                       \
  METILE_INLINE constexpr vec(const vec& other) : metile_data{} { \
    for (int i = 0; i < N; ++i) {                                \
      metile_data[i] = other.metile_data[i];                     \
    }                                                            \
  }                                                              \
  METILE_INLINE constexpr vec& operator=(const vec& other) {     \
    for (int i = 0; i < N; ++i) {                                \
      metile_data[i] = other.metile_data[i];                     \
    }                                                            \
    return *this;                                                \
  }
#else
#define METILE_VEC_COPY(N)
#endif

#define METILE_VEC_COMMON(N)                                                                   \
  using metile_element = T;                                                                    \
  static constexpr int metile_size = N;                                                        \
  vec() = default;                                                                             \
  METILE_VEC_COPY(N)                                                                           \
  template <typename S, typename = enable_if_t<is_arithmetic_v<S>>>                            \
  METILE_INLINE constexpr vec(S value) : metile_data{} {                                       \
    for (int i = 0; i < N; ++i) {                                                              \
      metile_data[i] = T(value);                                                               \
    }                                                                                          \
  }                                                                                            \
  template <typename A, typename B, typename... C,                                             \
            typename = enable_if_t<metile_count<A, B, C...> == N>>                             \
  METILE_INLINE constexpr vec(const A& a, const B& b, const C&... c) : metile_data{} {         \
    int at = 0;                                                                                \
    metile_fill(*this, at, a);                                                                 \
    metile_fill(*this, at, b);                                                                 \
    (metile_fill(*this, at, c), ...);                                                          \
  }                                                                                            \
  template <typename U>                                                                        \
  METILE_INLINE constexpr explicit vec(const vec<U, N>& other) : metile_data{} {               \
    for (int i = 0; i < N; ++i) {                                                              \
      metile_data[i] = T(other.metile_data[i]);                                                \
    }                                                                                          \
  }                                                                                            \
  METILE_INLINE constexpr T& operator[](size_t i) {                                            \
    return metile_data[i];                                                                     \
  }                                                                                            \
  METILE_INLINE constexpr const T& operator[](size_t i) const {                                \
    return metile_data[i];                                                                     \
  }                                                                                            \
  METILE_INLINE constexpr vec operator-() const {                                              \
    vec out{};                                                                                 \
    for (int i = 0; i < N; ++i) {                                                              \
      out.metile_data[i] = T(-metile_data[i]);                                                 \
    }                                                                                          \
    return out;                                                                                \
  }                                                                                            \
  METILE_INLINE constexpr vec operator+() const {                                              \
    return *this;                                                                              \
  }                                                                                            \
  METILE_INLINE constexpr vec operator~() const {                                              \
    vec out{};                                                                                 \
    for (int i = 0; i < N; ++i) {                                                              \
      out.metile_data[i] = T(~metile_data[i]);                                                 \
    }                                                                                          \
    return out;                                                                                \
  }                                                                                            \
  METILE_INLINE constexpr vec<bool, N> operator!() const {                                     \
    vec<bool, N> out{};                                                                        \
    for (int i = 0; i < N; ++i) {                                                              \
      out.metile_data[i] = !metile_data[i];                                                    \
    }                                                                                          \
    return out;                                                                                \
  }                                                                                            \
  METILE_INLINE vec& operator++() {                                                            \
    return *this = *this + vec(1);                                                             \
  }                                                                                            \
  METILE_INLINE vec& operator--() {                                                            \
    return *this = *this - vec(1);                                                             \
  }                                                                                            \
  METILE_VEC_BINARY(+)                                                                         \
  METILE_VEC_BINARY(-)                                                                         \
  METILE_VEC_BINARY(*)                                                                         \
  METILE_VEC_BINARY(/)                                                                         \
  METILE_VEC_BINARY(%)                                                                         \
  METILE_VEC_BINARY(&)                                                                         \
  METILE_VEC_BINARY(|)                                                                         \
  METILE_VEC_BINARY(^)                                                                         \
  METILE_VEC_BINARY(<<)                                                                        \
  METILE_VEC_BINARY(>>)                                                                        \
  METILE_VEC_COMPARE(<)                                                                        \
  METILE_VEC_COMPARE(<=)                                                                       \
  METILE_VEC_COMPARE(>)                                                                        \
  METILE_VEC_COMPARE(>=)                                                                       \
  METILE_VEC_COMPARE(==)                                                                       \
  METILE_VEC_COMPARE(!=)                                                                       \
  METILE_VEC_COMPARE(&&)                                                                       \
  METILE_VEC_COMPARE(||)

template <typename T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  union {
    T metile_data[2];
    struct {
      T x, y;
    };
    struct {
      T r, g;
    };
  };
  METILE_VEC_COMMON(2)
  METILE_SWIZZLES(2)
};

template <typename T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  union {
    T metile_data[3];
    struct {
      T x, y, z;
    };
    struct {
      T r, g, b;
    };
  };
  METILE_VEC_COMMON(3)
  METILE_SWIZZLES(3)
};

template <typename T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  union {
    T metile_data[4];
    struct {
      T x, y, z, w;
    };
    struct {
      T r, g, b, a;
    };
  };
  METILE_VEC_COMMON(4)
  METILE_SWIZZLES(4)
};

// As vec in memory, without its alignment.
#define METILE_PACKED_COMMON(N)                                              \
  using metile_element = T;                                                  \
  static constexpr int metile_size = N;                                      \
  packed_vec() = default;                                                    \
  METILE_INLINE constexpr packed_vec(const vec<T, N>& v) : metile_data{} {   \
    for (int i = 0; i < N; ++i) {                                            \
      metile_data[i] = v.metile_data[i];                                     \
    }                                                                        \
  }                                                                          \
  template <typename... A, typename = enable_if_t<                           \
      (sizeof...(A) > 1 && metile_count<A...> == N) ||                       \
      (sizeof...(A) == 1 && metile_count<A...> == 1)>>                       \
  METILE_INLINE constexpr packed_vec(const A&... a)                          \
      : packed_vec(vec<T, N>(a...)) {}                                       \
  METILE_INLINE constexpr operator vec<T, N>() const {                       \
    vec<T, N> out{};                                                         \
    for (int i = 0; i < N; ++i) {                                            \
      out.metile_data[i] = metile_data[i];                                   \
    }                                                                        \
    return out;                                                              \
  }                                                                          \
  METILE_INLINE constexpr T& operator[](size_t i) {                          \
    return metile_data[i];                                                   \
  }                                                                          \
  METILE_INLINE constexpr const T& operator[](size_t i) const {              \
    return metile_data[i];                                                   \
  }                                                                          \
  METILE_PACKED_OP(N, +)                                                     \
  METILE_PACKED_OP(N, -)                                                     \
  METILE_PACKED_OP(N, *)                                                     \
  METILE_PACKED_OP(N, /)
#define METILE_PACKED_OP(N, op)                                                       \
  METILE_INLINE friend vec<T, N> operator op(packed_vec a, packed_vec b) {            \
    return vec<T, N>(a) op vec<T, N>(b);                                              \
  }                                                                                   \
  METILE_INLINE friend vec<T, N> operator op(packed_vec a, vec<T, N> b) {             \
    return vec<T, N>(a) op b;                                                         \
  }                                                                                   \
  METILE_INLINE friend vec<T, N> operator op(vec<T, N> a, packed_vec b) {             \
    return a op vec<T, N>(b);                                                         \
  }                                                                                   \
  template <typename S, typename = enable_if_t<is_arithmetic_v<S>>>                   \
  METILE_INLINE friend vec<T, N> operator op(packed_vec a, S b) {                     \
    return vec<T, N>(a) op vec<T, N>(b);                                              \
  }                                                                                   \
  template <typename S, typename = enable_if_t<is_arithmetic_v<S>>>                   \
  METILE_INLINE friend vec<T, N> operator op(S a, packed_vec b) {                     \
    return vec<T, N>(a) op vec<T, N>(b);                                              \
  }                                                                                   \
  template <typename S>                                                               \
  METILE_INLINE friend packed_vec& operator op##=(packed_vec& a, const S& b) {        \
    return a = packed_vec(vec<T, N>(a) op vec<T, N>(b));                              \
  }

template <typename T>
struct packed_vec<T, 2> {
  union {
    T metile_data[2];
    struct {
      T x, y;
    };
  };
  METILE_PACKED_COMMON(2)
};
template <typename T>
struct packed_vec<T, 3> {
  union {
    T metile_data[3];
    struct {
      T x, y, z;
    };
  };
  METILE_PACKED_COMMON(3)
};
template <typename T>
struct packed_vec<T, 4> {
  union {
    T metile_data[4];
    struct {
      T x, y, z, w;
    };
  };
  METILE_PACKED_COMMON(4)
};
#undef METILE_VEC_BINARY
#undef METILE_VEC_COMPARE
#undef METILE_VEC_COMMON
#undef METILE_VEC_COPY
#undef METILE_PACKED_COMMON
#undef METILE_PACKED_OP

template <typename V>
struct metile_vector_of {
  using type = void;
};
template <typename T, int N>
struct metile_vector_of<vec<T, N>> {
  using type = T;
};
// The element type of a vector, void of anything else.
template <typename V>
using metile_element_of = typename metile_vector_of<V>::type;

}  // namespace metal

#define METILE_VECTOR_NAMES(T)                \
  using T##2 = metal::vec<T, 2>;              \
  using T##3 = metal::vec<T, 3>;              \
  using T##4 = metal::vec<T, 4>;              \
  using packed_##T##2 = metal::packed_vec<T, 2>; \
  using packed_##T##3 = metal::packed_vec<T, 3>; \
  using packed_##T##4 = metal::packed_vec<T, 4>;
#define METILE_ALL_VECTOR_NAMES \
  METILE_VECTOR_NAMES(bool)     \
  METILE_VECTOR_NAMES(char)     \
  METILE_VECTOR_NAMES(uchar)    \
  METILE_VECTOR_NAMES(short)    \
  METILE_VECTOR_NAMES(ushort)   \
  METILE_VECTOR_NAMES(int)      \
  METILE_VECTOR_NAMES(uint)     \
  METILE_VECTOR_NAMES(long)     \
  METILE_VECTOR_NAMES(ulong)    \
  METILE_VECTOR_NAMES(half)     \
  METILE_VECTOR_NAMES(bfloat)   \
  METILE_VECTOR_NAMES(float)
METILE_ALL_VECTOR_NAMES
namespace metal {
METILE_ALL_VECTOR_NAMES
using ::bfloat;
using ::half;
using ::uchar;
using ::uint;
using ::ulong;
using ::ushort;
using ::size_t;
using ::ptrdiff_t;
using ::int8_t;
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::uint8_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
}  // namespace metal
#undef METILE_ALL_VECTOR_NAMES
#undef METILE_VECTOR_NAMES
