// metal_simdgroup_matrix: 8 x 8, two neighbouring elements of a row in each lane.
//
// The order is that of Apple's GPUs as published code assumes it: lane l holds row
// (l / 16) * 4 + (l / 2) % 4 and columns ((l / 8) % 2) * 4 + (l % 2) * 2 and the next.
#pragma once

#include "atomic.h"

namespace metal {

METILE_INLINE constexpr uint metile_matrix_row(uint lane) {
  return lane / 16u * 4u + lane / 2u % 4u;
}
METILE_INLINE constexpr uint metile_matrix_column(uint lane) {
  return lane / 8u % 2u * 4u + lane % 2u * 2u;
}

template <typename T, int Cols, int Rows>
struct simdgroup_matrix {
  static_assert(Cols == 8 && Rows == 8, "simdgroup_matrix exists for 8 x 8");
  static_assert(is_floating_point_v<T>, "simdgroup_matrix exists for float, half and bfloat");
  using storage_type = vec<T, 2>;
  using elem_type = T;

  simdgroup_matrix() = default;
  // A diagonal matrix.
  METILE_INLINE explicit simdgroup_matrix(T diagonal) {
    const uint lane = ::metile_lane();
    for (uint i = 0; i < 2; ++i) {
      const bool on = metile_matrix_row(lane) == metile_matrix_column(lane) + i;
      metile_elements[i] = on ? diagonal : T(0);
    }
  }
  METILE_INLINE storage_type& thread_elements() {
    return metile_elements;
  }
  METILE_INLINE const storage_type& thread_elements() const {
    return metile_elements;
  }
  storage_type metile_elements;
};

using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <typename T, int Cols, int Rows>
METILE_INLINE simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Cols, Rows> out;
  out.metile_elements = vec<T, 2>(value);
  return out;
}
template <typename T, int Cols, int Rows>
METILE_INLINE simdgroup_matrix<T, Cols, Rows> make_diagonal_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, Cols, Rows>(value);
}

// Every lane of the simdgroup takes part: the checker sees to it.
METILE_INLINE void metile_all_lanes(const char* name, uint line, uint column) {
#ifdef METILE_CHECKED
  metile_gather(name, nullptr, nullptr, line, column, 32, true);
#endif
}

template <typename T>
METILE_INLINE void simdgroup_load(
    simdgroup_matrix<T, 8, 8>& matrix, const type_identity_t<T>* source,
    ulong elements_per_row = 8, ulong2 origin = ulong2(0), bool transposed = false, METILE_HERE) {
  metile_all_lanes("simdgroup_load", line, column);
  const uint lane = ::metile_lane();
  for (uint i = 0; i < 2; ++i) {
    const ulong row = metile_matrix_row(lane), c = metile_matrix_column(lane) + i;
    const ulong at = transposed ? (origin.x + row) + (origin.y + c) * elements_per_row
                                : (origin.x + c) + (origin.y + row) * elements_per_row;
    matrix.metile_elements[i] = source[at];
  }
}
template <typename T>
METILE_INLINE void simdgroup_store(
    const simdgroup_matrix<T, 8, 8>& matrix, type_identity_t<T>* target,
    ulong elements_per_row = 8, ulong2 origin = ulong2(0), bool transposed = false, METILE_HERE) {
  metile_all_lanes("simdgroup_store", line, column);
  const uint lane = ::metile_lane();
  for (uint i = 0; i < 2; ++i) {
    const ulong row = metile_matrix_row(lane), c = metile_matrix_column(lane) + i;
    const ulong at = transposed ? (origin.x + row) + (origin.y + c) * elements_per_row
                                : (origin.x + c) + (origin.y + row) * elements_per_row;
    target[at] = matrix.metile_elements[i];
  }
}

template <typename A, typename B, typename C>
struct metile_product {
  vec<A, 2> a;
  vec<B, 2> b;
  vec<C, 2> c;
  vec<float, 2> result;
};
template <typename A, typename B, typename C>
void metile_multiply_matrices(void** lanes, uint active, ulong) {
  if (active != 0xffffffffu) {
    return;  // reported; a matrix that lanes are missing from has no product
  }
  float a[8][8], b[8][8];
  for (uint lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<metile_product<A, B, C>*>(lanes[lane]);
    for (uint i = 0; i < 2; ++i) {
      a[metile_matrix_row(lane)][metile_matrix_column(lane) + i] = float(own.a[i]);
      b[metile_matrix_row(lane)][metile_matrix_column(lane) + i] = float(own.b[i]);
    }
  }
  for (uint lane = 0; lane < 32; ++lane) {
    auto& own = *static_cast<metile_product<A, B, C>*>(lanes[lane]);
    for (uint i = 0; i < 2; ++i) {
      float sum = float(own.c[i]);
      for (uint k = 0; k < 8; ++k) {
        sum = __builtin_fmaf(
            a[metile_matrix_row(lane)][k], b[k][metile_matrix_column(lane) + i], sum);
      }
      own.result[i] = sum;
    }
  }
}

template <typename D, typename A, typename B, typename C>
METILE_INLINE void simdgroup_multiply_accumulate(
    simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
    const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c, METILE_HERE) {
  metile_product<A, B, C> record;
  record.a = a.metile_elements;
  record.b = b.metile_elements;
  record.c = c.metile_elements;
  record.result = vec<float, 2>(metile_poison<float>());
  metile_gather(
      "simdgroup_multiply_accumulate", &metile_multiply_matrices<A, B, C>, &record, line, column,
      32, true);
  d.metile_elements = vec<D, 2>(record.result);
}
template <typename D, typename A, typename B>
METILE_INLINE void simdgroup_multiply(
    simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
    const simdgroup_matrix<B, 8, 8>& b, METILE_HERE) {
  simdgroup_multiply_accumulate(
      d, a, b, make_filled_simdgroup_matrix<float, 8, 8>(0.0f), line, column);
}
template <typename A, typename B>
METILE_INLINE simdgroup_matrix<A, 8, 8> operator*(
    const simdgroup_matrix<A, 8, 8>& a, const simdgroup_matrix<B, 8, 8>& b) {
  simdgroup_matrix<A, 8, 8> out;
  simdgroup_multiply(out, a, b);
  return out;
}

}  // namespace metal
