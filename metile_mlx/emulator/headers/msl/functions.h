// metal_math: floats through the C library in float; half rounds the float result once.
#pragma once

#include "numeric.h"

extern "C" {
float acosf(float); float acoshf(float); float asinf(float); float asinhf(float);
float atanf(float); float atanhf(float); float cosf(float); float coshf(float);
float expf(float); float exp2f(float); float expm1f(float); float logf(float); float log2f(float);
float log10f(float); float sinf(float); float sinhf(float); float tanf(float); float tanhf(float);
float atan2f(float, float); float powf(float, float); float fmodf(float, float);
float nextafterf(float, float); float ldexpf(float, int); float frexpf(float, int*);
double sin(double); double cos(double); double tan(double); double exp10(double);
}

namespace metal {

METILE_INLINE float metile_exp10(float x) {
  return float(__builtin_pow(double(10), double(x)));
}
// Exact where x is a multiple of one half: the argument is reduced before pi comes in.
METILE_INLINE float metile_sinpi(float x) {
  const double r = double(x) - 2 * __builtin_floor(double(x) / 2);
  return r == 0 || r == 1 ? 0.0f : float(::sin(r * 3.14159265358979323846L));
}
METILE_INLINE float metile_cospi(float x) {
  const double r = double(x) - 2 * __builtin_floor(double(x) / 2);
  return r == 0.5L || r == 1.5L ? 0.0f : float(::cos(r * 3.14159265358979323846L));
}
METILE_INLINE float metile_tanpi(float x) {
  return metile_sinpi(x) / metile_cospi(x);
}
METILE_INLINE float metile_rsqrt(float x) {
  return 1.0f / __builtin_sqrtf(x);
}
METILE_INLINE float metile_fract(float x) {
  const float f = x - __builtin_floorf(x);
  return f < 1.0f ? f : 0x1.fffffep-1f;
}
METILE_INLINE float metile_sign(float x) {
  return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? x : 0.0f;
}
METILE_INLINE float metile_fmin(float x, float y) {
  return __builtin_fminf(x, y);
}
METILE_INLINE float metile_fmax(float x, float y) {
  return __builtin_fmaxf(x, y);
}
METILE_INLINE float metile_clamp(float x, float low, float high) {
  return __builtin_fminf(__builtin_fmaxf(x, low), high);
}
METILE_INLINE float metile_saturate(float x) {
  return metile_clamp(x, 0.0f, 1.0f);
}
METILE_INLINE float metile_mix(float x, float y, float a) {
  return x + (y - x) * a;
}
METILE_INLINE float metile_step(float edge, float x) {
  return x < edge ? 0.0f : 1.0f;
}
METILE_INLINE float metile_smoothstep(float low, float high, float x) {
  const float t = metile_saturate((x - low) / (high - low));
  return t * t * (3.0f - 2.0f * t);
}
METILE_INLINE float metile_median3(float x, float y, float z) {
  return __builtin_fmaxf(__builtin_fminf(x, y), __builtin_fminf(__builtin_fmaxf(x, y), z));
}
METILE_INLINE float metile_max3(float x, float y, float z) {
  return __builtin_fmaxf(x, __builtin_fmaxf(y, z));
}
METILE_INLINE float metile_min3(float x, float y, float z) {
  return __builtin_fminf(x, __builtin_fminf(y, z));
}
METILE_INLINE float metile_divide(float x, float y) {
  return x / y;
}

#define METILE_UNARY_TABLE(M)      \
  M(acos, ::acosf)                 \
  M(acosh, ::acoshf)               \
  M(asin, ::asinf)                 \
  M(asinh, ::asinhf)               \
  M(atan, ::atanf)                 \
  M(atanh, ::atanhf)               \
  M(ceil, __builtin_ceilf)         \
  M(cos, ::cosf)                   \
  M(cosh, ::coshf)                 \
  M(cospi, metile_cospi)           \
  M(exp, ::expf)                   \
  M(exp2, ::exp2f)                 \
  M(exp10, metile_exp10)           \
  M(fabs, __builtin_fabsf)         \
  M(abs, __builtin_fabsf)          \
  M(floor, __builtin_floorf)       \
  M(fract, metile_fract)           \
  M(log, ::logf)                   \
  M(log2, ::log2f)                 \
  M(log10, ::log10f)               \
  M(rint, __builtin_rintf)         \
  M(round, __builtin_roundf)       \
  M(rsqrt, metile_rsqrt)           \
  M(saturate, metile_saturate)     \
  M(sign, metile_sign)             \
  M(sin, ::sinf)                   \
  M(sinh, ::sinhf)                 \
  M(sinpi, metile_sinpi)           \
  M(sqrt, __builtin_sqrtf)         \
  M(tan, ::tanf)                   \
  M(tanh, ::tanhf)                 \
  M(tanpi, metile_tanpi)           \
  M(trunc, __builtin_truncf)
#define METILE_BINARY_TABLE(M)     \
  M(atan2, ::atan2f)               \
  M(copysign, __builtin_copysignf) \
  M(divide, metile_divide)         \
  M(fdim, __builtin_fdimf)         \
  M(fmax, metile_fmax)             \
  M(fmin, metile_fmin)             \
  M(fmod, ::fmodf)                 \
  M(max, metile_fmax)              \
  M(min, metile_fmin)              \
  M(nextafter, ::nextafterf)       \
  M(pow, ::powf)                   \
  M(powr, ::powf)                  \
  M(step, metile_step)
#define METILE_TERNARY_TABLE(M)      \
  M(clamp, metile_clamp)             \
  M(fma, __builtin_fmaf)             \
  M(fmax3, metile_max3)              \
  M(fmedian3, metile_median3)        \
  M(fmin3, metile_min3)              \
  M(max3, metile_max3)               \
  M(median3, metile_median3)         \
  M(min3, metile_min3)               \
  M(mix, metile_mix)                 \
  M(smoothstep, metile_smoothstep)

// Scalars are concrete overloads, so that max(x, 0) with a float x is ambiguous as in Metal.
#define METILE_UNARY(name, f)                                                       \
  METILE_INLINE float name(float x) { return f(x); }                                \
  METILE_INLINE half name(half x) { return half(f(float(x))); }                     \
  METILE_INLINE bfloat name(bfloat x) { return bfloat(f(float(x))); }               \
  template <typename T, int N, typename = enable_if_t<is_floating_point_v<T>>>      \
  METILE_INLINE vec<T, N> name(vec<T, N> x) {                                       \
    vec<T, N> out{};                                                                \
    for (int i = 0; i < N; ++i) out.metile_data[i] = T(f(float(x.metile_data[i]))); \
    return out;                                                                     \
  }
#define METILE_BINARY(name, f)                                                               \
  METILE_INLINE float name(float x, float y) { return f(x, y); }                             \
  METILE_INLINE half name(half x, half y) { return half(f(float(x), float(y))); }            \
  METILE_INLINE bfloat name(bfloat x, bfloat y) { return bfloat(f(float(x), float(y))); }    \
  template <typename T, int N, typename = enable_if_t<is_floating_point_v<T>>>               \
  METILE_INLINE vec<T, N> name(vec<T, N> x, type_identity_t<vec<T, N>> y) {                  \
    vec<T, N> out{};                                                                         \
    for (int i = 0; i < N; ++i) {                                                            \
      out.metile_data[i] = T(f(float(x.metile_data[i]), float(y.metile_data[i])));           \
    }                                                                                        \
    return out;                                                                              \
  }                                                                                          \
  template <typename S, typename T, int N,                                                   \
            typename = enable_if_t<is_arithmetic_v<S> && is_floating_point_v<T>>>            \
  METILE_INLINE vec<T, N> name(S x, vec<T, N> y) {                                           \
    return name(vec<T, N>(x), y);                                                            \
  }
#define METILE_TERNARY(name, f)                                                              \
  METILE_INLINE float name(float x, float y, float z) { return f(x, y, z); }                 \
  METILE_INLINE half name(half x, half y, half z) {                                          \
    return half(f(float(x), float(y), float(z)));                                            \
  }                                                                                          \
  METILE_INLINE bfloat name(bfloat x, bfloat y, bfloat z) {                                  \
    return bfloat(f(float(x), float(y), float(z)));                                          \
  }                                                                                          \
  template <typename T, int N, typename = enable_if_t<is_floating_point_v<T>>>               \
  METILE_INLINE vec<T, N> name(                                                              \
      vec<T, N> x, type_identity_t<vec<T, N>> y, type_identity_t<vec<T, N>> z) {             \
    vec<T, N> out{};                                                                         \
    for (int i = 0; i < N; ++i) {                                                            \
      out.metile_data[i] = T(                                                                \
          f(float(x.metile_data[i]), float(y.metile_data[i]), float(z.metile_data[i])));     \
    }                                                                                        \
    return out;                                                                              \
  }
METILE_UNARY_TABLE(METILE_UNARY)
METILE_BINARY_TABLE(METILE_BINARY)
METILE_TERNARY_TABLE(METILE_TERNARY)

namespace fast {
METILE_UNARY_TABLE(METILE_UNARY)
METILE_BINARY_TABLE(METILE_BINARY)
METILE_TERNARY_TABLE(METILE_TERNARY)
}  // namespace fast
namespace precise {
METILE_UNARY_TABLE(METILE_UNARY)
METILE_BINARY_TABLE(METILE_BINARY)
METILE_TERNARY_TABLE(METILE_TERNARY)
}  // namespace precise

// Classification, per element of vectors.
#define METILE_CLASSIFY(name, expression)                                             \
  METILE_INLINE bool name(float x) { return expression; }                             \
  METILE_INLINE bool name(half h) { const float x = float(h); return expression; }    \
  METILE_INLINE bool name(bfloat b) { const float x = float(b); return expression; }  \
  template <typename T, int N>                                                        \
  METILE_INLINE vec<bool, N> name(vec<T, N> v) {                                      \
    vec<bool, N> out{};                                                               \
    for (int i = 0; i < N; ++i) out.metile_data[i] = name(v.metile_data[i]);          \
    return out;                                                                       \
  }
METILE_CLASSIFY(isnan, (__builtin_bit_cast(uint, x) & 0x7fffffffu) > 0x7f800000u)
METILE_CLASSIFY(isinf, (__builtin_bit_cast(uint, x) & 0x7fffffffu) == 0x7f800000u)
METILE_CLASSIFY(isfinite, (__builtin_bit_cast(uint, x) & 0x7fffffffu) < 0x7f800000u)
METILE_CLASSIFY(signbit, (__builtin_bit_cast(uint, x) >> 31) != 0u)
METILE_INLINE bool isnormal(float x) {
  const uint bits = __builtin_bit_cast(uint, x) & 0x7fffffffu;
  return bits >= 0x00800000u && bits < 0x7f800000u;
}
METILE_INLINE bool isordered(float x, float y) {
  return !isnan(x) && !isnan(y);
}
METILE_INLINE bool isunordered(float x, float y) {
  return isnan(x) || isnan(y);
}

METILE_INLINE float ldexp(float x, int e) {
  return ::ldexpf(x, e);
}
METILE_INLINE half ldexp(half x, int e) {
  return half(::ldexpf(float(x), e));
}
METILE_INLINE float frexp(float x, int& e) {
  return ::frexpf(x, &e);
}
METILE_INLINE int ilogb(float x) {
  return __builtin_ilogbf(x);
}
METILE_INLINE float modf(float x, float& whole) {
  whole = __builtin_truncf(x);
  return __builtin_copysignf(isinf(x) ? 0.0f : x - whole, x);
}
METILE_INLINE float sincos(float x, float& c) {
  c = ::cosf(x);
  return ::sinf(x);
}
namespace fast {
using metal::ldexp;
using metal::frexp;
using metal::modf;
using metal::sincos;
using metal::isnan;
using metal::isinf;
}  // namespace fast
namespace precise {
using metal::ldexp;
using metal::frexp;
using metal::modf;
using metal::sincos;
using metal::isnan;
using metal::isinf;
}  // namespace precise

#undef METILE_UNARY
#undef METILE_BINARY
#undef METILE_TERNARY
#undef METILE_CLASSIFY

}  // namespace metal
