// exp, exp2, log, log2, sigmoid, tanh and erf of f32 for every CPU kernel, in place of libm's, which
// compilers call lane by lane.
//
// Each function is straight-line code on 32-bit floats and integers, so that loops over lanes
// vectorise at any width. The method is the textbook one (Muller, Elementary Functions, ch. 3 and
// 11): split off what the exponent can hold, with constants in two parts (Cody and Waite), and a
// polynomial for the rest. The coefficients are minimax by the Remez exchange, rounded to f32.
// Special values are IEEE 754's: NaN gives NaN, infinities their limits, zeros keep their sign,
// results below the normal numbers are rounded and not flushed.
//
// Largest error over all 2^32 arguments, in units of the last place against libm in double, with
// fused multiply-add and without (tests/runtime/test_cpu_math.py):
//
//   exp  1.02 1.00    log   0.93 0.93    sigmoid 2.41 2.41
//   exp2 1.02 1.00    log2  1.51 1.55    tanh    1.34 1.34    erf 1.14 1.31
#ifndef METILE_CPU_MATH_H
#define METILE_CPU_MATH_H

#include "metile_cpu.h"

// a * b + c. Fused where that is one instruction; libm's own fused function is slow.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define METILE_MADD(a, b, c) __builtin_fmaf(a, b, c)
#else
#define METILE_MADD(a, b, c) ((a) * (b) + (c))
#endif

// Added to a small float it leaves the nearest integer in the low bits.
static const float metile_to_integer = 0x1.8p23f;

// 2^n of the integer in the low bits of `sum`, where that is a normal number.
static inline float metile_power_of_two(uint32_t sum) {
  return metile_bits_f32((sum << 23) + 0x3f800000u);
}

// e^r for |r| <= log(2) / 2.
static inline float metile_exp_rest(float r) {
  float q = 0x1.6a23d0p-10f;
  q = METILE_MADD(q, r, 0x1.123a20p-7f);
  q = METILE_MADD(q, r, 0x1.5558f2p-5f);
  q = METILE_MADD(q, r, 0x1.555492p-3f);
  q = METILE_MADD(q, r, 0x1.fffffcp-2f);
  return 1.0f + METILE_MADD(q, r * r, r);
}

// x - n log(2), where n has 8 bits.
static inline float metile_less_log2(float x, float n) {
  return METILE_MADD(n, 0x1.bd0106p-13f, x - n * 0x1.63p-1f);
}

// e^r 2^n for n of -151 to 129, or 0. Two factors, so that only the last product rounds below the
// normal numbers; an exact zero there, since reaching it by rounding is slow.
static inline float metile_exp_scaled(float r, float sum, bool is_zero) {
  const uint32_t n = metile_f32_bits(sum) - 0x4b400000u;
  const uint32_t half = (uint32_t)((int32_t)n >> 1);
  const float last = is_zero ? 0.0f : metile_power_of_two(n - half);
  return metile_exp_rest(r) * metile_power_of_two(half) * last;
}

static inline float metile_exp(float given) {
  float x = given < -104.0f ? -104.0f : given;
  x = x > 89.0f ? 89.0f : x;
  const float sum = METILE_MADD(x, 0x1.715476p+0f, metile_to_integer);
  const float r = metile_less_log2(x, sum - metile_to_integer);
  return metile_exp_scaled(r, sum, x < -0x1.9fe368p+6f);
}

static inline float metile_exp2(float given) {
  float x = given < -151.0f ? -151.0f : given;
  x = x > 129.0f ? 129.0f : x;
  const float sum = x + metile_to_integer;
  return metile_exp_scaled((x - (sum - metile_to_integer)) * 0x1.62e430p-1f, sum, x < -150.0f);
}

// e^x for |x| <= 80, where one factor is enough.
static inline float metile_exp_within(float x) {
  const float sum = METILE_MADD(x, 0x1.715476p+0f, metile_to_integer);
  const float r = metile_less_log2(x, sum - metile_to_integer);
  return metile_exp_rest(r) * metile_power_of_two(metile_f32_bits(sum));
}

// A positive number as 2^k (1 + f), with 1 + f from sqrt(1/2) to sqrt(2); and f - log(1 + f).
struct metile_log_parts {
  float k, f, w;
};

static inline metile_log_parts metile_log_split(float x) {
  const bool is_small = x < 0x1p-126f;
  const uint32_t word = metile_f32_bits(is_small ? x * 0x1p25f : x) + (0x3f800000u - 0x3f3504f3u);
  const int32_t k = (int32_t)(word >> 23) - (is_small ? 127 + 25 : 127);
  const float f = metile_bits_f32((word & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  float p = -0x1.38b640p-4f;
  p = METILE_MADD(p, f, 0x1.055baap-3f);
  p = METILE_MADD(p, f, -0x1.0d853ap-3f);
  p = METILE_MADD(p, f, 0x1.22da14p-3f);
  p = METILE_MADD(p, f, -0x1.547244p-3f);
  p = METILE_MADD(p, f, 0x1.99a008p-3f);
  p = METILE_MADD(p, f, -0x1.000226p-2f);
  p = METILE_MADD(p, f, 0x1.555554p-2f);
  const metile_log_parts made = {(float)k, f, f * f * METILE_MADD(p, -f, 0.5f)};
  return made;
}

// What a logarithm is of 0, of less, of infinity and of NaN.
static inline float metile_log_limits(float x, float made) {
  const float below = x == 0.0f ? -__builtin_inff() : __builtin_nanf("");
  const float above = x == __builtin_inff() ? x : made;
  return x > 0.0f ? above : below;
}

static inline float metile_log(float x) {
  const metile_log_parts a = metile_log_split(x);
  // k 0x1.62e4p-1 is exact: 8 bits and 15.
  const float rest = a.f - METILE_MADD(a.k, -0x1.7f7d1cp-20f, a.w);
  return metile_log_limits(x, METILE_MADD(a.k, 0x1.62e4p-1f, rest));
}

static inline float metile_log2(float x) {
  const metile_log_parts a = metile_log_split(x);
  // (f - w) log2(e), of which f itself is exact.
  const float rest = METILE_MADD(a.w, -0x1.715476p+0f, a.f * 0x1.c551dap-2f);
  return metile_log_limits(x, a.k + (a.f + rest));
}

// 1 / (1 + exp(-x)), with full relative precision in both tails.
static inline float metile_sigmoid(float x) {
  const float e = metile_exp(-std::fabs(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

static inline float metile_with_sign(float magnitude, float x) {
  return metile_bits_f32(metile_f32_bits(magnitude) | (metile_f32_bits(x) & 0x80000000u));
}

static inline float metile_tanh(float x) {
  const float size = std::fabs(x);
  const float t = size > 10.0f ? 10.0f : size;
  const float s = t * t;
  float p = -0x1.825854p-8f;
  p = METILE_MADD(p, s, 0x1.54b8a0p-6f);
  p = METILE_MADD(p, s, -0x1.b898dep-5f);
  p = METILE_MADD(p, s, 0x1.1109aep-3f);
  p = METILE_MADD(p, s, -0x1.55553ep-2f);
  const float near = METILE_MADD(p, s * t, t);
  const float far = 1.0f - 2.0f / (metile_exp_within(t + t) + 1.0f);
  return metile_with_sign(t < 0.6f ? near : far, x);
}

static inline float metile_erf(float x) {
  const float size = std::fabs(x);
  const float t = size > 4.0f ? 4.0f : size;
  const float s = t * t;
  // erf(t) / t - 1 in s, and -log(1 - erf(t)) in t.
  float p = 0x1.5f39a0p-14f;
  p = METILE_MADD(p, s, -0x1.aaf790p-11f);
  p = METILE_MADD(p, s, 0x1.54dcbap-8f);
  p = METILE_MADD(p, s, -0x1.b810bap-6f);
  p = METILE_MADD(p, s, 0x1.ce2e24p-4f);
  p = METILE_MADD(p, s, -0x1.812744p-2f);
  p = METILE_MADD(p, s, 0x1.06eba8p-3f);
  float q = -0x1.9a74c8p-13f;
  q = METILE_MADD(q, t, 0x1.8e9a2cp-9f);
  q = METILE_MADD(q, t, -0x1.6c06f4p-6f);
  q = METILE_MADD(q, t, 0x1.a9a1c2p-4f);
  q = METILE_MADD(q, t, 0x1.463f60p-1f);
  q = METILE_MADD(q, t, 0x1.20ae92p+0f);
  q = METILE_MADD(q, t, 0x1.a065e4p-13f);
  const float far = 1.0f - metile_exp_within(-q);
  return metile_with_sign(t < 0.921875f ? METILE_MADD(p, t, t) : far, x);
}

#endif
