// numeric_limits and the constants of metal_stdlib.
#pragma once

#include "vec.h"

#define METAL_FUNC inline __attribute__((always_inline))
#define METAL_CONST const
#define METAL_ASM

#define INFINITY __builtin_inff()
#define HUGE_VALF __builtin_inff()
#define HUGE_VALH ((half)__builtin_inff())
#define NAN __builtin_nanf("")
#define MAXFLOAT 0x1.fffffep127f
#define MAXHALF ((half)65504.0f)
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1p-126f
#define FLT_EPSILON 0x1p-23f
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_MAX_EXP 128
#define FLT_MIN_EXP (-125)
#define FLT_RADIX 2
#define HALF_MAX ((half)65504.0f)
#define HALF_MIN ((half)0x1p-14f)
#define HALF_EPSILON ((half)0x1p-10f)
#define HALF_DIG 3
#define HALF_MANT_DIG 11
#define CHAR_BIT 8
#define CHAR_MAX 127
#define CHAR_MIN (-128)
#define SCHAR_MAX 127
#define SCHAR_MIN (-128)
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 9223372036854775807l
#define LONG_MIN (-9223372036854775807l - 1)
#define ULONG_MAX 18446744073709551615ul

#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.43429448190325182765f
#define M_LN2_F 0.69314718055994530942f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.78539816339744830962f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_E_H ((half)M_E_F)
#define M_LOG2E_H ((half)M_LOG2E_F)
#define M_LN2_H ((half)M_LN2_F)
#define M_PI_H ((half)M_PI_F)
#define M_SQRT2_H ((half)M_SQRT2_F)

namespace metal {

template <typename T>
struct numeric_limits {
  static constexpr bool is_specialized = false;
};

template <typename T>
struct metile_integer_limits {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_exact = true;
  static constexpr bool is_signed = __is_signed(T);
  static constexpr bool has_infinity = false;
  static constexpr bool has_quiet_NaN = false;
  static constexpr int radix = 2;
  static constexpr int digits = int(sizeof(T)) * 8 - (is_signed ? 1 : 0);
  static constexpr T metile_top = T((1ul << (digits - 1)) - 1ul + (1ul << (digits - 1)));
  static constexpr T max() {
    return metile_top;
  }
  static constexpr T min() {
    return is_signed ? T(-metile_top - 1) : T(0);
  }
  static constexpr T lowest() {
    return min();
  }
  static constexpr T infinity() {
    return T(0);
  }
  static constexpr T quiet_NaN() {
    return T(0);
  }
  static constexpr T epsilon() {
    return T(0);
  }
};
#define METILE_LIMITS(T) \
  template <>            \
  struct numeric_limits<T> : metile_integer_limits<T> {};
METILE_LIMITS(char)
METILE_LIMITS(signed char)
METILE_LIMITS(uchar)
METILE_LIMITS(short)
METILE_LIMITS(ushort)
METILE_LIMITS(int)
METILE_LIMITS(uint)
METILE_LIMITS(long)
METILE_LIMITS(ulong)
METILE_LIMITS(long long)
METILE_LIMITS(unsigned long long)
#undef METILE_LIMITS

template <>
struct numeric_limits<bool> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_integer = true;
  static constexpr bool is_signed = false;
  static constexpr int digits = 1;
  static constexpr bool max() {
    return true;
  }
  static constexpr bool min() {
    return false;
  }
  static constexpr bool lowest() {
    return false;
  }
};

#define METILE_FLOAT_LIMITS(T, most, least, step, tiny, precision, top_exponent, low_exponent) \
  template <>                                                                     \
  struct numeric_limits<T> {                                                      \
    static constexpr bool is_specialized = true;                                  \
    static constexpr bool is_integer = false;                                     \
    static constexpr bool is_exact = false;                                       \
    static constexpr bool is_signed = true;                                       \
    static constexpr bool has_infinity = true;                                    \
    static constexpr bool has_quiet_NaN = true;                                   \
    static constexpr int radix = 2;                                               \
    static constexpr int digits = precision;                                      \
    static constexpr int max_exponent = top_exponent;                             \
    static constexpr int min_exponent = low_exponent;                             \
    static constexpr T max() {                                                    \
      return T(most);                                                             \
    }                                                                             \
    static constexpr T min() {                                                    \
      return T(least);                                                            \
    }                                                                             \
    static constexpr T lowest() {                                                 \
      return T(-(most));                                                          \
    }                                                                             \
    static constexpr T epsilon() {                                                \
      return T(step);                                                             \
    }                                                                             \
    static constexpr T denorm_min() {                                             \
      return T(tiny);                                                             \
    }                                                                             \
    static constexpr T round_error() {                                            \
      return T(0.5f);                                                             \
    }                                                                             \
    static constexpr T infinity() {                                               \
      return T(__builtin_inff());                                                 \
    }                                                                             \
    static constexpr T quiet_NaN() {                                              \
      return T(__builtin_nanf(""));                                               \
    }                                                                             \
    static constexpr T signaling_NaN() {                                          \
      return T(__builtin_nanf(""));                                               \
    }                                                                             \
  };
METILE_FLOAT_LIMITS(float, 0x1.fffffep127f, 0x1p-126f, 0x1p-23f, 0x1p-149f, 24, 128, -125)
METILE_FLOAT_LIMITS(half, 65504.0f, 0x1p-14f, 0x1p-10f, 0x1p-24f, 11, 16, -13)
METILE_FLOAT_LIMITS(bfloat, 0x1.fep127f, 0x1p-126f, 0x1p-7f, 0x1p-133f, 8, 128, -125)
#undef METILE_FLOAT_LIMITS

template <typename T>
struct numeric_limits<const T> : numeric_limits<T> {};

}  // namespace metal
