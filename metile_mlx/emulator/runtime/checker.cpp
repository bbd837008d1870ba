// Happens-before, bounds, initialisation.
#include "checker.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace metile {

Checker* active_checker = nullptr;

namespace {

constexpr uintptr_t kPage = 4096;
constexpr uint8_t kPoison[2] = {0xc5, 0x7f};

uint64_t whole_pages(uint64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

void poison(uintptr_t start, uint64_t bytes) {
  auto* at = reinterpret_cast<uint8_t*>(start);
  for (uint64_t i = 0; i < bytes; ++i) {
    at[i] = kPoison[i & 1];
  }
}

void* zeroed(uint64_t bytes) {
  void* at = mmap(
      nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    throw std::runtime_error("no memory for the checker's records");
  }
  return at;
}

}  // namespace

Checker::Checker(metile_launch* launch) : launch_(launch), regions_(kSlots) {
  std::fill_n(&simdgroup_barrier_[0][0], 2 * kSimdgroups, 1);
  void* arena = mmap(
      nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) {
    throw std::runtime_error("no address space for the checker: 8 TiB, reserved but not used");
  }
  arena_ = reinterpret_cast<uintptr_t>(arena);
  for (uint32_t i = 0; i < launch->buffer_count; ++i) {
    const auto& buffer = launch->buffers[i];
    // Addresses keep their alignment: a view that starts at element 1 stays misaligned.
    const uint64_t offset = (buffer.view_offset + 64 - buffer.lead_bytes % 64) % 64;
    const uint64_t bytes = buffer.lead_bytes + buffer.bytes;
    Region& region = regions_[add_region(buffer.name, bytes, offset)];
    region.lead = buffer.lead_bytes;
    region.item_bytes = std::max(1u, buffer.item_bytes);
    region.is_output = buffer.role == METILE_OUTPUT;
    region.is_initialised = !region.is_output || buffer.initialised;
    region.host = static_cast<char*>(buffer.data) - region.lead;
    if (region.is_initialised && bytes) {
      std::memcpy(reinterpret_cast<void*>(region.base), region.host, bytes);
    }
    if (region.is_output) {
      add_cells(region, buffer.item_bytes);
    }
    addresses_.push_back(reinterpret_cast<void*>(region.base + region.lead));
  }
}

Checker::~Checker() {
  munmap(reinterpret_cast<void*>(arena_), kArenaBytes);
  for (auto& region : regions_) {
    if (region.cells) {
      munmap(region.cells, whole_pages(region.cell_count * sizeof(Cell)));
    }
    if (region.atomics) {
      munmap(region.atomics, whole_pages(region.cell_count * sizeof(AtomicCell)));
    }
  }
}

uint32_t Checker::add_region(const char* name, uint64_t bytes, uint64_t offset) {
  if (region_count_ == kSlots || bytes >> (kSlotBits - 1)) {
    throw std::runtime_error("too many arrays, or one too large, for the checker");
  }
  const uint32_t number = region_count_++;
  // A quarter in front: 32-bit indices of words, signed or not, stay within the slot.
  const uintptr_t page =
      arena_ + (uint64_t(number) << kSlotBits) + (uint64_t(1) << (kSlotBits - 2));
  Region& region = regions_[number];
  region.base = page + offset;
  region.bytes = bytes;
  std::strncpy(region.name, name, sizeof region.name - 1);
  const uint64_t mapped = whole_pages(offset + std::max<uint64_t>(bytes, 1));
  mprotect(reinterpret_cast<void*>(page), mapped, PROT_READ | PROT_WRITE);
  poison(page, mapped);
  return number;
}

void Checker::add_cells(Region& region, uint64_t item) {
  region.shift = item % 4 == 0 ? 2 : item % 2 == 0 ? 1 : 0;
  region.cell_count = (region.bytes >> region.shift) + 1;
  region.cells = static_cast<Cell*>(zeroed(region.cell_count * sizeof(Cell)));
}

void* Checker::add_threadgroup(
    const char* name, uint64_t bytes, uint32_t item, uint64_t total) {
  if (region_count_ == kSlots || bytes >> 30) {
    return nullptr;  // no device has so much; the access that follows ends the run
  }
  Region& region = regions_[add_region(name, bytes, 0)];
  region.item_bytes = item;
  region.space = kThreadgroup;
  add_cells(region, item);
  if (total > 32768) {
    if (auto* finding = find(METILE_THREADGROUP_MEMORY, &region, METILE_NO_ACCESS,
                             METILE_NO_ACCESS, 0, 0)) {
      who(*finding, thread_);
      where(*finding, region, 0, total);
    }
  }
  return reinterpret_cast<void*>(region.base);
}

// An access smaller than a cell: from now on each byte has its own.
void Checker::split(Region& region) {
  const uint64_t step = uint64_t(1) << region.shift;
  const uint64_t count = region.bytes + step;
  auto* cells = static_cast<Cell*>(zeroed(count * sizeof(Cell)));
  auto* atomics =
      region.atomics ? static_cast<AtomicCell*>(zeroed(count * sizeof(AtomicCell))) : nullptr;
  for (uint64_t i = 0; i < region.bytes; ++i) {
    cells[i] = region.cells[i >> region.shift];
    if (atomics) {
      atomics[i] = region.atomics[i >> region.shift];
    }
  }
  munmap(region.cells, whole_pages(region.cell_count * sizeof(Cell)));
  if (atomics) {
    munmap(region.atomics, whole_pages(region.cell_count * sizeof(AtomicCell)));
  }
  region.cells = cells;
  region.atomics = atomics;
  region.cell_count = count;
  region.shift = 0;
}

void Checker::begin_group(const metile_thread& group) {
  ++time_;
  group_start_ = barrier_[kDevice] = barrier_[kThreadgroup] = time_;
  std::fill_n(&simdgroup_barrier_[0][0], 2 * kSimdgroups, time_);
  std::copy_n(group.threadgroup_position_in_grid, 3, group_);
  Started started{time_, {group_[0], group_[1], group_[2]}};
  started_.push_back(started);
}

void Checker::barrier(uint32_t flags) {
  flush_index();
  ++time_;
  if (flags & 1) {
    barrier_[kDevice] = time_;
  }
  if (flags & 2) {
    barrier_[kThreadgroup] = time_;
  }
}

void Checker::remember(Accesses& accesses, Space space) const {
  const Record mine = now();
  auto take = [&](Record& record) {
    const bool is_same_time = record && !is_ordered(record, space) &&
        (record >> 10 & 31) == thread_ / 32 && time_of(record) >= group_start_;
    // Two lanes are enough: whoever writes, one of them is another.
    const Record keep = is_same_time && (record >> 5 & 31) != thread_ % 32
        ? record >> 5 & 31 : is_same_time ? record & 31 : mine & 31;
    record = (mine & ~Record(31)) | keep;
  };
  Record& recent = accesses.recent;
  if (recent && time_of(recent) < group_start_) {
    accesses.earlier = recent;
    accesses.other = 0;
    recent = mine;
  } else if (!recent || time_of(recent) < barrier_[space]) {
    accesses.other = 0;
    recent = mine;
  } else if ((recent >> 10 & 31) == thread_ / 32) {
    take(recent);
  } else {
    const bool is_free = !accesses.other || time_of(accesses.other) < barrier_[space];
    if (is_free) {
      accesses.other = mine;
    } else if ((accesses.other >> 10 & 31) == thread_ / 32) {
      take(accesses.other);
    }
  }
}

bool Checker::races(
    Region& region, uint64_t cell, const Accesses& accesses, uint32_t mine, uint32_t theirs,
    uintptr_t code) {
  for (const Record record : {accesses.recent, accesses.other, accesses.earlier}) {
    const uint32_t thread = conflict(record, region.space);
    if (thread != kNobody) {
      race(region, cell, record, thread, mine, theirs, code);
      return true;
    }
  }
  return false;
}

bool Checker::is_written(const Region& region, uint64_t cell) const {
  if (region.is_initialised) {
    return true;
  }
  const uint64_t since = region.space == kThreadgroup ? group_start_ : 1;
  return time_of(region.cells[cell].write) >= since ||
      (region.atomics && region.atomics[cell].has_written >= since);
}

void Checker::read(Region& region, uint64_t number, uintptr_t code) {
  Cell& cell = region.cells[number];
  const uint32_t writer = conflict(cell.write, region.space);
  if (writer != kNobody) {
    race(region, number, cell.write, writer, METILE_READ, METILE_WRITE, code);
  } else if (region.atomics && region.atomics[number].has_written) {
    races(region, number, region.atomics[number].accesses, METILE_READ, METILE_ATOMIC, code);
  } else if (time_of(cell.write) < group_start_ && !is_written(region, number)) {
    if (auto* finding =
            find(METILE_UNINITIALISED, &region, METILE_READ, METILE_NO_ACCESS, 0, code)) {
      who(*finding, thread_);
      where(*finding, region, int64_t(number << region.shift), 1u << region.shift);
    }
  }
  remember(cell.reads, region.space);
}

void Checker::write(Region& region, uint64_t number, uintptr_t code) {
  Cell& cell = region.cells[number];
  const uint32_t writer = conflict(cell.write, region.space);
  if (writer != kNobody) {
    race(region, number, cell.write, writer, METILE_WRITE, METILE_WRITE, code);
  } else if (!races(region, number, cell.reads, METILE_WRITE, METILE_READ, code) &&
             region.atomics) {
    races(region, number, region.atomics[number].accesses, METILE_WRITE, METILE_ATOMIC, code);
  }
  cell.write = now();
}

void Checker::atomic(uintptr_t address, uint64_t bytes, uint32_t kind, uintptr_t code) {
  const bool writes = kind != METILE_LOAD;
  const uint64_t offset = address - arena_;
  if (offset >= kArenaBytes) {
    return;
  }
  Region& region = regions_[offset >> kSlotBits];
  const uint64_t at = address - region.base;
  if (at >= region.bytes || bytes > region.bytes - at || !region.cells) {
    out_of_bounds(region, address, bytes, METILE_ATOMIC, code);
    return;
  }
  if (at & ((uint64_t(1) << region.shift) - 1)) {
    split(region);
  }
  if (!region.atomics) {
    region.atomics = static_cast<AtomicCell*>(zeroed(region.cell_count * sizeof(AtomicCell)));
  }
  for (uint64_t i = at >> region.shift; i <= (at + bytes - 1) >> region.shift; ++i) {
    Cell& cell = region.cells[i];
    AtomicCell& atomic = region.atomics[i];
    const uint32_t writer = conflict(cell.write, region.space);
    if (writer != kNobody) {
      race(region, i, cell.write, writer, METILE_ATOMIC, METILE_WRITE, code);
    } else if (writes) {
      races(region, i, cell.reads, METILE_ATOMIC, METILE_READ, code);
    }
    if (kind != METILE_STORE && !is_written(region, i)) {
      if (auto* finding =
              find(METILE_UNINITIALISED, &region, METILE_ATOMIC, METILE_NO_ACCESS, 0, code)) {
        who(*finding, thread_);
        where(*finding, region, int64_t(i << region.shift), bytes);
      }
    }
    remember(atomic.accesses, region.space);
    if (writes) {
      atomic.has_written = time_;
    }
  }
}

void Checker::finish(bool is_complete) {
  flush_index();
  for (uint32_t i = 0; i < region_count_; ++i) {
    Region& region = regions_[i];
    if (!region.is_output) {
      continue;
    }
    uint64_t first = 0, missing = 0;
    const uint64_t end = region.is_initialised || !is_complete ? 0 : region.bytes >> region.shift;
    for (uint64_t cell = 0; cell < end; ++cell) {
      if (!is_written(region, cell)) {
        first = missing++ ? first : cell;
      }
    }
    if (missing) {
      auto* finding = find(METILE_UNWRITTEN, &region, METILE_NO_ACCESS, METILE_NO_ACCESS, 0, 0);
      if (finding) {
        where(*finding, region, int64_t(first << region.shift), missing << region.shift);
      }
    }
    if (region.bytes) {
      std::memcpy(region.host, reinterpret_cast<void*>(region.base), region.bytes);
    }
  }
}

}  // namespace metile
