  threadgroup half scratch_f16[64];
  int batches_value = batches[0];
  uint thread_index = thread_position_in_threadgroup.x;
  int batch = int(threadgroup_position_in_grid.x);
  bool in_bounds = uint(batch) < uint(batches_value);
  ulong base = ulong(batch) * 64ul;
  ulong index = base + ulong(thread_index);
  half values = in_bounds ? source[index] : half(0.0f);
  scratch_f16[thread_index] = values;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint index_2 = thread_index & 7u;
  uint index_3 = index_2 << 3;
  uint index_4 = thread_index >> 3;
  uint source_slot = index_3 | index_4;
  half converted = scratch_f16[source_slot];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (in_bounds) { destination[index] = converted; }
