// Device code that the tests and the demo workload run. Four kernels, each a
// grid-stride loop, so that any grid and block is correct.
//
// Built to gpumem.ptx by build-ptx.sh with clang alone: no CUDA toolkit, no
// CUDA header. That is why the few intrinsics below are spelled out.
//
// The simulator runs the same kernels on the host by name; a change of a name
// or of a parameter here is a change there too.

typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __attribute__((global)) void
#define DEVICE static inline __attribute__((device, always_inline))

DEVICE u64 first_index() {
    return (u64)__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() +
           __nvvm_read_ptx_sreg_tid_x();
}

DEVICE u64 stride() {
    return (u64)__nvvm_read_ptx_sreg_nctaid_x() * __nvvm_read_ptx_sreg_ntid_x();
}

// Nanoseconds; the clock that all multiprocessors of a device share.
DEVICE u64 now_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

// Writes `value` to each of the `n_words` words at `p`.
KERNEL gpumem_fill(u32 *p, u64 n_words, u32 value) {
    for (u64 i = first_index(); i < n_words; i += stride()) p[i] = value;
}

// Adds to `*mismatches` how many of the `n_words` words at `p` are not `value`.
// The caller sets `*mismatches` to 0 first.
KERNEL gpumem_verify(const u32 *p, u64 n_words, u32 value, u64 *mismatches) {
    u64 wrong = 0;
    for (u64 i = first_index(); i < n_words; i += stride()) wrong += p[i] != value;
    if (wrong) __atomic_fetch_add(mismatches, wrong, __ATOMIC_RELAXED);
}

// dst[i] = src[i] * factor for i < n, modulo 2^32. `dst` may be `src`.
KERNEL gpumem_scale(u32 *dst, const u32 *src, u64 n, u32 factor) {
    for (u64 i = first_index(); i < n; i += stride()) dst[i] = src[i] * factor;
}

// Keeps the device busy for `ns` nanoseconds, at most 2 s whatever is asked, so
// that no mistake can hang a GPU. Then writes 1 to `*done`, unless it is null.
KERNEL gpumem_spin(u64 ns, u32 *done) {
    const u64 most = 2000000000ull;
    const u64 wait = ns < most ? ns : most;
    const u64 start = now_ns();
    while (now_ns() - start < wait) {
    }
    if (done && first_index() == 0) *(volatile u32 *)done = 1;
}
