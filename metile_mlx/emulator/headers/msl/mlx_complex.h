// The complex numbers of MLX's prelude.
#pragma once

#include "all.h"

using namespace metal;

typedef bfloat bfloat16_t;
typedef half float16_t;

inline uint16_t bfloat16_to_uint16(const bfloat16_t x) {
  return as_type<uint16_t>(x);
}
inline bfloat16_t uint16_to_bfloat16(const uint16_t x) {
  return as_type<bfloat16_t>(x);
}

template <typename T>
struct complex_t;
template <typename T>
static constexpr bool is_complex_v = false;
template <typename T>
static constexpr bool is_complex_v<complex_t<T>> = true;
template <typename From, typename To>
static constexpr bool metile_is_real = is_arithmetic_v<From> && is_arithmetic_v<To>;

template <typename T>
struct complex_t {
  using value_type = T;
  T real;
  T imag;

  constexpr complex_t() : real(0), imag(0) {}
  constexpr complex_t(T real, T imag) : real(real), imag(imag) {}
  template <typename U, typename = enable_if_t<is_arithmetic_v<U>>>
  constexpr complex_t(U x) : real(static_cast<T>(x)), imag(static_cast<T>(0)) {}
  template <typename U, typename = enable_if_t<!is_same_v<U, T>>>
  constexpr complex_t(complex_t<U> x)
      : real(static_cast<T>(x.real)), imag(static_cast<T>(x.imag)) {}
  constexpr complex_t(vec<T, 2> v) : real(v.metile_data[0]), imag(v.metile_data[1]) {}
  constexpr operator vec<T, 2>() const {
    return vec<T, 2>(real, imag);
  }
  template <typename U, typename = enable_if_t<is_arithmetic_v<U>>>
  constexpr operator U() const {
    return static_cast<U>(real);
  }
};

using complex32_t = complex_t<half>;
using complex64_t = complex_t<float>;

template <typename T>
constexpr complex_t<T> operator-(complex_t<T> x) {
  return {-x.real, -x.imag};
}
template <typename T>
constexpr bool operator>=(complex_t<T> a, complex_t<T> b) {
  return a.real > b.real || (a.real == b.real && a.imag >= b.imag);
}
template <typename T>
constexpr bool operator>(complex_t<T> a, complex_t<T> b) {
  return a.real > b.real || (a.real == b.real && a.imag > b.imag);
}
template <typename T>
constexpr bool operator<=(complex_t<T> a, complex_t<T> b) {
  return b >= a;
}
template <typename T>
constexpr bool operator<(complex_t<T> a, complex_t<T> b) {
  return b > a;
}
template <typename T>
constexpr bool operator==(complex_t<T> a, complex_t<T> b) {
  return a.real == b.real && a.imag == b.imag;
}
template <typename T>
constexpr bool operator!=(complex_t<T> a, complex_t<T> b) {
  return !(a == b);
}
template <typename T>
constexpr complex_t<T> operator+(complex_t<T> a, complex_t<T> b) {
  return {a.real + b.real, a.imag + b.imag};
}
template <typename T>
constexpr complex_t<T> operator-(complex_t<T> a, complex_t<T> b) {
  return {a.real - b.real, a.imag - b.imag};
}
template <typename T>
constexpr complex_t<T> operator*(complex_t<T> a, complex_t<T> b) {
  return {a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
}
template <typename T>
constexpr complex_t<T> operator/(complex_t<T> a, complex_t<T> b) {
  const T scale = b.real * b.real + b.imag * b.imag;
  return {
      (a.real * b.real + a.imag * b.imag) / scale, (a.imag * b.real - a.real * b.imag) / scale};
}
template <typename T>
constexpr complex_t<T> operator%(complex_t<T> a, complex_t<T> b) {
  T real = a.real - b.real * metal::trunc(a.real / b.real);
  T imag = a.imag - b.imag * metal::trunc(a.imag / b.imag);
  real += real != 0 && (real < 0) != (b.real < 0) ? b.real : T(0);
  imag += imag != 0 && (imag < 0) != (b.imag < 0) ? b.imag : T(0);
  return {real, imag};
}
#define METILE_COMPLEX_MIXED(op)                                                       \
  template <typename T, typename U, enable_if_t<metile_is_real<U, T>, bool> = true>    \
  constexpr complex_t<T> operator op(U a, complex_t<T> b) {                            \
    return complex_t<T>(a) op b;                                                       \
  }                                                                                    \
  template <typename T, typename U, enable_if_t<metile_is_real<U, T>, bool> = true>    \
  constexpr complex_t<T> operator op(complex_t<T> a, U b) {                            \
    return a op complex_t<T>(b);                                                       \
  }                                                                                    \
  template <typename T>                                                                \
  constexpr complex_t<T>& operator op##=(complex_t<T>& a, complex_t<T> b) {            \
    return a = a op b;                                                                 \
  }
METILE_COMPLEX_MIXED(+)
METILE_COMPLEX_MIXED(-)
METILE_COMPLEX_MIXED(*)
METILE_COMPLEX_MIXED(/)
#undef METILE_COMPLEX_MIXED
