// Votes: which lanes are active, and for which a condition holds.
#pragma once

#include "reduce.h"

namespace metal {

struct simd_vote {
  using vote_t = ulong;
  simd_vote() = default;
  METILE_INLINE constexpr explicit simd_vote(vote_t bits) : metile_votes(bits) {}
  METILE_INLINE constexpr explicit operator vote_t() const {
    return metile_votes;
  }
  METILE_INLINE constexpr bool all() const {
    return (metile_votes & 0xffffffffu) == 0xffffffffu;
  }
  METILE_INLINE constexpr bool any() const {
    return metile_votes != 0;
  }
  vote_t metile_votes;
};
struct quad_vote {
  using vote_t = ushort;
  quad_vote() = default;
  METILE_INLINE constexpr explicit quad_vote(vote_t bits) : metile_votes(bits) {}
  METILE_INLINE constexpr explicit operator vote_t() const {
    return metile_votes;
  }
  METILE_INLINE constexpr bool all() const {
    return (metile_votes & 15u) == 15u;
  }
  METILE_INLINE constexpr bool any() const {
    return metile_votes != 0;
  }
  vote_t metile_votes;
};

struct metile_ballot {
  uint condition;
  uint votes;
  uint active;
};
inline void metile_count_votes(void** lanes, uint active, ulong) {
  uint votes = 0;
  for (uint i = 0; i < 32; ++i) {
    if (active >> i & 1u) {
      votes |= (static_cast<metile_ballot*>(lanes[i])->condition & 1u) << i;
    }
  }
  for (uint i = 0; i < 32; ++i) {
    if (active >> i & 1u) {
      static_cast<metile_ballot*>(lanes[i])->votes = votes;
      static_cast<metile_ballot*>(lanes[i])->active = active;
    }
  }
}
METILE_INLINE metile_ballot metile_vote(
    const char* name, bool condition, uint width, uint line, uint column) {
  metile_ballot record;
  record.condition = condition;
  metile_gather(name, &metile_count_votes, &record, line, column, width);
  if (width == 4) {
    const uint shift = ::metile_lane() & ~3u;
    record.votes = record.votes >> shift & 15u;
    record.active = record.active >> shift & 15u;
  }
  return record;
}

METILE_INLINE simd_vote simd_ballot(bool condition, METILE_HERE) {
  return simd_vote(ulong(metile_vote("simd_ballot", condition, 32, line, column).votes));
}
METILE_INLINE simd_vote simd_active_threads_mask(METILE_HERE) {
  return simd_vote(ulong(metile_vote("simd_active_threads_mask", true, 32, line, column).active));
}
METILE_INLINE bool simd_is_first(METILE_HERE) {
  const uint active = metile_vote("simd_is_first", true, 32, line, column).active;
  return uint(__builtin_ctz(active)) == ::metile_lane();
}
METILE_INLINE bool simd_all(bool condition, METILE_HERE) {
  const metile_ballot record = metile_vote("simd_all", condition, 32, line, column);
  return record.votes == record.active;
}
METILE_INLINE bool simd_any(bool condition, METILE_HERE) {
  return metile_vote("simd_any", condition, 32, line, column).votes != 0;
}
METILE_INLINE bool simd_is_helper_thread() {
  return false;
}
METILE_INLINE quad_vote quad_ballot(bool condition, METILE_HERE) {
  return quad_vote(ushort(metile_vote("quad_ballot", condition, 4, line, column).votes));
}
METILE_INLINE quad_vote quad_active_threads_mask(METILE_HERE) {
  return quad_vote(ushort(metile_vote("quad_active_threads_mask", true, 4, line, column).active));
}
METILE_INLINE bool quad_is_first(METILE_HERE) {
  const uint active = metile_vote("quad_is_first", true, 4, line, column).active;
  return uint(__builtin_ctz(active)) == (::metile_lane() & 3u);
}
METILE_INLINE bool quad_all(bool condition, METILE_HERE) {
  const metile_ballot record = metile_vote("quad_all", condition, 4, line, column);
  return record.votes == record.active;
}
METILE_INLINE bool quad_any(bool condition, METILE_HERE) {
  return metile_vote("quad_any", condition, 4, line, column).votes != 0;
}

}  // namespace metal
