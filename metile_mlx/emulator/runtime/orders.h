// Whether an output is the same after the threads ran in another order.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "mlx/utils.h"

namespace metile_emulator {

namespace mx = mlx::core;

// How far results may be apart where floats are reduced in another order, as a part of the largest
// element; below zero for integers, which may follow from rounded floats by any step.
inline double order_tolerance(const mx::Dtype& dtype) {
  switch (dtype.val()) {
    case mx::Dtype::Val::float16: return 2e-2;
    case mx::Dtype::Val::bfloat16: return 1e-1;
    case mx::Dtype::Val::float32:
    case mx::Dtype::Val::complex64: return 1e-3;
    default: return -1;
  }
}
// Element `i` of an array of a float type; a complex number is two elements.
inline double number(const char* data, const mx::Dtype& dtype, size_t i) {
  if (dtype == mx::float16) {
    return float(reinterpret_cast<const mx::float16_t*>(data)[i]);
  }
  if (dtype == mx::bfloat16) {
    return float(reinterpret_cast<const mx::bfloat16_t*>(data)[i]);
  }
  return reinterpret_cast<const float*>(data)[i];
}

// The first byte that differs, or the size.
inline size_t differs_from(const char* data, const std::vector<char>& first) {
  return size_t(std::mismatch(first.begin(), first.end(), data).first - first.begin());
}

// The offset of the first number that another order of a sum does not explain, or the size.
inline size_t far_from(
    const char* data, const std::vector<char>& first, const mx::Dtype& dtype) {
  const double tolerance = order_tolerance(dtype);
  if (tolerance < 0) {
    return first.size();
  }
  const size_t item = std::min<size_t>(4, size_of(dtype));
  double largest = 1;
  for (size_t i = 0; i < first.size() / item; ++i) {
    const double value = std::abs(number(first.data(), dtype, i));
    largest = std::isfinite(value) ? std::max(largest, value) : largest;
  }
  for (size_t i = 0; i < first.size() / item; ++i) {
    const double a = number(first.data(), dtype, i), b = number(data, dtype, i);
    const bool is_same = a == b || (std::isnan(a) && std::isnan(b));
    if (!is_same && !(std::abs(a - b) <= tolerance * largest)) {
      return i * item;
    }
  }
  return first.size();
}

}  // namespace metile_emulator
