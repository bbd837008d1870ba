// Types and functions of Metal for the parse that checks address spaces. Nothing here is run: the
// bodies are missing, vectors are clang's own, because C++ calls no member of a qualified object.
#pragma once

#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define thread
#define threadgroup_imageblock
#define ray_data
#define object_data
#define kernel
#define METAL_FUNC inline

namespace metal {

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef decltype(sizeof(0)) size_t;
typedef long ptrdiff_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
typedef long intptr_t;
typedef _Float16 half;
typedef __bf16 bfloat;
typedef half float16_t;
typedef bfloat bfloat16_t;

template <typename T, int N>
using vec = T __attribute__((ext_vector_type(N)));
template <typename T, int N>
using packed_vec = vec<T, N>;
#define METILE_VECTORS(T)       \
  typedef vec<T, 2> T##2;       \
  typedef vec<T, 3> T##3;       \
  typedef vec<T, 4> T##4;       \
  typedef vec<T, 2> packed_##T##2; \
  typedef vec<T, 3> packed_##T##3; \
  typedef vec<T, 4> packed_##T##4;
METILE_VECTORS(bool)
METILE_VECTORS(char)
METILE_VECTORS(uchar)
METILE_VECTORS(short)
METILE_VECTORS(ushort)
METILE_VECTORS(int)
METILE_VECTORS(uint)
METILE_VECTORS(long)
METILE_VECTORS(ulong)
METILE_VECTORS(half)
METILE_VECTORS(bfloat)
METILE_VECTORS(float)

// `float4(a, b.xyz)` is rewritten to this.
template <typename V, typename... A>
constexpr V metile_make(A... a) {
  return V{};
}

template <typename T, T V>
struct integral_constant {
  static constexpr T value = V;
  constexpr operator T() const {
    return V;
  }
};
template <bool B>
using bool_constant = integral_constant<bool, B>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;
template <bool B, typename T = void>
struct enable_if {};
template <typename T>
struct enable_if<true, T> {
  typedef T type;
};
template <bool B, typename T = void>
using enable_if_t = typename enable_if<B, T>::type;
template <bool B, typename T, typename F>
struct conditional {
  typedef T type;
};
template <typename T, typename F>
struct conditional<false, T, F> {
  typedef F type;
};
template <bool B, typename T, typename F>
using conditional_t = typename conditional<B, T, F>::type;
template <typename T, typename U>
inline constexpr bool is_same_v = __is_same(T, U);
template <typename T, typename U>
struct is_same : bool_constant<__is_same(T, U)> {};
template <typename T>
inline constexpr bool is_floating_point_v = __is_floating_point(T);
template <typename T>
struct is_floating_point : bool_constant<__is_floating_point(T)> {};
template <typename T>
inline constexpr bool is_integral_v = __is_integral(T);
template <typename T>
struct is_integral : bool_constant<__is_integral(T)> {};

template <typename T>
struct numeric_limits {
  static constexpr T max();
  static constexpr T min();
  static constexpr T lowest();
  static constexpr T infinity();
  static constexpr T epsilon();
  static constexpr T quiet_NaN();
  static constexpr int digits = 0;
};

template <typename T>
struct metile_element {
  typedef T type;
};
template <typename T, int N>
struct metile_element<T __attribute__((ext_vector_type(N)))> {
  typedef T type;
};

template <typename T, typename U>
T as_type(U value);

#define METILE_UNARY(name) \
  template <typename T>    \
  T name(T x);
#define METILE_BINARY(name)            \
  template <typename T, typename U>    \
  auto name(T x, U y) -> decltype(x + y);
#define METILE_TERNARY(name)                     \
  template <typename T, typename U, typename V>  \
  auto name(T x, U y, V z) -> decltype(x + y + z);
#define METILE_MATH                                                                             \
  METILE_UNARY(acos) METILE_UNARY(acosh) METILE_UNARY(asin) METILE_UNARY(asinh)                 \
  METILE_UNARY(atan) METILE_UNARY(atanh) METILE_UNARY(ceil) METILE_UNARY(cos)                   \
  METILE_UNARY(cosh) METILE_UNARY(cospi) METILE_UNARY(exp) METILE_UNARY(exp2)                   \
  METILE_UNARY(exp10) METILE_UNARY(fabs) METILE_UNARY(abs) METILE_UNARY(floor)                  \
  METILE_UNARY(fract) METILE_UNARY(log) METILE_UNARY(log2) METILE_UNARY(log10)                  \
  METILE_UNARY(rint) METILE_UNARY(round) METILE_UNARY(rsqrt) METILE_UNARY(sign)                 \
  METILE_UNARY(sin) METILE_UNARY(sinh) METILE_UNARY(sinpi) METILE_UNARY(sqrt)                   \
  METILE_UNARY(tan) METILE_UNARY(tanh) METILE_UNARY(tanpi) METILE_UNARY(trunc)                  \
  METILE_UNARY(saturate)                                                                        \
  METILE_BINARY(atan2) METILE_BINARY(fmax) METILE_BINARY(fmin) METILE_BINARY(max)               \
  METILE_BINARY(min) METILE_BINARY(fmod) METILE_BINARY(pow) METILE_BINARY(powr)                 \
  METILE_BINARY(copysign) METILE_BINARY(step) METILE_BINARY(fdim)                               \
  METILE_TERNARY(clamp) METILE_TERNARY(fma) METILE_TERNARY(mix) METILE_TERNARY(smoothstep)
METILE_MATH
namespace precise {
METILE_MATH
}
namespace fast {
METILE_MATH
}
METILE_UNARY(popcount)
METILE_UNARY(clz)
METILE_UNARY(ctz)
METILE_UNARY(reverse_bits)
METILE_UNARY(normalize)
METILE_BINARY(mulhi)
METILE_TERNARY(mad)
template <typename T>
typename metile_element<T>::type dot(T x, T y);
template <typename T>
typename metile_element<T>::type length(T x);
template <typename T>
typename metile_element<T>::type distance(T x, T y);
template <typename T>
T cross(T x, T y);
template <typename T, typename M>
T select(T x, T y, M mask);
template <typename T>
bool any(T x);
template <typename T>
bool all(T x);

METILE_UNARY(simd_sum)
METILE_UNARY(simd_product)
METILE_UNARY(simd_max)
METILE_UNARY(simd_min)
METILE_UNARY(simd_and)
METILE_UNARY(simd_or)
METILE_UNARY(simd_xor)
METILE_UNARY(simd_broadcast_first)
METILE_UNARY(simd_prefix_inclusive_sum)
METILE_UNARY(simd_prefix_exclusive_sum)
METILE_UNARY(simd_prefix_inclusive_product)
METILE_UNARY(simd_prefix_exclusive_product)
METILE_UNARY(quad_sum)
METILE_UNARY(quad_max)
METILE_UNARY(quad_min)
#define METILE_SHUFFLE(name)          \
  template <typename T, typename U>   \
  T name(T x, U lane);
METILE_SHUFFLE(simd_shuffle)
METILE_SHUFFLE(simd_shuffle_xor)
METILE_SHUFFLE(simd_shuffle_up)
METILE_SHUFFLE(simd_shuffle_down)
METILE_SHUFFLE(simd_shuffle_rotate_up)
METILE_SHUFFLE(simd_shuffle_rotate_down)
METILE_SHUFFLE(simd_broadcast)
METILE_SHUFFLE(quad_shuffle)
METILE_SHUFFLE(quad_shuffle_xor)
METILE_SHUFFLE(quad_broadcast)
bool simd_all(bool x);
bool simd_any(bool x);
bool simd_is_first();

enum class mem_flags {
  mem_none,
  mem_device,
  mem_threadgroup,
  mem_texture,
  mem_threadgroup_imageblock,
  mem_object_data
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return a;
}
void threadgroup_barrier(mem_flags flags);
void simdgroup_barrier(mem_flags flags);

enum memory_order { memory_order_relaxed, memory_order_acq_rel, memory_order_seq_cst };
enum thread_scope { thread_scope_device, thread_scope_threadgroup };
template <typename T>
struct atomic {
  T metile_value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;
template <typename T>
T metile_value_of(const volatile device atomic<T>* object);
template <typename T>
T metile_value_of(const volatile threadgroup atomic<T>* object);
#define METILE_ATOMIC(name)            \
  template <typename P, typename... A> \
  auto name(P object, A... a) -> decltype(metile_value_of(object));
METILE_ATOMIC(atomic_load_explicit)
METILE_ATOMIC(atomic_exchange_explicit)
METILE_ATOMIC(atomic_fetch_add_explicit)
METILE_ATOMIC(atomic_fetch_sub_explicit)
METILE_ATOMIC(atomic_fetch_max_explicit)
METILE_ATOMIC(atomic_fetch_min_explicit)
METILE_ATOMIC(atomic_fetch_and_explicit)
METILE_ATOMIC(atomic_fetch_or_explicit)
METILE_ATOMIC(atomic_fetch_xor_explicit)
template <typename P, typename... A>
void atomic_store_explicit(P object, A... a);
template <typename P, typename... A>
bool atomic_compare_exchange_weak_explicit(P object, A... a);
template <typename... A>
void atomic_thread_fence(A... a);

template <typename T, int C, int R>
struct simdgroup_matrix {
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T value);
  vec<T, 2>& thread_elements();
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <typename M, typename P, typename... A>
void simdgroup_load(M& matrix, P pointer, A... a);
template <typename M, typename P, typename... A>
void simdgroup_store(M matrix, P pointer, A... a);
template <typename D, typename A, typename B, typename C>
void simdgroup_multiply_accumulate(D& d, A a, B b, C c);
template <typename D, typename A, typename B>
void simdgroup_multiply(D& d, A a, B b);
template <typename T, int C, int R = C>
simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T value);

template <typename T, size_t N>
struct array {
  T metile_values[N];
};

struct simd_vote {
  typedef ulong vote_t;
  explicit operator vote_t() const;
};
simd_vote simd_ballot(bool x);
simd_vote simd_active_threads_mask();

}  // namespace metal

using namespace metal;

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define HALF_MAX ((half)65504.0f)
#define M_PI_F 3.14159265f
#define M_PI_2_F 1.57079632f
#define M_E_F 2.71828182f
#define M_LN2_F 0.69314718f
#define M_LOG2E_F 1.44269504f
#define M_SQRT2_F 1.41421356f
#define M_SQRT1_2_F 0.70710678f
#define M_1_PI_F 0.31830988f
#define M_2_SQRTPI_F 1.12837916f

template <typename T>
struct complex_t {
  T real;
  T imag;
  constexpr complex_t() = default;
  constexpr complex_t(T real, T imag) : real(real), imag(imag) {}
};
typedef complex_t<float> complex64_t;

template <typename U>
struct Limits {
  static const U max;
  static const U min;
  static const U finite_max;
  static const U finite_min;
};

template <typename IdxT = int64_t>
IdxT elem_to_loc(IdxT elem, constant const int* shape, constant const int64_t* strides, int ndim);
template <typename IdxT = int64_t>
IdxT elem_to_loc(uint3 elem, constant const int* shape, constant const int64_t* strides, int ndim);
template <typename T, typename U>
constexpr T ceildiv(T n, U m) {
  return (n + m - 1) / m;
}
