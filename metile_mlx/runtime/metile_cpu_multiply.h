// Products of matrices for generated CPU kernels: registers full of sums, and fused steps.
//
// `metile_multiply` adds a product of whole row-major tiles to a third. All extents are powers of
// two from 8 on, known to the compiler. A block of the sum stays in registers over all of K.
#ifndef METILE_CPU_MULTIPLY_H
#define METILE_CPU_MULTIPLY_H

#if defined(__clang__)
// Without the attribute clang halves vectors of 64 bytes on machines that prefer 32.
#define METILE_APART __attribute__((noinline, min_vector_width(512)))
#define METILE_FUSED _Pragma("clang fp contract(fast)")
#define METILE_UNROLLED _Pragma("unroll")
#else
#define METILE_APART __attribute__((noinline, optimize("fp-contract=fast")))
#define METILE_FUSED
#define METILE_UNROLLED _Pragma("GCC unroll 16")
#endif

// Floats of a register, and the registers that sums may take.
#if defined(__AVX512F__)
enum { metile_lanes = 16, metile_sums = 16 };
#elif defined(__AVX__)
enum { metile_lanes = 8, metile_sums = 8 };
#elif defined(__aarch64__)
enum { metile_lanes = 4, metile_sums = 16 };
#else
enum { metile_lanes = 4, metile_sums = 8 };
#endif

// ROWS x (VECTORS * LANES) sums, over all of K.
template <int ROWS, int VECTORS, int LANES, int N, int K>
static METILE_APART void metile_multiply_block(const float* __restrict a, const float* __restrict b,
                                               float* __restrict c) {
  METILE_FUSED
  typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
  vector sums[ROWS][VECTORS];
  METILE_UNROLLED for (int row = 0; row < ROWS; ++row) {
    METILE_UNROLLED for (int v = 0; v < VECTORS; ++v) {
      sums[row][v] = *(const vector*)(c + row * N + v * LANES);
    }
  }
  for (int k = 0; k < K; ++k) {
    vector right[VECTORS];
    METILE_UNROLLED for (int v = 0; v < VECTORS; ++v) {
      right[v] = *(const vector*)(b + k * N + v * LANES);
    }
    METILE_UNROLLED for (int row = 0; row < ROWS; ++row) {
      const float left = a[row * K + k];
      METILE_UNROLLED for (int v = 0; v < VECTORS; ++v) sums[row][v] += left * right[v];
    }
  }
  METILE_UNROLLED for (int row = 0; row < ROWS; ++row) {
    METILE_UNROLLED for (int v = 0; v < VECTORS; ++v) {
      *(vector*)(c + row * N + v * LANES) = sums[row][v];
    }
  }
}

// c += a @ b: M by K times K by N.
template <int M, int N, int K>
static inline void metile_multiply(const float* a, const float* b, float* c) {
  const int lanes = N < metile_lanes ? N : metile_lanes;
  const int vectors = N / lanes < 2 ? 1 : 2;
  const int most = metile_sums / vectors;
  const int rows = most < M ? most : M;
  for (int column = 0; column < N; column += lanes * vectors) {
    for (int row = 0; row < M; row += rows) {
      metile_multiply_block<rows, vectors, lanes, N, K>(a + row * K, b + column,
                                                        c + row * N + column);
    }
  }
}

#endif
