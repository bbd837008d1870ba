// The context switch: saves what a called function must keep, takes the other stack, goes on.
#include "fiber.h"

#if defined(__x86_64__)
// The address is popped and jumped to: a `ret` would mispredict on every switch.
asm(R"(
.text
.globl metile_switch
.hidden metile_switch
.type metile_switch,@function
metile_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
.size metile_switch,.-metile_switch
.globl metile_fiber_start
.hidden metile_fiber_start
.type metile_fiber_start,@function
metile_fiber_start:
  movq %r12, %rdi
  callq *%r13
  ud2
.size metile_fiber_start,.-metile_fiber_start
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl metile_switch
.hidden metile_switch
.type metile_switch,%function
metile_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  br x30
.size metile_switch,.-metile_switch
.globl metile_fiber_start
.hidden metile_fiber_start
.type metile_fiber_start,%function
metile_fiber_start:
  mov x0, x19
  blr x20
  brk #1
.size metile_fiber_start,.-metile_fiber_start
)");
#endif
