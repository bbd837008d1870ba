// MSL's numbers, packed vectors and functions with a CUDA meaning: the first half of msl_cuda.h.
//
// METILE_STRICT 1: every float operation rounds by itself, as each is written; 0: the compiler may
// contract a product with the sum that uses it.
#ifndef METILE_MSL_CUDA_NUMBERS
#define METILE_MSL_CUDA_NUMBERS
#undef MAX_NDIM
#undef WARP_SIZE
#undef inf
#undef INFINITY
#undef NAN
#define METILE_FN __device__ __forceinline__
#define METILE_ALL_LANES 0xffffffffu

namespace mlx::core::cu {

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

template <class T, class S>
METILE_FN T as_type(S value) {
  static_assert(sizeof(T) == sizeof(S), "as_type keeps the size");
  T result;
  memcpy(&result, &value, sizeof(T));
  return result;
}

// float, without conversions that C++ would make silently. Trivial, so it may be threadgroup memory.
struct metile_float {
  float value;
  metile_float() = default;
  METILE_FN metile_float(float number) : value(number) {}
  template <class T>
  METILE_FN explicit metile_float(T number) : value(static_cast<float>(number)) {}
  template <class T>
  METILE_FN explicit operator T() const {
    return static_cast<T>(value);
  }
};
METILE_FN metile_float operator-(metile_float a) {
  return -a.value;
}
#if METILE_STRICT
METILE_FN metile_float operator+(metile_float a, metile_float b) {
  return __fadd_rn(a.value, b.value);
}
METILE_FN metile_float operator-(metile_float a, metile_float b) {
  return __fsub_rn(a.value, b.value);
}
METILE_FN metile_float operator*(metile_float a, metile_float b) {
  return __fmul_rn(a.value, b.value);
}
METILE_FN metile_float operator/(metile_float a, metile_float b) {
  return __fdiv_rn(a.value, b.value);
}
#else
METILE_FN metile_float operator+(metile_float a, metile_float b) {
  return a.value + b.value;
}
METILE_FN metile_float operator-(metile_float a, metile_float b) {
  return a.value - b.value;
}
METILE_FN metile_float operator*(metile_float a, metile_float b) {
  return a.value * b.value;
}
METILE_FN metile_float operator/(metile_float a, metile_float b) {
  return a.value / b.value;
}
#endif

// 16 bits of storage. f16 has operators of its own; bf16 is only converted.
struct half {
  ushort bits;
  half() = default;
  template <class T>
  METILE_FN explicit half(T number)
      : bits(__half_as_ushort(__float2half_rn(static_cast<float>(number)))) {}
  METILE_FN __half native() const {
    return __ushort_as_half(bits);
  }
  template <class T>
  METILE_FN explicit operator T() const {
    return static_cast<T>(__half2float(native()));
  }
};
METILE_FN half metile_half(__half number) {
  return as_type<half>(__half_as_ushort(number));
}
METILE_FN half operator-(half a) {
  return as_type<half>(ushort(a.bits ^ 0x8000u));
}
#if METILE_STRICT
METILE_FN half operator+(half a, half b) {
  return metile_half(__hadd_rn(a.native(), b.native()));
}
METILE_FN half operator-(half a, half b) {
  return metile_half(__hsub_rn(a.native(), b.native()));
}
METILE_FN half operator*(half a, half b) {
  return metile_half(__hmul_rn(a.native(), b.native()));
}
#else
METILE_FN half operator+(half a, half b) {
  return metile_half(__hadd(a.native(), b.native()));
}
METILE_FN half operator-(half a, half b) {
  return metile_half(__hsub(a.native(), b.native()));
}
METILE_FN half operator*(half a, half b) {
  return metile_half(__hmul(a.native(), b.native()));
}
#endif
// The quotient of two f16 has room enough in f32 to be rounded twice without harm.
METILE_FN half operator/(half a, half b) {
  return half(__fdiv_rn(static_cast<float>(a), static_cast<float>(b)));
}

struct bfloat {
  ushort bits;
  bfloat() = default;
  template <class T>
  METILE_FN explicit bfloat(T number)
      : bits(__bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(number)))) {}
  template <class T>
  METILE_FN explicit operator T() const {
    return static_cast<T>(__uint_as_float(uint(bits) << 16));
  }
};

#define METILE_COMPARE(type, op)                         \
  METILE_FN bool operator op(type a, type b) {           \
    return static_cast<float>(a) op static_cast<float>(b); \
  }
#define METILE_COMPARISONS(type) \
  METILE_COMPARE(type, ==)       \
  METILE_COMPARE(type, !=)       \
  METILE_COMPARE(type, <)        \
  METILE_COMPARE(type, <=)       \
  METILE_COMPARE(type, >)        \
  METILE_COMPARE(type, >=)
METILE_COMPARISONS(metile_float)
METILE_COMPARISONS(half)
#undef METILE_COMPARISONS
#undef METILE_COMPARE

// A packed vector is aligned like one element: one access where the address allows it, else four.
template <class T>
struct metile_packed4;

template <class T>
struct alignas(4 * sizeof(T)) metile_vector4 {
  T x, y, z, w;
  metile_vector4() = default;
  METILE_FN metile_vector4(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  METILE_FN explicit metile_vector4(T a) : x(a), y(a), z(a), w(a) {}
  METILE_FN explicit metile_vector4(const metile_packed4<T>& packed);
  METILE_FN T& operator[](int i) {
    return (&x)[i];
  }
};

// As instructions: where four narrow stores to the same place stand beside a wide one, the compiler
// would split that one too.
METILE_FN void metile_store_words(void* at, ::uint2 words) {
  if (__isGlobal(at)) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                 :
                 : "l"(__cvta_generic_to_global(at)), "r"(words.x), "r"(words.y)
                 : "memory");
  } else {
    asm volatile("st.v2.b32 [%0], {%1, %2};"
                 :
                 : "l"(at), "r"(words.x), "r"(words.y)
                 : "memory");
  }
}
METILE_FN void metile_store_words(void* at, ::uint4 words) {
  if (__isGlobal(at)) {
    asm volatile(
        "st.global.v4.b32 [%0], {%1, %2, %3, %4};"
        :
        : "l"(__cvta_generic_to_global(at)), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
        : "memory");
  } else {
    asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(at), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
  }
}

template <int BYTES>
struct metile_words;
template <>
struct metile_words<8> {
  typedef ::uint2 type;
};
template <>
struct metile_words<16> {
  typedef ::uint4 type;
};

template <class T>
struct metile_packed4 {
  typedef typename metile_words<4 * sizeof(T)>::type words;
  T at[4];
  metile_packed4() = default;
  METILE_FN explicit metile_packed4(metile_vector4<T> v) : at{v.x, v.y, v.z, v.w} {}
  metile_packed4(const metile_packed4&) = default;
  METILE_FN bool aligned() const {
    return (reinterpret_cast<ulong>(this) & (4 * sizeof(T) - 1)) == 0;
  }
  METILE_FN metile_packed4& operator=(const metile_packed4& from) {
    if (aligned()) {
      metile_vector4<T> v(from.at[0], from.at[1], from.at[2], from.at[3]);
      metile_store_words(this, as_type<words>(v));
    } else {
      for (int i = 0; i < 4; ++i)
        at[i] = from.at[i];
    }
    return *this;
  }
};
template <class T>
METILE_FN metile_vector4<T>::metile_vector4(const metile_packed4<T>& packed) {
  if (packed.aligned()) {
    *this = as_type<metile_vector4<T>>(
        *reinterpret_cast<const typename metile_packed4<T>::words*>(&packed));
  } else {
    x = packed.at[0];
    y = packed.at[1];
    z = packed.at[2];
    w = packed.at[3];
  }
}

// Eight neighbours of 16 bits: one access of 16 bytes where the address allows it.
#define METILE_GROUPS_OF_8
template <class S>
METILE_FN bool metile_aligned16(const S* at) {
  static_assert(sizeof(S) == 2, "eight of 16 bits");
  return (reinterpret_cast<ulong>(at) & 15) == 0;
}
template <class S, class T>
METILE_FN void metile_load8(const S* at, metile_vector4<T>& low, metile_vector4<T>& high) {
  if (metile_aligned16(at)) {
    ::uint4 words = *reinterpret_cast<const ::uint4*>(at);
    low = as_type<metile_vector4<T>>(make_uint2(words.x, words.y));
    high = as_type<metile_vector4<T>>(make_uint2(words.z, words.w));
  } else {
    const T* each = reinterpret_cast<const T*>(at);
    low = metile_vector4<T>(each[0], each[1], each[2], each[3]);
    high = metile_vector4<T>(each[4], each[5], each[6], each[7]);
  }
}
template <class S, class T>
METILE_FN void metile_store8(S* at, metile_vector4<T> low, metile_vector4<T> high) {
  if (metile_aligned16(at)) {
    ::uint2 a = as_type<::uint2>(low), b = as_type<::uint2>(high);
    metile_store_words(at, make_uint4(a.x, a.y, b.x, b.y));
  } else {
    T* each = reinterpret_cast<T*>(at);
    for (int i = 0; i < 4; ++i) {
      each[i] = low[i];
      each[4 + i] = high[i];
    }
  }
}
typedef metile_vector4<metile_float> float4;
typedef metile_vector4<half> half4;
typedef metile_vector4<ushort> ushort4;
typedef metile_packed4<metile_float> packed_float4;
typedef metile_packed4<half> packed_half4;
typedef metile_packed4<ushort> packed_ushort4;

namespace metal {
#define METILE_UNARY(name, call)              \
  METILE_FN metile_float name(metile_float a) { \
    return call(a.value);                     \
  }
#define METILE_BINARY(name, call)                             \
  METILE_FN metile_float name(metile_float a, metile_float b) { \
    return call(a.value, b.value);                            \
  }
METILE_UNARY(abs, fabsf)
METILE_UNARY(ceil, ceilf)
METILE_UNARY(floor, floorf)
METILE_UNARY(rint, rintf)
METILE_UNARY(round, roundf)
METILE_UNARY(trunc, truncf)
METILE_UNARY(cos, cosf)
METILE_UNARY(sin, sinf)
METILE_UNARY(tan, tanf)
METILE_UNARY(tanh, tanhf)
METILE_UNARY(exp, expf)
METILE_UNARY(exp2, exp2f)
METILE_UNARY(log, logf)
METILE_UNARY(log2, log2f)
METILE_UNARY(sqrt, __fsqrt_rn)
METILE_UNARY(rsqrt, __frsqrt_rn)
METILE_BINARY(copysign, copysignf)
METILE_BINARY(fmod, fmodf)
METILE_BINARY(fmax, fmaxf)
METILE_BINARY(fmin, fminf)
METILE_BINARY(max, fmaxf)
METILE_BINARY(min, fminf)
METILE_BINARY(pow, powf)
#undef METILE_UNARY
#undef METILE_BINARY
METILE_FN metile_float fma(metile_float a, metile_float b, metile_float c) {
  return __fmaf_rn(a.value, b.value, c.value);
}
template <class T>
METILE_FN bool isnan(T a) {
  return static_cast<float>(a) != static_cast<float>(a);
}
template <class T>
METILE_FN bool isinf(T a) {
  return fabsf(static_cast<float>(a)) == __uint_as_float(0x7f800000u);
}
METILE_FN int max(int a, int b) {
  return a < b ? b : a;
}
METILE_FN int min(int a, int b) {
  return b < a ? b : a;
}
METILE_FN uint max(uint a, uint b) {
  return a < b ? b : a;
}
METILE_FN uint min(uint a, uint b) {
  return b < a ? b : a;
}
METILE_FN half max(half a, half b) {
  return half(fmaxf(static_cast<float>(a), static_cast<float>(b)));
}
METILE_FN half min(half a, half b) {
  return half(fminf(static_cast<float>(a), static_cast<float>(b)));
}
// These are the accurate functions already.
namespace precise {
using metal::cos;
using metal::exp;
using metal::exp2;
using metal::fmod;
using metal::log;
using metal::log2;
using metal::pow;
using metal::rsqrt;
using metal::sin;
using metal::sqrt;
using metal::tan;
using metal::tanh;
}
}

}
#endif
