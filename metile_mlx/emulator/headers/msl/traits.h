// metal_type_traits: the part of the C++ library that Metal has, without a standard header.
#pragma once

#include "abi.h"

#define METILE_INLINE inline __attribute__((always_inline))

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

namespace metal {

template <typename T, T V>
struct integral_constant {
  static constexpr T value = V;
  using value_type = T;
  using type = integral_constant;
  constexpr operator T() const {
    return V;
  }
  constexpr T operator()() const {
    return V;
  }
};
template <bool B>
using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <bool B, typename T = void>
struct enable_if {};
template <typename T>
struct enable_if<true, T> {
  using type = T;
};
template <bool B, typename T = void>
using enable_if_t = typename enable_if<B, T>::type;

template <bool B, typename T, typename F>
struct conditional {
  using type = T;
};
template <typename T, typename F>
struct conditional<false, T, F> {
  using type = F;
};
template <bool B, typename T, typename F>
using conditional_t = typename conditional<B, T, F>::type;

template <typename T>
struct type_identity {
  using type = T;
};
template <typename T>
using type_identity_t = typename type_identity<T>::type;
template <typename...>
using void_t = void;

#define METILE_TRAIT(name, ...)                  \
  template <typename T>                          \
  inline constexpr bool name##_v = __VA_ARGS__;  \
  template <typename T>                          \
  struct name : bool_constant<name##_v<T>> {};
#define METILE_TRAIT2(name, ...)                 \
  template <typename T, typename U>              \
  inline constexpr bool name##_v = __VA_ARGS__;  \
  template <typename T, typename U>              \
  struct name : bool_constant<name##_v<T, U>> {};
#define METILE_ALIAS(name, ...)                  \
  template <typename T>                          \
  struct name {                                  \
    using type = __VA_ARGS__;                    \
  };                                             \
  template <typename T>                          \
  using name##_t = typename name<T>::type;

METILE_TRAIT2(is_same, __is_same(T, U))
METILE_TRAIT2(is_base_of, __is_base_of(T, U))
METILE_TRAIT2(is_convertible, __is_convertible(T, U))
METILE_TRAIT(is_void, __is_void(T))
METILE_TRAIT(is_const, __is_const(T))
METILE_TRAIT(is_integral, __is_integral(T))
METILE_TRAIT(is_pointer, __is_pointer(T))
METILE_TRAIT(is_reference, __is_reference(T))
METILE_TRAIT(is_array, __is_array(T))
METILE_TRAIT(is_enum, __is_enum(T))
METILE_TRAIT(is_class, __is_class(T))
METILE_TRAIT(is_signed, __is_signed(T))
METILE_TRAIT(is_unsigned, __is_unsigned(T))
METILE_TRAIT(is_empty, __is_empty(T))
METILE_TRAIT(is_trivially_copyable, __is_trivially_copyable(T))
METILE_ALIAS(remove_const, __remove_const(T))
METILE_ALIAS(remove_volatile, __remove_volatile(T))
METILE_ALIAS(remove_cv, __remove_cv(T))
METILE_ALIAS(remove_reference, __remove_reference_t(T))
METILE_ALIAS(remove_pointer, __remove_pointer(T))
METILE_ALIAS(remove_extent, __remove_extent(T))
METILE_ALIAS(add_const, const T)
METILE_ALIAS(decay, __decay(T))
METILE_ALIAS(make_signed, __make_signed(T))
METILE_ALIAS(make_unsigned, __make_unsigned(T))
METILE_ALIAS(underlying_type, __underlying_type(T))

template <typename T>
T&& declval();

template <typename T>
constexpr T&& forward(remove_reference_t<T>& value) {
  return static_cast<T&&>(value);
}
template <typename T>
constexpr remove_reference_t<T>&& move(T&& value) {
  return static_cast<remove_reference_t<T>&&>(value);
}
template <typename T>
METILE_INLINE void swap(T& a, T& b) {
  T kept = a;
  a = b;
  b = kept;
}

template <typename... Ts>
struct common_type;
template <typename T>
struct common_type<T> {
  using type = T;
};
template <typename T, typename U>
struct common_type<T, U> {
  using type = decay_t<decltype(true ? declval<T>() : declval<U>())>;
};
template <typename... Ts>
using common_type_t = typename common_type<Ts...>::type;

}  // namespace metal

// Sizes must be equal, as in Metal.
template <typename T, typename U>
METILE_INLINE constexpr T as_type(const U& value) {
  static_assert(sizeof(T) == sizeof(U), "as_type needs types of equal size");
  if constexpr (__is_trivially_copyable(T) && __is_trivially_copyable(U)) {
    return __builtin_bit_cast(T, value);
  } else {
    T out;
    __builtin_memcpy(&out, &value, sizeof out);
    return out;
  }
}
