// MSL's words with a CUDA meaning, so that the body of a Metal kernel compiles unchanged.
//
// MLX puts this, behind msl_cuda_numbers.h, after its own includes and before the kernel, which
// lives in mlx::core::cu; so does everything here.
#ifndef METILE_MSL_CUDA
#define METILE_MSL_CUDA

namespace mlx::core::cu {

// A group that meets at a barrier sees all memory written before it.
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
METILE_FN mem_flags operator|(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<int>(a) | static_cast<int>(b));
}
METILE_FN void threadgroup_barrier(mem_flags) {
  __syncthreads();
}
METILE_FN void simdgroup_barrier(mem_flags) {
  __syncwarp();
}

// All 32 lanes take part: threadgroups are whole simdgroups and control flow is uniform.
template <class T, class F>
METILE_FN T metile_exchange(T value, F exchange) {
  static_assert(sizeof(T) <= 8, "one word, or two");
  if constexpr (sizeof(T) == 8) {
    return as_type<T>(exchange(as_type<unsigned long long>(value)));
  } else {
    uint word = 0;
    memcpy(&word, &value, sizeof(T));
    word = exchange(word);
    memcpy(&value, &word, sizeof(T));
    return value;
  }
}
template <class T>
METILE_FN T simd_shuffle(T value, ushort lane) {
  return metile_exchange(
      value, [=](auto word) { return __shfl_sync(METILE_ALL_LANES, word, lane); });
}
template <class T>
METILE_FN T simd_broadcast(T value, ushort lane) {
  return simd_shuffle(value, lane);
}
template <class T>
METILE_FN T simd_shuffle_xor(T value, ushort mask) {
  return metile_exchange(
      value, [=](auto word) { return __shfl_xor_sync(METILE_ALL_LANES, word, mask); });
}
template <class T>
METILE_FN T simd_shuffle_down(T value, ushort delta) {
  return metile_exchange(
      value, [=](auto word) { return __shfl_down_sync(METILE_ALL_LANES, word, delta); });
}
template <class T>
METILE_FN T simd_shuffle_up(T value, ushort delta) {
  return metile_exchange(
      value, [=](auto word) { return __shfl_up_sync(METILE_ALL_LANES, word, delta); });
}
// Every lane gets the same bits: in each step both partners combine the same two values.
template <class T, class F>
METILE_FN T metile_combine(T value, F combine) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1)
    value = combine(value, simd_shuffle_xor(value, mask));
  return value;
}
template <class T>
METILE_FN T simd_sum(T value) {
  return metile_combine(value, [](T a, T b) { return T(a + b); });
}
template <class T>
METILE_FN T simd_product(T value) {
  return metile_combine(value, [](T a, T b) { return T(a * b); });
}
template <class T>
METILE_FN T simd_max(T value) {
  return metile_combine(value, [](T a, T b) { return metal::max(a, b); });
}
template <class T>
METILE_FN T simd_min(T value) {
  return metile_combine(value, [](T a, T b) { return metal::min(a, b); });
}

METILE_FN bool simd_any(bool condition) {
  return __any_sync(METILE_ALL_LANES, condition);
}

METILE_FN uint metile_thread() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
METILE_FN uint metile_lane() {
  return metile_thread() % 32u;
}
METILE_FN ::uint3 metile_global_thread() {
  return make_uint3(
      blockIdx.x * blockDim.x + threadIdx.x,
      blockIdx.y * blockDim.y + threadIdx.y,
      blockIdx.z * blockDim.z + threadIdx.z);
}
METILE_FN ::uint3 metile_all_threads() {
  return make_uint3(gridDim.x * blockDim.x, gridDim.y * blockDim.y, gridDim.z * blockDim.z);
}
METILE_FN uint metile_groups_of(uint lanes) {
  return (blockDim.x * blockDim.y * blockDim.z + lanes - 1u) / lanes;
}

// Two neighbours of a row in each lane, in the order that kernels assume of Metal's
// thread_elements() (layout/fragments.py).
METILE_FN uint metile_matrix_row(uint lane) {
  return lane / 16u * 4u + lane / 2u % 4u;
}
METILE_FN uint metile_matrix_column(uint lane) {
  return lane / 8u % 2u * 4u + lane % 2u * 2u;
}
METILE_FN ushort metile_matrix_lane(uint row, uint column) {
  return ushort(row / 4u * 16u + row % 4u * 2u + column / 4u * 8u + column / 2u % 2u);
}
template <class T, int ROWS, int COLUMNS>
struct simdgroup_matrix {
  static_assert(ROWS == 8 && COLUMNS == 8, "8 by 8");
  T held[2];
  simdgroup_matrix() = default;
  METILE_FN explicit simdgroup_matrix(T value) : held{value, value} {}
  METILE_FN T* thread_elements() {
    return held;
  }
};
typedef simdgroup_matrix<metile_float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <class T, int ROWS, int COLUMNS>
METILE_FN simdgroup_matrix<T, ROWS, COLUMNS> make_filled_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, ROWS, COLUMNS>(value);
}
struct ulong2 {
  ulong x, y;
  METILE_FN ulong2(ulong a) : x(a), y(a) {}
  METILE_FN ulong2(ulong a, ulong b) : x(a), y(b) {}
};
METILE_FN ulong metile_matrix_place(int i, ulong stride, ulong2 origin, bool transposed) {
  ulong row = metile_matrix_row(metile_lane()), column = metile_matrix_column(metile_lane()) + i;
  return transposed ? (origin.y + column) * stride + origin.x + row
                    : (origin.y + row) * stride + origin.x + column;
}
template <class T>
METILE_FN void simdgroup_load(
    simdgroup_matrix<T, 8, 8>& to,
    const T* from,
    ulong stride = 8,
    ulong2 origin = 0,
    bool transposed = false) {
  for (int i = 0; i < 2; ++i)
    to.held[i] = from[metile_matrix_place(i, stride, origin, transposed)];
}
template <class T>
METILE_FN void simdgroup_store(
    simdgroup_matrix<T, 8, 8> from,
    T* to,
    ulong stride = 8,
    ulong2 origin = 0,
    bool transposed = false) {
  for (int i = 0; i < 2; ++i)
    to[metile_matrix_place(i, stride, origin, transposed)] = from.held[i];
}
// Products are exact in f32 for 16-bit operands, and added up one after the other.
template <class D, class A, class B, class C>
METILE_FN void simdgroup_multiply_accumulate(
    simdgroup_matrix<D, 8, 8>& d,
    simdgroup_matrix<A, 8, 8> a,
    simdgroup_matrix<B, 8, 8> b,
    simdgroup_matrix<C, 8, 8> c) {
  uint row = metile_matrix_row(metile_lane()), column = metile_matrix_column(metile_lane());
  float sum[2] = {static_cast<float>(c.held[0]), static_cast<float>(c.held[1])};
#pragma unroll
  for (uint k = 0; k < 8; ++k) {
    float left = static_cast<float>(simd_shuffle(a.held[k % 2], metile_matrix_lane(row, k)));
    for (int i = 0; i < 2; ++i) {
      float right = static_cast<float>(simd_shuffle(b.held[i], metile_matrix_lane(k, column)));
      sum[i] = __fmaf_rn(left, right, sum[i]);
    }
  }
  d.held[0] = D(sum[0]);
  d.held[1] = D(sum[1]);
}
template <class D, class A, class B>
METILE_FN void simdgroup_multiply(
    simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b) {
  simdgroup_multiply_accumulate(d, a, b, simdgroup_matrix<D, 8, 8>(D(0.0f)));
}

}

// Helper functions of a kernel. MLX has NVRTC put functions on the device by default; nvcc must be
// told, by the attribute itself, since the macro __device__ holds the word that means nothing here.
#ifdef __CUDACC_RTC__
#define METILE_INLINE inline
#else
#undef __device__
#define METILE_INLINE __attribute__((__device__)) __inline__
#endif

#define INFINITY __uint_as_float(0x7f800000u)
#define NAN __uint_as_float(0x7fc00000u)
#define device
#define constant
#define thread
#define threadgroup __shared__
#define dispatch_quadgroups_per_threadgroup metile_groups_of(4u)
#define dispatch_simdgroups_per_threadgroup metile_groups_of(32u)
#define dispatch_threads_per_threadgroup blockDim
#define grid_origin make_uint3(0u, 0u, 0u)
#define grid_size metile_all_threads()
#define quadgroup_index_in_threadgroup (metile_thread() / 4u)
#define quadgroups_per_threadgroup metile_groups_of(4u)
#define simdgroup_index_in_threadgroup (metile_thread() / 32u)
#define simdgroups_per_threadgroup metile_groups_of(32u)
#define thread_execution_width 32u
#define thread_index_in_quadgroup (metile_thread() % 4u)
#define thread_index_in_simdgroup metile_lane()
#define thread_index_in_threadgroup metile_thread()
#define thread_position_in_grid metile_global_thread()
#define thread_position_in_threadgroup threadIdx
#define threadgroup_position_in_grid blockIdx
#define threadgroups_per_grid gridDim
#define threads_per_grid metile_all_threads()
#define threads_per_simdgroup 32u
#define threads_per_threadgroup blockDim

// The types MLX writes into the signature.
#define float metile_float
#define __half half
#define __nv_bfloat16 bfloat
#endif
