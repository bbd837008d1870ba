  threadgroup float scratch_f32[64];
  int batches_value = batches[0];
  uint thread_index = thread_position_in_threadgroup.x;
  int batch = int(threadgroup_position_in_grid.x);
  bool in_bounds = uint(batch) < uint(batches_value);
  ulong base = ulong(batch) * 64ul;
  ulong offset = base + ulong(thread_index);
  float values = in_bounds ? source[offset] : 0.0f;
  int program = int(threadgroup_position_in_grid.x);
  int index = program & 1;
  bool even = index == 0;
  float first;
  float second;
  if (even) {
    float sum = values + values;
    first = sum;
    second = values;
  } else {
    float product = values * values;
    first = values;
    second = product;
  }
  float step_;
  if (even) {
    step_ = 2.0f;
  } else {
    float loaded = source[0ul];
    step_ = loaded;
  }
  float value = first + step_;
  scratch_f32[thread_index] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint index_2 = thread_index & 7u;
  uint index_3 = index_2 << 3;
  uint index_4 = thread_index & 56u;
  uint index_5 = index_4 >> 3;
  uint index_6 = index_3 | index_5;
  float converted = scratch_f32[index_6];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float value_2 = converted - second;
  if (in_bounds) { destination[offset] = value_2; }
  if (even) {
    if (in_bounds) { only_even[offset] = values; }
  }
