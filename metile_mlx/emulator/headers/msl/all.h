// All that the metal_* headers give. The words of the language come last.
#pragma once

#include "print.h"
#include "simdgroup_matrix.h"

namespace metal {

template <typename T>
struct metile_item {
  static constexpr uint bytes = sizeof(T);
};
template <typename T, size_t N>
struct metile_item<T[N]> {
  static constexpr uint bytes = metile_item<T>::bytes;
};

// The instance of a threadgroup variable that the calling thread's threadgroup has.
template <typename T, uint SITE>
METILE_INLINE T& metile_shared(const char* name) {
  return *static_cast<T*>(
      ::metile_threadgroup(SITE, sizeof(T), alignof(T), metile_item<T>::bytes, name));
}

// How a buffer becomes an argument of the kernel: a pointer, or a reference for 0 dimensions.
template <typename A>
struct metile_argument;
template <typename T>
struct metile_argument<T*> {
  static METILE_INLINE T* from(void* data) {
    return static_cast<T*>(data);
  }
};
template <typename T>
struct metile_argument<T&> {
  static METILE_INLINE T& from(void* data) {
    return *static_cast<T*>(data);
  }
};
METILE_INLINE uint3 metile_attribute(const uint (&value)[3]) {
  return {value[0], value[1], value[2]};
}
METILE_INLINE uint metile_attribute(uint value) {
  return value;
}

}  // namespace metal

#define kernel
#define device
#define constant
#define thread
#define threadgroup
#define threadgroup_imageblock
#define ray_data
#define object_data
