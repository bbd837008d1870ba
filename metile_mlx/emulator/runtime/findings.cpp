// How the checker words what it finds: the first occurrence of each fault at each place.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "checker.h"

namespace metile {

metile_finding* Checker::find(
    uint32_t fault, const Region* region, uint32_t access, uint32_t other, uint32_t line,
    uintptr_t code) {
  for (uint32_t i = 0; i < launch_->finding_count; ++i) {
    auto& known = launch_->findings[i];
    const bool is_same_array = !region || std::strcmp(known.array, region->name) == 0;
    if (known.fault == fault && known.access == access && known.other_access == other &&
        known.line == line && known.code == code && is_same_array) {
      ++known.count;
      return nullptr;
    }
  }
  if (launch_->finding_count == launch_->finding_capacity) {
    return nullptr;
  }
  auto& finding = launch_->findings[launch_->finding_count++];
  finding = {};
  finding.fault = fault;
  finding.access = access;
  finding.other_access = other;
  finding.line = line;
  finding.code = code;
  finding.count = 1;
  finding.thread = finding.other_thread = kNobody;
  return &finding;
}

void Checker::who(metile_finding& finding, uint32_t thread) const {
  finding.thread = thread;
  std::copy_n(group_, 3, finding.group);
}

void Checker::where(
    metile_finding& finding, const Region& region, int64_t offset, uint64_t bytes) const {
  finding.byte_offset = offset - int64_t(region.lead);
  finding.bytes = bytes;
  finding.array_bytes = region.bytes;
  finding.item_bytes = region.item_bytes;
  finding.is_threadgroup = region.space == kThreadgroup;
  std::memcpy(finding.array, region.name, sizeof finding.array);
}

void Checker::group_at(uint64_t time, uint32_t* group) const {
  auto after = std::upper_bound(
      started_.begin(), started_.end(), time,
      [](uint64_t value, const Started& started) { return value < started.time; });
  std::copy_n((after == started_.begin() ? after : after - 1)->group, 3, group);
}

void Checker::race(
    Region& region, uint64_t cell, Record record, uint32_t thread, uint32_t mine, uint32_t theirs,
    uintptr_t code) {
  auto* finding = find(METILE_RACE, &region, mine, theirs, 0, code);
  if (!finding) {
    return;
  }
  who(*finding, thread_);
  where(*finding, region, int64_t(cell << region.shift), 1u << region.shift);
  finding->other_thread = thread;
  group_at(time_of(record), finding->other_group);
}

// The access then goes to a page of its own, so that the run can go on.
void Checker::out_of_bounds(
    Region& region, uintptr_t address, uint64_t bytes, uint32_t access, uintptr_t code) {
  open_page(address, bytes);
  uint32_t line = 0;
  if (index_.is_set && index_.thread == thread_) {
    line = index_.line;
    index_.is_set = false;
  }
  const bool is_const = region.base && address - region.base < region.bytes;
  auto* finding = find(METILE_BOUNDS, &region, access, METILE_NO_ACCESS, line, code);
  if (!finding) {
    return;
  }
  who(*finding, thread_);
  where(*finding, region, int64_t(address - region.base), bytes);
  if (is_const) {
    std::snprintf(finding->detail, sizeof finding->detail, "an input is written");
  }
}

void Checker::open_page(uintptr_t address, uint64_t bytes) {
  constexpr uintptr_t page = 4096;
  for (uintptr_t at = address / page * page; at < address + bytes; at += page) {
    bool is_inside = std::find(opened_.begin(), opened_.end(), at) != opened_.end();
    for (uint32_t i = 0; i < region_count_ && !is_inside; ++i) {
      const Region& region = regions_[i];
      is_inside = at + page > region.base && at < region.base + region.bytes;
    }
    if (is_inside || at - arena_ >= kArenaBytes) {
      continue;
    }
    mprotect(reinterpret_cast<void*>(at), page, PROT_READ | PROT_WRITE);
    auto* words = reinterpret_cast<uint16_t*>(at);
    std::fill_n(words, page / 2, uint16_t(0x7fc5));
    opened_.push_back(at);
  }
}

void Checker::meet(
    const metile_meeting& meeting, uint32_t simdgroup, uint32_t lanes, uint32_t live) {
  flush_index();
  const uint32_t width = meeting.width == 4 ? 4 : 32;
  for (uint32_t first = 0; first < 32; first += width) {
    const uint32_t mask = (width == 32 ? ~0u : 15u) << first;
    const uint32_t here = lanes & mask;
    const uint32_t needed = meeting.complete ? mask : live & mask;
    if (!here || here == needed) {
      continue;
    }
    auto* finding = find(
        METILE_DIVERGENT_SIMD, nullptr, METILE_NO_ACCESS, METILE_NO_ACCESS, meeting.line, 0);
    if (finding) {
      who(*finding, simdgroup * 32 + uint32_t(__builtin_ctz(here)));
      finding->other_thread = simdgroup * 32 + uint32_t(__builtin_ctz(needed & ~here));
      std::copy_n(group_, 3, finding->other_group);
      std::snprintf(finding->detail, sizeof finding->detail, "%s", meeting.name);
    }
  }
  if (meeting.memory) {
    ++time_;
    if (meeting.memory & 1) {
      simdgroup_barrier_[kDevice][simdgroup] = time_;
    }
    if (meeting.memory & 2) {
      simdgroup_barrier_[kThreadgroup][simdgroup] = time_;
    }
  }
}

void Checker::divergent_barrier(
    uint32_t line, uint32_t thread, uint32_t missing, bool has_ended) {
  auto* finding = find(
      METILE_DIVERGENT_BARRIER, nullptr, METILE_NO_ACCESS, METILE_NO_ACCESS, line, 0);
  if (!finding) {
    return;
  }
  who(*finding, thread);
  finding->other_thread = missing;
  std::copy_n(group_, 3, finding->other_group);
  std::snprintf(
      finding->detail, sizeof finding->detail, "%s",
      has_ended ? "has ended" : "waits at another barrier");
}

void Checker::inactive(const char* name, uint32_t lane, uint32_t line) {
  auto* finding =
      find(METILE_INACTIVE_LANE, nullptr, METILE_NO_ACCESS, METILE_NO_ACCESS, line, 0);
  if (!finding) {
    return;
  }
  who(*finding, thread_);
  finding->byte_offset = lane;
  std::snprintf(finding->detail, sizeof finding->detail, "%s", name);
}

void Checker::misaligned(
    uintptr_t address, uint64_t align, const char* type, uint32_t line) {
  const uint64_t offset = address - arena_;
  if (offset >= kArenaBytes) {
    return;
  }
  const Region& region = regions_[offset >> kSlotBits];
  auto* finding =
      find(METILE_MISALIGNED, &region, METILE_NO_ACCESS, METILE_NO_ACCESS, line, 0);
  if (!finding) {
    return;
  }
  who(*finding, thread_);
  where(*finding, region, int64_t(address - region.base), align);
  std::snprintf(finding->detail, sizeof finding->detail, "%s", type);
}

// Held back: where the access itself leaves its array, that report names the array.
void Checker::index_out_of_bounds(const char* type, int64_t index, uint32_t line) {
  flush_index();
  index_.is_set = true;
  index_.type = type;
  index_.index = index;
  index_.line = line;
  index_.thread = thread_;
}

void Checker::flush_index() {
  if (!index_.is_set) {
    return;
  }
  index_.is_set = false;
  auto* finding =
      find(METILE_BOUNDS, nullptr, METILE_NO_ACCESS, METILE_NO_ACCESS, index_.line, 0);
  if (finding) {
    who(*finding, index_.thread);
    finding->byte_offset = index_.index;
    finding->item_bytes = 1;
    std::snprintf(finding->detail, sizeof finding->detail, "%s", index_.type);
  }
}

void Checker::crash(
    const char* what, const uint32_t* group, uint32_t thread, uintptr_t code) {
  auto* finding = find(METILE_CRASH, nullptr, METILE_NO_ACCESS, METILE_NO_ACCESS, 0, code);
  if (finding) {
    std::copy_n(group, 3, finding->group);
    finding->thread = thread;
    std::snprintf(finding->detail, sizeof finding->detail, "%s", what);
  }
}

}  // namespace metile
