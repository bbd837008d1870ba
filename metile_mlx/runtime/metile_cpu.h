// What every generated CPU kernel may use. Kept light: it is compiled with each of them.
//
// f16 and bf16 values travel as their bits (uint16_t), so that moving a value never quiets a
// signalling NaN; they become float only to compute. The helpers are branch-free and vectorise.
#ifndef METILE_CPU_H
#define METILE_CPU_H

#include <stdint.h>
#include <string.h>

#include <cmath>

// One runtime scalar. f16 and bf16 scalars keep their bits in the low half of `u`.
union metile_scalar {
  int32_t i;
  uint32_t u;
  float f;
  uint8_t b;
  int64_t raw;
};

static inline uint32_t metile_f32_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float metile_bits_f32(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

#if defined(__clang__) && defined(__F16C__)

// clang does arithmetic and comparisons of widened halves in half, lane by lane. An operation on
// the bits between keeps it from that: the sign once more, a NaN made quiet once more.
static inline float metile_f16_to_f32(uint16_t half) {
  __fp16 value;
  memcpy(&value, &half, sizeof value);
  const uint32_t sign = ((uint32_t)half << 16) & 0x80000000u;
  return metile_bits_f32(metile_f32_bits((float)value) | sign);
}

static inline uint16_t metile_f32_to_f16(float value) {
  const uint32_t word = metile_f32_bits(value);
  const __fp16 half = (__fp16)metile_bits_f32(value != value ? word | 0x400000u : word);
  uint16_t bits;
  memcpy(&bits, &half, sizeof bits);
  return bits;
}

#else

#if defined(__aarch64__)

static inline float metile_f16_to_f32(uint16_t half) {
  __fp16 value;
  memcpy(&value, &half, sizeof value);
  return (float)value;
}

#else

// g++ does not vectorise its own conversion. A subnormal half is an integer times 2^-24: made
// through an integer, no subnormal float (slow to multiply) ever appears.
static inline float metile_f16_to_f32(uint16_t half) {
  const uint32_t word = half;
  const uint32_t magnitude = word & 0x7fffu;
  const uint32_t sign = (word & 0x8000u) << 16;
  const uint32_t subnormal = metile_f32_bits((float)(int32_t)magnitude * 0x1p-24f);
  uint32_t bits = magnitude < 0x400u ? subnormal : (magnitude << 13) + 0x38000000u;
  bits += magnitude >= 0x7c00u ? 0x38000000u : 0u;
  bits |= magnitude > 0x7c00u ? 0x400000u : 0u;
  return metile_bits_f32(bits | sign);
}

#endif

// Round to nearest even.
static inline uint16_t metile_f32_to_f16(float value) {
  const uint32_t word = metile_f32_bits(value);
  const uint32_t sign = (word >> 16) & 0x8000u;
  const uint32_t magnitude = word & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
  // 0.5 + x has the spacing of subnormal halves, so the adder does the rounding.
  const uint32_t subnormal = metile_f32_bits(metile_bits_f32(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t bits = magnitude < 0x38800000u ? subnormal : normal;
  bits = magnitude >= 0x47800000u ? 0x7c00u : bits;
  bits = magnitude > 0x7f800000u ? (0x7e00u | ((magnitude >> 13) & 0x3ffu)) : bits;
  return (uint16_t)(bits | sign);
}

#endif

static inline float metile_bf16_to_f32(uint16_t bits) {
  return metile_bits_f32((uint32_t)bits << 16);
}

// Round to nearest even. A NaN stays one: its top payload bits are kept and it is made quiet.
static inline uint16_t metile_f32_to_bf16(float value) {
  const uint32_t word = metile_f32_bits(value);
#if defined(__clang__)
  // A tenth faster than the other form, which g++ makes faster code of than of this one.
  const uint32_t rounded = word + 0x7fffu + ((word >> 16) & 1u);
  return (uint16_t)((value != value ? word | 0x400000u : rounded) >> 16);
#else
  const uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
  const uint32_t quiet = (word >> 16) | 0x40u;
  return (uint16_t)((word & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
#endif
}

#endif
