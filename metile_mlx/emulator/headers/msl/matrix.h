// metal_matrix and metal_array: small matrices by columns, and arrays by value.
#pragma once

#include "integer.h"

namespace metal {

template <typename T, size_t N>
struct array {
  T metile_elements[N];
  METILE_INLINE constexpr T& operator[](size_t i) {
    return metile_elements[i];
  }
  METILE_INLINE constexpr const T& operator[](size_t i) const {
    return metile_elements[i];
  }
  static constexpr size_t size() {
    return N;
  }
};

template <typename T, int Cols, int Rows = Cols>
struct matrix {
  static_assert(is_floating_point_v<T>, "matrix exists for float and half");
  using column = vec<T, Rows>;

  matrix() = default;
  // A diagonal matrix.
  METILE_INLINE explicit matrix(T diagonal) {
    for (int i = 0; i < Cols; ++i) {
      metile_columns[i] = column(0);
      if (i < Rows) {
        metile_columns[i][i] = diagonal;
      }
    }
  }
  // Columns, or all elements column by column.
  template <typename... A, typename = enable_if_t<
      (sizeof...(A) > 1) && metile_count<A...> == Cols * Rows>>
  METILE_INLINE matrix(const A&... a) {
    metile_all all;
    int at = 0;
    (metile_fill(all, at, a), ...);
    for (int i = 0; i < Cols * Rows; ++i) {
      metile_columns[i / Rows][i % Rows] = all.metile_data[i];
    }
  }
  METILE_INLINE column& operator[](size_t i) {
    return metile_columns[i];
  }
  METILE_INLINE const column& operator[](size_t i) const {
    return metile_columns[i];
  }

#define METILE_MATRIX_OP(op)                                                  \
  METILE_INLINE friend matrix operator op(const matrix& a, const matrix& b) { \
    matrix out;                                                               \
    for (int i = 0; i < Cols; ++i) {                                          \
      out[i] = a[i] op b[i];                                                  \
    }                                                                         \
    return out;                                                               \
  }                                                                           \
  METILE_INLINE friend matrix& operator op##=(matrix& a, const matrix& b) {   \
    return a = a op b;                                                        \
  }
  METILE_MATRIX_OP(+)
  METILE_MATRIX_OP(-)
#undef METILE_MATRIX_OP
  METILE_INLINE friend matrix operator*(const matrix& a, T b) {
    matrix out;
    for (int i = 0; i < Cols; ++i) {
      out[i] = a[i] * b;
    }
    return out;
  }
  METILE_INLINE friend matrix operator*(T a, const matrix& b) {
    return b * a;
  }
  METILE_INLINE friend column operator*(const matrix& a, const vec<T, Cols>& b) {
    column out = a[0] * b[0];
    for (int i = 1; i < Cols; ++i) {
      out += a[i] * b[i];
    }
    return out;
  }
  METILE_INLINE friend vec<T, Cols> operator*(const column& a, const matrix& b) {
    vec<T, Cols> out;
    for (int i = 0; i < Cols; ++i) {
      out[i] = dot(a, b[i]);
    }
    return out;
  }

  struct metile_all {
    using metile_element = T;
    T metile_data[Cols * Rows];
  };
  column metile_columns[Cols];
};

template <typename T, int N, int Rows, int Cols>
METILE_INLINE matrix<T, Cols, Rows> operator*(
    const matrix<T, N, Rows>& a, const matrix<T, Cols, N>& b) {
  matrix<T, Cols, Rows> out;
  for (int i = 0; i < Cols; ++i) {
    out[i] = a * b[i];
  }
  return out;
}

template <typename T, int Cols, int Rows>
METILE_INLINE matrix<T, Rows, Cols> transpose(const matrix<T, Cols, Rows>& a) {
  matrix<T, Rows, Cols> out;
  for (int i = 0; i < Cols; ++i) {
    for (int j = 0; j < Rows; ++j) {
      out[j][i] = a[i][j];
    }
  }
  return out;
}

// By expansion along the first column.
template <typename T, int N>
METILE_INLINE T determinant(const matrix<T, N, N>& a) {
  if constexpr (N == 2) {
    return T(a[0][0] * a[1][1] - a[1][0] * a[0][1]);
  } else {
    T sum = T(0);
    for (int row = 0; row < N; ++row) {
      matrix<T, N - 1, N - 1> minor;
      for (int i = 1; i < N; ++i) {
        for (int j = 0; j < N - 1; ++j) {
          minor[i - 1][j] = a[i][j < row ? j : j + 1];
        }
      }
      const T term = T(a[0][row] * determinant(minor));
      sum = T(row % 2 ? sum - term : sum + term);
    }
    return sum;
  }
}

}  // namespace metal

#define METILE_MATRIX_NAMES(T, C)             \
  using T##C##x2 = metal::matrix<T, C, 2>;    \
  using T##C##x3 = metal::matrix<T, C, 3>;    \
  using T##C##x4 = metal::matrix<T, C, 4>;
#define METILE_ALL_MATRIX_NAMES                                                           \
  METILE_MATRIX_NAMES(float, 2) METILE_MATRIX_NAMES(float, 3) METILE_MATRIX_NAMES(float, 4) \
  METILE_MATRIX_NAMES(half, 2) METILE_MATRIX_NAMES(half, 3) METILE_MATRIX_NAMES(half, 4)
METILE_ALL_MATRIX_NAMES
namespace metal {
METILE_ALL_MATRIX_NAMES
}  // namespace metal
#undef METILE_ALL_MATRIX_NAMES
#undef METILE_MATRIX_NAMES
