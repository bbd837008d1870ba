// bfloat: converts to float implicitly, and from float and half only explicitly.
#pragma once

#include "traits.h"

struct bfloat;

namespace metal {

// Round to nearest even; a NaN stays one and becomes quiet.
METILE_INLINE constexpr ushort metile_bfloat_bits(float value) {
  const uint word = __builtin_bit_cast(uint, value);
  if ((word & 0x7fffffffu) > 0x7f800000u) {
    return ushort((word >> 16) | 0x40u);
  }
  return ushort((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}

template <typename T>
inline constexpr bool metile_is_builtin = is_integral_v<T> || is_same_v<T, float> || is_same_v<T, half>;

}  // namespace metal

struct bfloat {
  ushort metile_value;

  bfloat() = default;
  template <typename T, typename = metal::enable_if_t<metal::is_integral_v<T>>>
  METILE_INLINE constexpr bfloat(T value) : metile_value(metal::metile_bfloat_bits(float(value))) {}
  METILE_INLINE constexpr explicit bfloat(float value)
      : metile_value(metal::metile_bfloat_bits(value)) {}
  METILE_INLINE constexpr explicit bfloat(half value)
      : metile_value(metal::metile_bfloat_bits(float(value))) {}

  METILE_INLINE constexpr operator float() const {
    return __builtin_bit_cast(float, uint(metile_value) << 16);
  }
  METILE_INLINE constexpr bfloat operator-() const {
    bfloat result(0);
    result.metile_value = ushort(metile_value ^ 0x8000u);
    return result;
  }
  METILE_INLINE constexpr bfloat operator+() const {
    return *this;
  }
  METILE_INLINE bfloat& operator++() {
    return *this = bfloat(float(*this) + 1.0f);
  }
  METILE_INLINE bfloat operator++(int) {
    bfloat kept = *this;
    ++*this;
    return kept;
  }
};

// bfloat with bfloat or an integer is bfloat; with float or half it is float.
#define METILE_BFLOAT_BINARY(op)                                                           \
  METILE_INLINE constexpr bfloat operator op(bfloat a, bfloat b) {                         \
    return bfloat(float(a) op float(b));                                                   \
  }                                                                                        \
  template <typename T, typename = metal::enable_if_t<metal::is_integral_v<T>>>            \
  METILE_INLINE constexpr bfloat operator op(bfloat a, T b) {                              \
    return bfloat(float(a) op float(bfloat(b)));                                           \
  }                                                                                        \
  template <typename T, typename = metal::enable_if_t<metal::is_integral_v<T>>>            \
  METILE_INLINE constexpr bfloat operator op(T a, bfloat b) {                              \
    return bfloat(float(bfloat(a)) op float(b));                                           \
  }                                                                                        \
  METILE_INLINE constexpr float operator op(bfloat a, float b) {                           \
    return float(a) op b;                                                                  \
  }                                                                                        \
  METILE_INLINE constexpr float operator op(float a, bfloat b) {                           \
    return a op float(b);                                                                  \
  }                                                                                        \
  METILE_INLINE constexpr float operator op(bfloat a, half b) {                            \
    return float(a) op float(b);                                                           \
  }                                                                                        \
  METILE_INLINE constexpr float operator op(half a, bfloat b) {                            \
    return float(a) op float(b);                                                           \
  }                                                                                        \
  METILE_INLINE bfloat& operator op##=(bfloat& a, bfloat b) {                              \
    return a = a op b;                                                                     \
  }                                                                                        \
  template <typename T, typename = metal::enable_if_t<metal::metile_is_builtin<T>>>        \
  METILE_INLINE bfloat& operator op##=(bfloat& a, T b) {                                   \
    return a = bfloat(float(a) op float(b));                                               \
  }                                                                                        \
  template <typename T, typename = metal::enable_if_t<metal::is_integral_v<T> ||           \
                                                      metal::is_same_v<T, half>>>          \
  METILE_INLINE T& operator op##=(T& a, bfloat b) {                                        \
    return a = T(float(a) op float(b));                                                    \
  }
METILE_BFLOAT_BINARY(+)
METILE_BFLOAT_BINARY(-)
METILE_BFLOAT_BINARY(*)
METILE_BFLOAT_BINARY(/)
#undef METILE_BFLOAT_BINARY

#define METILE_BFLOAT_COMPARE(op)                                                          \
  METILE_INLINE constexpr bool operator op(bfloat a, bfloat b) {                           \
    return float(a) op float(b);                                                           \
  }                                                                                        \
  template <typename T, typename = metal::enable_if_t<metal::metile_is_builtin<T>>>        \
  METILE_INLINE constexpr bool operator op(bfloat a, T b) {                                \
    return float(a) op float(b);                                                           \
  }                                                                                        \
  template <typename T, typename = metal::enable_if_t<metal::metile_is_builtin<T>>>        \
  METILE_INLINE constexpr bool operator op(T a, bfloat b) {                                \
    return float(a) op float(b);                                                           \
  }
METILE_BFLOAT_COMPARE(<)
METILE_BFLOAT_COMPARE(<=)
METILE_BFLOAT_COMPARE(>)
METILE_BFLOAT_COMPARE(>=)
METILE_BFLOAT_COMPARE(==)
METILE_BFLOAT_COMPARE(!=)
#undef METILE_BFLOAT_COMPARE

namespace metal {

template <typename T>
inline constexpr bool is_floating_point_v =
    is_same_v<remove_cv_t<T>, float> || is_same_v<remove_cv_t<T>, half> ||
    is_same_v<remove_cv_t<T>, bfloat>;
template <typename T>
struct is_floating_point : bool_constant<is_floating_point_v<T>> {};
template <typename T>
inline constexpr bool is_arithmetic_v = is_integral_v<T> || is_floating_point_v<T>;
template <typename T>
struct is_arithmetic : bool_constant<is_arithmetic_v<T>> {};
template <typename T>
struct is_scalar : bool_constant<is_arithmetic_v<T> || is_pointer_v<T>> {};
template <typename T>
inline constexpr bool is_scalar_v = is_scalar<T>::value;

}  // namespace metal
