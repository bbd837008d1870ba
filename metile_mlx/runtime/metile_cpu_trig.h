// sin and cos of f32 for every CPU kernel: one straight path for all arguments, so that loops over
// lanes vectorise.
//
// The reduction to |r| <= pi/4 is Payne and Hanek's (SIGNUM Newsletter 18, 1983): x = m 2^e with an
// integer m, and of m 2^e 2/pi only the bits below 4 matter. Those come from 96 bits of 2/pi from a
// place that e gives, in 32-bit words. A reduction by constants is no faster here, and wrong for
// large arguments; a table of 2^e 2/pi needs a gather, which takes longer than libm.
//
// Largest error over all arguments, in units of the last place against libm in double, with fused
// multiply-add and without: 1.60 and 2.50 (tests/runtime/test_cpu_math.py).
#ifndef METILE_CPU_TRIG_H
#define METILE_CPU_TRIG_H

#include "metile_cpu_math.h"

static inline uint32_t metile_high_word(uint32_t a, uint32_t b) {
  return (uint32_t)(((uint64_t)a * b) >> 32);
}

// The word at a place of 0 to 4.
static inline uint32_t metile_word_at(
    uint32_t place, uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t e) {
  uint32_t word = place == 1u ? b : a;
  word = place == 2u ? c : word;
  word = place == 3u ? d : word;
  return place == 4u ? e : word;
}

// 32 bits of two words, from bit `by` of the first on.
static inline uint32_t metile_window(uint32_t first, uint32_t second, uint32_t by) {
  return (first << by) | ((second >> 1) >> (31u - by));
}

// |x| = r + quarter pi/2.
struct metile_turn {
  float r;
  uint32_t quarter;
};

static inline metile_turn metile_reduced(uint32_t magnitude) {
  // 2/pi, behind a word of zeros.
  const uint32_t w0 = 0u, w1 = 0xa2f9836eu, w2 = 0x4e441529u, w3 = 0xfc2757d1u;
  const uint32_t w4 = 0xf534ddc0u, w5 = 0xdb629599u, w6 = 0x3c439041u, w7 = 0xfe5163abu;
  const uint32_t start = (magnitude >> 23) - 120u;
  const uint32_t place = start >> 5, by = start & 31u;
  const uint32_t a = metile_word_at(place, w0, w1, w2, w3, w4);
  const uint32_t b = metile_word_at(place, w1, w2, w3, w4, w5);
  const uint32_t c = metile_word_at(place, w2, w3, w4, w5, w6);
  const uint32_t d = metile_word_at(place, w3, w4, w5, w6, w7);
  const uint32_t middle = metile_window(b, c, by);
  const uint32_t m = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t carried = metile_high_word(m, metile_window(c, d, by));
  const uint32_t below = m * middle + carried;
  const uint32_t high = m * metile_window(a, b, by) + metile_high_word(m, middle) +
                        (below < carried ? 1u : 0u);
  // `high` and `below` are quarter turns with 62 bits behind the point. The rest is taken as its
  // size and its sign, so that no bit of a tiny one cancels; its last bit may be wrong.
  const uint32_t quarter = (high + 0x20000000u) >> 30;
  const uint32_t signed_rest = high - (quarter << 30);
  const uint32_t sign = (uint32_t)((int32_t)signed_rest >> 31);
  const uint32_t rest = signed_rest ^ sign, low = below ^ sign;
  const float big = (float)(int32_t)(rest & 0xffffffc0u) * 0x1p-30f;
  const float next = (float)(int32_t)(((rest & 0x3fu) << 25) | (low >> 7)) * 0x1p-55f;
  const float small = METILE_MADD((float)(int32_t)(low & 0x7fu), 0x1p-62f, next);
  const float more = METILE_MADD(big, -0x1.777a5cp-25f, small * 0x1.921fb6p+0f);
  const float size = METILE_MADD(big, 0x1.921fb6p+0f, more);
  const float r = metile_bits_f32(metile_f32_bits(size) ^ (sign & 0x80000000u));
  const bool is_reduced = magnitude < 0x3f000000u;
  const metile_turn made = {is_reduced ? metile_bits_f32(magnitude) : r, is_reduced ? 0u : quarter};
  return made;
}

// sin(r + quarter pi/2), or NaN where x is no number.
static inline float metile_sin_of(metile_turn turn, uint32_t quarter, float x) {
  const float r = turn.r, s = r * r;
  float p = 0x1.6ccf5ep-19f;
  p = METILE_MADD(p, s, -0x1.a00f74p-13f);
  p = METILE_MADD(p, s, 0x1.111108p-7f);
  p = METILE_MADD(p, s, -0x1.555556p-3f);
  float q = -0x1.241ca8p-22f;
  q = METILE_MADD(q, s, 0x1.a010d6p-16f);
  q = METILE_MADD(q, s, -0x1.6c16b8p-10f);
  q = METILE_MADD(q, s, 0x1.555556p-5f);
  const float sine = METILE_MADD(p, s * r, r);
  const float cosine = METILE_MADD(q, s * s, METILE_MADD(s, -0.5f, 1.0f));
  const float size = quarter & 1u ? cosine : sine;
  const float made = metile_bits_f32(metile_f32_bits(size) ^ ((quarter & 2u) << 30));
  return std::fabs(x) < __builtin_inff() ? made : __builtin_nanf("");
}

static inline float metile_sin(float x) {
  const metile_turn turn = metile_reduced(metile_f32_bits(x) & 0x7fffffffu);
  const float made = metile_sin_of(turn, turn.quarter, x);
  return metile_bits_f32(metile_f32_bits(made) ^ (metile_f32_bits(x) & 0x80000000u));
}

static inline float metile_cos(float x) {
  const metile_turn turn = metile_reduced(metile_f32_bits(x) & 0x7fffffffu);
  return metile_sin_of(turn, turn.quarter + 1u, x);
}

#endif
