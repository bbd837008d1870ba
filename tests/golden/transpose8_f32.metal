  threadgroup float scratch_f32[64];
  int batches_value = batches[0];
  uint thread_index = thread_position_in_threadgroup.x;
  int batch = int(threadgroup_position_in_grid.x);
  bool in_bounds = uint(batch) < uint(batches_value);
  uint base = uint(batch) * 64u;
  uint index = base + thread_index;
  float values = in_bounds ? source[index] : 0.0f;
  scratch_f32[thread_index] = values;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint index_2 = thread_index & 7u;
  uint index_3 = index_2 << 3;
  uint index_4 = thread_index >> 3;
  uint source_slot = index_3 | index_4;
  float converted = scratch_f32[source_slot];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (in_bounds) { destination[index] = converted; }
