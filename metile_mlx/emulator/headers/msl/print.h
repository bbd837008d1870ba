// `metile_device_print` of our own kernels: Metal has no such function.
#pragma once

#include "reduce.h"

namespace metal {

METILE_INLINE void metile_print_float(
    const char* label, int x, int y, int z, uint thread, uint slot, float value) {
  ::metile_print(label, x, y, z, thread, slot, METILE_PRINT_FLOAT, value, 0);
}
METILE_INLINE void metile_device_print(
    const char* label, int x, int y, int z, uint thread, uint slot, float value) {
  metile_print_float(label, x, y, z, thread, slot, value);
}
METILE_INLINE void metile_device_print(
    const char* label, int x, int y, int z, uint thread, uint slot, half value) {
  metile_print_float(label, x, y, z, thread, slot, float(value));
}
METILE_INLINE void metile_device_print(
    const char* label, int x, int y, int z, uint thread, uint slot, bfloat value) {
  metile_print_float(label, x, y, z, thread, slot, float(value));
}
METILE_INLINE void metile_device_print(
    const char* label, int x, int y, int z, uint thread, uint slot, bool value) {
  ::metile_print(label, x, y, z, thread, slot, METILE_PRINT_BOOL, 0.0f, value);
}
METILE_INLINE void metile_device_print(
    const char* label, int x, int y, int z, uint thread, uint slot, ulong value) {
  ::metile_print(label, x, y, z, thread, slot, METILE_PRINT_UNSIGNED, 0.0f, metile_i64(value));
}
template <typename T>
METILE_INLINE void metile_device_print(
    const char* label, int x, int y, int z, uint thread, uint slot, T value) {
  ::metile_print(label, x, y, z, thread, slot, METILE_PRINT_SIGNED, 0.0f, metile_i64(value));
}

}  // namespace metal
