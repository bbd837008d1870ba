// Lines of `metile_device_print`, in the words of the cpu backend's text.
#include <cstdio>

#include "worker.h"

extern "C" void metile_print(
    const char* label, int x, int y, int z, metile_u32 thread, metile_u32 slot, metile_u32 kind,
    float number, metile_i64 integer) {
  if (!metile::current_fiber()->worker->prints()) {
    return;
  }
  char value[32];
  switch (kind) {
    case METILE_PRINT_FLOAT: std::snprintf(value, sizeof value, "%.9g", double(number)); break;
    case METILE_PRINT_BOOL: std::snprintf(value, sizeof value, "%s", integer ? "True" : "False"); break;
    case METILE_PRINT_UNSIGNED: std::snprintf(value, sizeof value, "%lu", metile_u64(integer)); break;
    default: std::snprintf(value, sizeof value, "%ld", integer);
  }
  std::fprintf(
      stderr, "%s: program (%d, %d, %d), thread %u, register %u: %s\n", label, x, y, z, thread,
      slot, value);
}
