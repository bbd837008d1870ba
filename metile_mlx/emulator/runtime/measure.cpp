// How fast fibers switch with nothing else to do: what the speed of a launch is compared with.
#include "fiber.h"

namespace metile {
namespace {

void* scheduler;

void ping(Fiber* fiber) {
  for (;;) {
    metile_switch(&fiber->stack_pointer, scheduler);
  }
}

}  // namespace
}  // namespace metile

// Enters and leaves `fibers` fibers in turn, `rounds` times.
extern "C" void metile_measure_switches(metile_u32 fibers, metile_u64 rounds) {
  using namespace metile;
  Stacks stacks(fibers);
  Fiber** all = new Fiber*[fibers];
  for (uint32_t i = 0; i < fibers; ++i) {
    all[i] = stacks.make(i, nullptr, &ping);
  }
  for (uint64_t round = 0; round < rounds; ++round) {
    for (uint32_t i = 0; i < fibers; ++i) {
      metile_switch(&scheduler, all[i]->stack_pointer);
    }
  }
  delete[] all;
}
