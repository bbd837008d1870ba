// What a kernel's translation unit and the runtime share. No standard header: it is compiled with
// every kernel.
#pragma once

typedef unsigned char metile_u8;
typedef unsigned short metile_u16;
typedef unsigned int metile_u32;
typedef unsigned long metile_u64;
typedef long metile_i64;

// The values of every kernel attribute for one thread.
struct metile_thread {
  metile_u32 thread_position_in_grid[3];
  metile_u32 thread_position_in_threadgroup[3];
  metile_u32 threadgroup_position_in_grid[3];
  metile_u32 threadgroups_per_grid[3];
  metile_u32 threads_per_grid[3];
  metile_u32 threads_per_threadgroup[3];           // of this threadgroup: less in a partial one
  metile_u32 dispatch_threads_per_threadgroup[3];  // of a full threadgroup
  metile_u32 thread_index_in_threadgroup;
  metile_u32 thread_index_in_simdgroup;
  metile_u32 simdgroup_index_in_threadgroup;
  metile_u32 simdgroups_per_threadgroup;
  metile_u32 dispatch_simdgroups_per_threadgroup;
  metile_u32 quadgroup_index_in_threadgroup;
  metile_u32 thread_index_in_quadgroup;
  metile_u32 quadgroups_per_threadgroup;
  metile_u32 dispatch_quadgroups_per_threadgroup;
};

enum metile_buffer_role { METILE_INPUT = 0, METILE_OUTPUT = 1, METILE_INFO = 2 };

// One bound buffer.
struct metile_buffer {
  void* data;
  metile_u64 bytes;       // from `data` on
  metile_u64 lead_bytes;  // before `data`: what negative strides reach
  metile_u32 item_bytes;
  metile_u32 role;         // metile_buffer_role
  metile_u32 initialised;  // an output filled before the launch
  metile_u32 view_offset;  // bytes from the start of the allocation, which devices align
  const char* name;
};

enum metile_fault {
  METILE_RACE = 0,
  METILE_BOUNDS = 1,
  METILE_UNINITIALISED = 2,
  METILE_DIVERGENT_BARRIER = 3,
  METILE_DIVERGENT_SIMD = 4,
  METILE_INACTIVE_LANE = 5,
  METILE_UNWRITTEN = 6,
  METILE_MISALIGNED = 7,
  METILE_CRASH = 8,
  METILE_SCHEDULE = 9,
  METILE_THREADGROUP_MEMORY = 10,
};

enum metile_access {
  METILE_READ = 0,
  METILE_WRITE = 1,
  METILE_ATOMIC = 2,
  METILE_NO_ACCESS = 3,
};

// One kind of fault at one place: the first occurrence, and how often it was seen.
struct metile_finding {
  metile_u32 fault;         // metile_fault
  metile_u32 access;        // metile_access of the thread
  metile_u32 other_access;  // of the other thread; METILE_NO_ACCESS where there is none
  metile_u32 line;          // in the kernel's text, 0 where unknown
  metile_u32 group[3];
  metile_u32 thread;        // index in its threadgroup
  metile_u32 other_group[3];
  metile_u32 other_thread;
  metile_i64 byte_offset;   // from the start of the array
  metile_u64 bytes;         // of the access
  metile_u64 array_bytes;
  metile_u32 item_bytes;
  metile_u32 is_threadgroup;
  metile_u64 code;          // offset of the instruction in the shared object, 0 where unknown
  metile_u64 count;
  char array[64];
  char detail[128];
};

enum metile_print_kind {
  METILE_PRINT_FLOAT = 0,
  METILE_PRINT_BOOL = 1,
  METILE_PRINT_UNSIGNED = 2,
  METILE_PRINT_SIGNED = 3,
};

enum metile_atomic_kind { METILE_LOAD = 0, METILE_STORE = 1, METILE_MODIFY = 2 };

struct metile_launch {
  const metile_buffer* buffers;
  metile_u32 buffer_count;
  metile_u32 grid[3];         // threads
  metile_u32 threadgroup[3];  // threads of a full threadgroup
  metile_u32 reduction_order; // of simdgroup reductions: ascending, butterfly, random
  metile_u32 threads;         // OS threads; 0 chooses
  metile_u64 schedule;        // 0 is the natural order of threads, others shuffle it
  metile_finding* findings;   // checked runs only
  metile_u32 finding_capacity;
  metile_u32 finding_count;   // set by the run
  metile_u32 float_reductions;  // set by the run: a result may depend on the order
  metile_u32 reserved;
  char error[128];            // set by the run: why it ended early
};

// A simdgroup or quadgroup operation of one lane, on that lane's stack.
struct metile_meeting {
  metile_u64 site;
  const char* name;
  // Called once for all lanes that meet: `lanes[i]` is the `data` of lane i where `active` has it.
  void (*combine)(void** lanes, metile_u32 active, metile_u64 order);
  void* data;
  metile_u32 line;
  metile_u8 width;     // lanes that meet: 32 or 4
  metile_u8 complete;  // all lanes of the width must be there, the ones the grid lacks too
  metile_u8 memory;    // mem_flags of a simdgroup barrier
  metile_u8 is_float_reduction;
};

extern "C" {
void metile_barrier(metile_u32 flags, metile_u32 line, metile_u32 column);
void metile_meet(metile_meeting* meeting);
metile_u32 metile_lane();
// The threadgroup's instance of a variable.
void* metile_threadgroup(
    metile_u32 site, metile_u64 bytes, metile_u64 align, metile_u32 item_bytes, const char* name);
// Of checked kernels only.
void metile_atomic(const volatile void* address, metile_u32 bytes, metile_u32 kind);
void metile_inactive(const char* name, metile_u32 source_lane, metile_u32 line);
void metile_float_atomic();
// A line of a kernel that prints.
void metile_print(
    const char* label, int x, int y, int z, metile_u32 thread, metile_u32 slot, metile_u32 kind,
    float number, metile_i64 integer);
// Runs a kernel: `thread` is called for every thread. Returns 0, or a metile_fault that ended it.
typedef void (*metile_thread_function)(void* const* buffers, const metile_thread* attributes);
metile_u32 metile_run(metile_launch* launch, metile_thread_function function);
}
