// Call shapes for the stack tests. Built several times with different flags.
#define _GNU_SOURCE
#include <alloca.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

typedef void (*callback)(void *);

#ifndef PAD
#define PAD 24
#endif

// Keeps a call from becoming a jump, and locals on the stack.
static volatile uintptr_t sink;
#define NOINLINE __attribute__((noinline, noclone))

NOINLINE void recurse(int depth, callback call, void *with) {
    volatile char room[PAD];
    room[depth % PAD] = (char)depth;
    if (depth <= 1) {
        call(with);
    } else {
        recurse(depth - 1, call, with);
    }
    sink += room[0];
}

// Seven values live over a call: every callee-saved register is pushed, rbp as a plain register.
NOINLINE int registers(int a, int b, int c, int d, callback call, void *with) {
    int e = a * 3 + (int)sink, f = b * 5 + e, g = c * 7 + f;
    call(with);
    sink += (uintptr_t)(a + b);
    if (e > 1000000) {
        call(with);
    }
    return a + b * c + d - e + f * g;
}

NOINLINE void alloca_frame(int bytes, callback call, void *with) {
    volatile char *room = alloca((unsigned long)bytes);
    room[0] = 1;
    call(with);
    sink += room[bytes - 1];
}

// Realigned with arguments on the stack and alloca: gcc keeps the frame by a pointer to a pointer.
NOINLINE int realigned(int a, int b, int c, int d, int e, int f, int on_stack, callback call, void *with) {
    _Alignas(64) volatile char aligned[64];
    volatile char *room = alloca((unsigned long)on_stack);
    aligned[0] = room[0] = (char)a;
    call(with);
    sink += (uintptr_t)(aligned[0] + room[0]);
    return a + b + c + d + e + f + on_stack;
}

// The call is the last instruction: its return address lies behind the function.
static jmp_buf back;
static callback last_call;
static void *last_with;
NOINLINE __attribute__((noreturn)) static void leave(void) {
    last_call(last_with);
    longjmp(back, 1);
}
NOINLINE __attribute__((noreturn)) static void never_returns(void) {
    leave();
}
NOINLINE void noreturn_end(callback call, void *with) {
    last_call = call;
    last_with = with;
    if (setjmp(back) == 0) {
        never_returns();
    }
}

// On another stack, which is gone afterwards.
static ucontext_t caller_context, fiber_context;
static void fiber(void) {
    recurse(5, last_call, last_with);
}
NOINLINE void on_fiber(callback call, void *with) {
    enum { BYTES = 256 << 10 };
    void *stack = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    last_call = call;
    last_with = with;
    getcontext(&fiber_context);
    fiber_context.uc_stack.ss_sp = stack;
    fiber_context.uc_stack.ss_size = BYTES;
    fiber_context.uc_link = &caller_context;
    makecontext(&fiber_context, fiber, 0);
    swapcontext(&caller_context, &fiber_context);
    munmap(stack, BYTES);
}

#ifdef __x86_64__
// A fault in a function's first byte: the address that was interrupted is no return address.
void first_byte(void) __attribute__((visibility("hidden")));
__asm__(".text\n.type first_byte,@function\nfirst_byte:\n.cfi_startproc\nud2\nret\n.cfi_endproc\n"
        ".size first_byte,.-first_byte\n");
static void on_fault(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    last_call(last_with);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}
NOINLINE void fault(int flags, callback call, void *with) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | flags}, before;
    last_call = call;
    last_with = with;
    sigaction(SIGILL, &action, &before);
    first_byte();
    sigaction(SIGILL, &before, 0);
}
NOINLINE void fault_on_other_stack(callback call, void *with) {
    static char stack[256 << 10];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack}, before;
    sigaltstack(&other, &before);
    fault(SA_ONSTACK, call, with);
    sigaltstack(&before, 0);
}

// As libffi's: the frame pointer points into the frame, and is saved elsewhere than below the return address.
void odd_frame(callback call, void *with);
__asm__(".text\n.globl odd_frame\n.type odd_frame,@function\nodd_frame:\n.cfi_startproc\n"
        "sub $40,%rsp\n.cfi_adjust_cfa_offset 40\n"
        "mov %rbp,24(%rsp)\n.cfi_offset %rbp,-24\n"
        "lea 8(%rsp),%rbp\n.cfi_def_cfa %rbp,40\n"
        "mov %rdi,%rax\nmov %rsi,%rdi\ncall *%rax\n"
        "mov 16(%rbp),%rbp\n.cfi_def_cfa %rsp,48\n.cfi_restore %rbp\n"
        "add $40,%rsp\n.cfi_adjust_cfa_offset -40\nret\n.cfi_endproc\n.size odd_frame,.-odd_frame\n");
#endif
