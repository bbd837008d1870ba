// How threadgroups run. A simdgroup runs until all its lanes wait at a threadgroup barrier or are
// done; operations across lanes happen once no lane of it can go on alone.
#include "worker.h"

namespace metile {

Worker::Worker(const Dispatch& dispatch, std::shared_ptr<Stacks> stacks)
    : dispatch_(dispatch), stacks_(std::move(stacks)), seed_(dispatch.launch->schedule) {
  const uint32_t threads = dispatch.group_threads();
  for (uint32_t i = threads; i-- > 0;) {
    free_.push_back(stacks_->make(i, this, &Worker::fiber_main));
  }
  of_thread_.resize(threads);
  simdgroups_.resize((threads + kLanes - 1) / kLanes);
  released_.resize(simdgroups_.size());
  for (uint32_t i = 0; i < simdgroups_.size(); ++i) {
    simdgroup_order_.push_back(i);
  }
  for (uint32_t i = 0; i < kLanes; ++i) {
    lane_order_.push_back(i);
  }
  if (!dispatch.checker) {
    arena_.reset(new char[kSharedBytes]);
  }
}

void Worker::place(uint64_t number) {
  const auto& grid = dispatch_.launch->grid;
  threads_ = 1;
  for (int axis = 0; axis < 3; ++axis) {
    const auto size = dispatch_.threadgroup[axis];
    const uint32_t position = uint32_t(number % dispatch_.groups[axis]);
    number /= dispatch_.groups[axis];
    group_.threadgroup_position_in_grid[axis] = position;
    group_.threadgroups_per_grid[axis] = dispatch_.groups[axis];
    group_.threads_per_grid[axis] = grid[axis];
    group_.dispatch_threads_per_threadgroup[axis] = size;
    group_.threads_per_threadgroup[axis] = std::min(size, grid[axis] - position * size);
    threads_ *= group_.threads_per_threadgroup[axis];
  }
  const uint32_t full = dispatch_.group_threads();
  group_.simdgroups_per_threadgroup = (threads_ + kLanes - 1) / kLanes;
  group_.quadgroups_per_threadgroup = (threads_ + 3) / 4;
  group_.dispatch_simdgroups_per_threadgroup = (full + kLanes - 1) / kLanes;
  group_.dispatch_quadgroups_per_threadgroup = (full + 3) / 4;
}

void Worker::begin(Fiber* fiber, uint32_t thread) {
  auto& at = fiber->attributes;
  at = group_;
  const auto& size = group_.threads_per_threadgroup;
  uint32_t rest = thread;
  for (int axis = 0; axis < 3; ++axis) {
    const uint32_t position = axis == 2 ? rest : size[axis] == threads_ ? rest : rest % size[axis];
    rest = axis == 2 || size[axis] == threads_ ? 0 : rest / size[axis];
    at.thread_position_in_threadgroup[axis] = position;
    at.thread_position_in_grid[axis] =
        group_.threadgroup_position_in_grid[axis] * dispatch_.threadgroup[axis] + position;
  }
  at.thread_index_in_threadgroup = thread;
  at.thread_index_in_simdgroup = thread % kLanes;
  at.simdgroup_index_in_threadgroup = thread / kLanes;
  at.thread_index_in_quadgroup = thread % 4;
  at.quadgroup_index_in_threadgroup = thread / 4;
  fiber->wait = Wait::kRunning;
  of_thread_[thread] = fiber;
  if (dispatch_.checker) {
    dispatch_.checker->set_thread(thread);
  }
}

// One fiber runs thread after thread, as long as they end without waiting.
void Worker::fiber_main(Fiber* fiber) {
  for (;;) {
    Worker* worker = fiber->worker;
    worker->dispatch_.function(worker->dispatch_.buffers, &fiber->attributes);
    fiber->wait = Wait::kDone;
    const auto& at = fiber->attributes;
    worker->simdgroups_[at.simdgroup_index_in_threadgroup].done |=
        1u << at.thread_index_in_simdgroup;
    if (worker->next_ < worker->end_) {
      worker->begin(fiber, worker->first_ + worker->starting_[worker->next_++]);
      continue;
    }
    worker->free_.push_back(fiber);
    worker->block(fiber);
  }
}

inline void Worker::enter(Fiber* fiber) {
  metile_switch(&stack_pointer_, fiber->stack_pointer);
  if (fiber->wait == Wait::kMeeting || fiber->wait == Wait::kBarrier) {
    const auto& at = fiber->attributes;
    auto& group = simdgroups_[at.simdgroup_index_in_threadgroup];
    const uint32_t lane = 1u << at.thread_index_in_simdgroup;
    (fiber->wait == Wait::kMeeting ? group.meeting : group.barrier) |= lane;
  }
}

void Worker::start(uint32_t number) {
  first_ = number * kLanes;
  const uint32_t count = std::min(kLanes, threads_ - first_);
  simdgroups_[number] = {count == kLanes ? ~0u : (1u << count) - 1u, 0, 0, 0};
  if (seed_) {
    shuffle(lane_order_);
  }
  next_ = 0;
  end_ = 0;
  for (const uint32_t lane : lane_order_) {
    if (lane < count) {
      starting_[end_++] = lane;
    }
  }
  while (next_ < end_ && !crash_.happened) {
    Fiber* fiber = free_.back();
    free_.pop_back();
    begin(fiber, first_ + starting_[next_++]);
    enter(fiber);
  }
}

void Worker::resume(uint32_t number, uint32_t lanes) {
  for (uint32_t i = 0; i < kLanes && !crash_.happened; ++i) {
    const uint32_t lane = lane_order_[i];
    if (lanes >> lane & 1u) {
      Fiber* fiber = of_thread_[number * kLanes + lane];
      fiber->wait = Wait::kRunning;
      if (dispatch_.checker) {
        dispatch_.checker->set_thread(number * kLanes + lane);
      }
      enter(fiber);
    }
  }
}

// The lanes whose operation comes first in the text; the others reach it later, or never.
uint32_t Worker::choose(uint32_t number) const {
  const uint32_t waiting = simdgroups_[number].meeting;
  const metile_meeting* first = nullptr;
  uint32_t chosen = 0;
  for (uint32_t rest = waiting; rest; rest &= rest - 1) {
    const uint32_t lane = uint32_t(__builtin_ctz(rest));
    const metile_meeting* meeting = of_thread_[number * kLanes + lane]->meeting;
    if (!first || meeting->site < first->site) {
      first = meeting;
      chosen = 0;
    }
    if (meeting->site == first->site && meeting->combine == first->combine) {
      chosen |= 1u << lane;
    }
  }
  return chosen;
}

void Worker::meet(uint32_t number, uint32_t lanes) {
  void* records[kLanes];
  const metile_meeting* meeting = nullptr;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const uint32_t lane = uint32_t(__builtin_ctz(rest));
    meeting = of_thread_[number * kLanes + lane]->meeting;
    records[lane] = meeting->data;
  }
  auto& group = simdgroups_[number];
  float_reductions_ |= meeting->is_float_reduction != 0;
  if (dispatch_.checker) {
    const uint32_t live = group.present & ~group.done;
    dispatch_.checker->meet(*meeting, number, lanes, live);
  }
  group.meeting &= ~lanes;
  if (meeting->combine) {
    const auto order = dispatch_.launch->reduction_order;
    meeting->combine(records, lanes, order < 2 ? order : random() | 2);
  }
}

// Runs a simdgroup until no lane of it can go on without the other simdgroups.
void Worker::settle(uint32_t number) {
  while (simdgroups_[number].meeting && !crash_.happened) {
    const uint32_t lanes = choose(number);
    meet(number, lanes);
    resume(number, lanes);
  }
}

bool Worker::run_group(uint64_t number) {
  place(number);
  if (dispatch_.checker) {
    dispatch_.checker->begin_group(group_);
  }
  const uint32_t count = group_.simdgroups_per_threadgroup;
  if (seed_) {
    shuffle(simdgroup_order_);
  }
  for (const uint32_t i : simdgroup_order_) {
    if (i < count && !crash_.happened) {
      start(i);
      settle(i);
    }
  }
  while (!crash_.happened && release_barrier()) {
  }
  return !crash_.happened;
}

void Worker::report_missing(uint64_t site, uint32_t first) {
  uint32_t missing = ~0u;
  bool has_ended = true;
  for (uint32_t i = 0; i < threads_; ++i) {
    const Fiber* fiber = of_thread_[i];
    const bool is_done = simdgroups_[i / kLanes].done >> (i % kLanes) & 1u;
    if (is_done || fiber->barrier_site != site) {
      missing = i;
      has_ended = is_done;
      break;
    }
  }
  dispatch_.checker->divergent_barrier(uint32_t(site >> 32), first, missing, has_ended);
}

// Lets the threads at the barrier go on; false where all are done.
bool Worker::release_barrier() {
  uint64_t site = ~uint64_t(0);
  uint32_t waiting = 0, same = 0, first = 0, flags = 0;
  const uint32_t count = group_.simdgroups_per_threadgroup;
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t rest = simdgroups_[i].barrier; rest; rest &= rest - 1) {
      const uint32_t thread = i * kLanes + uint32_t(__builtin_ctz(rest));
      const Fiber* fiber = of_thread_[thread];
      ++waiting;
      if (fiber->barrier_site < site) {
        site = fiber->barrier_site;
        first = thread;
        same = 0;
      }
      if (fiber->barrier_site == site) {
        flags = same ? flags & fiber->barrier_flags : fiber->barrier_flags;
        ++same;
      }
    }
  }
  if (!waiting) {
    return false;
  }
  if (dispatch_.checker) {
    if (same != threads_) {
      report_missing(site, first);
    }
    dispatch_.checker->barrier(flags);
  }
  auto& released = released_;
  for (uint32_t i = 0; i < count; ++i) {
    released[i] = 0;
    for (uint32_t rest = simdgroups_[i].barrier; rest; rest &= rest - 1) {
      const uint32_t lane = uint32_t(__builtin_ctz(rest));
      if (of_thread_[i * kLanes + lane]->barrier_site == site) {
        released[i] |= 1u << lane;
      }
    }
    simdgroups_[i].barrier &= ~released[i];
  }
  if (seed_) {
    shuffle(simdgroup_order_);
  }
  for (const uint32_t i : simdgroup_order_) {
    if (i < count && released[i] && !crash_.happened) {
      resume(i, released[i]);
      if (seed_) {
        settle(i);
      }
    }
  }
  if (!seed_) {
    settle_together(count);
  }
  return true;
}

// In the natural order simdgroups advance side by side, one operation at a time, as on a device:
// kernels whose races only a simdgroup far ahead of the others shows give their usual results.
void Worker::settle_together(uint32_t count) {
  for (bool has_moved = true; has_moved && !crash_.happened;) {
    has_moved = false;
    for (uint32_t i = 0; i < count && !crash_.happened; ++i) {
      if (simdgroups_[i].meeting) {
        const uint32_t lanes = choose(i);
        meet(i, lanes);
        resume(i, lanes);
        has_moved = true;
      }
    }
  }
}

void* Worker::shared(
    uint32_t site, uint64_t bytes, uint64_t align, uint32_t item, const char* name) {
  if (site >= kMaxSites) {
    return nullptr;  // the access that follows ends the run
  }
  if (sites_[site]) {
    return sites_[site];
  }
  const uint64_t start = (shared_bytes_ + align - 1) / align * align;
  shared_bytes_ = start + bytes;
  void* at;
  if (dispatch_.checker) {
    at = dispatch_.checker->add_threadgroup(name, bytes, item, shared_bytes_);
  } else {
    // Past the end of the arena only a kernel that no device accepts goes.
    at = shared_bytes_ <= kSharedBytes ? arena_.get() + start : nullptr;
  }
  return sites_[site] = at;
}

void* Worker::abandon(int signal, uintptr_t code, Fiber* fiber) {
  crash_.happened = true;
  crash_.signal = signal;
  crash_.code = code;
  const auto& at = fiber->attributes;
  std::copy_n(at.threadgroup_position_in_grid, 3, crash_.group);
  crash_.thread = at.thread_index_in_threadgroup;
  return stack_pointer_;
}

uint64_t Worker::random() {
  seed_ = seed_ * 6364136223846793005ull + 1442695040888963407ull;
  return seed_ >> 17;
}

void Worker::shuffle(std::vector<uint32_t>& order) {
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random() % i]);
  }
}

}  // namespace metile

extern "C" {

void metile_barrier(metile_u32 flags, metile_u32 line, metile_u32 column) {
  auto* fiber = metile::current_fiber();
  fiber->barrier_site = (uint64_t(line) << 32) | column;
  fiber->barrier_flags = flags;
  fiber->wait = metile::Wait::kBarrier;
  fiber->worker->block(fiber);
}

void metile_meet(metile_meeting* meeting) {
  auto* fiber = metile::current_fiber();
  fiber->meeting = meeting;
  fiber->wait = metile::Wait::kMeeting;
  fiber->worker->block(fiber);
}

metile_u32 metile_lane() {
  return metile::current_fiber()->attributes.thread_index_in_simdgroup;
}

void* metile_threadgroup(
    metile_u32 site, metile_u64 bytes, metile_u64 align, metile_u32 item_bytes, const char* name) {
  auto* fiber = metile::current_fiber();
  return fiber->worker->shared(site, bytes, align, item_bytes, name);
}
}
