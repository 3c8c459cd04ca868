// The kernel of GPUMEM_GUARD (shim/src/pool/guard): is memory as the guard left it?
// Filling is the driver's own memset: it writes as fast as the memory takes it, and needs no code of ours.
//
// One job: a range is cut into chunks, a block of threads reads one chunk, and says which of its bytes are
// others. Nothing is written but the answers, one for each chunk, by one thread: no atomics, and no answer has to be
// cleared before. A range of 2 MiB or less has a chunk for each 64 KiB, so that the blocks of a large device have
// something to do; a large one has 1024 chunks (the caller chooses).
//
// Built to guard.ptx by build-ptx.sh. The simulator runs the same on the host by this name: a change here is a change
// there (tests/sim/engine/src/kernels.rs), where a test compares both rules.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __attribute__((global)) void
#define SHARED static __attribute__((shared))
#define DEVICE static inline __attribute__((device, always_inline))

// Threads of a block: the launch has to have as many.
#define THREADS 256

// What a chunk has. Offsets are from the start of the range.
typedef struct {
    u64 first; // the first byte that is another; all ones: none is
    u64 end;   // behind the last one
    u64 count; // how many are
} Found;

typedef struct __attribute__((aligned(16))) { u32 x, y, z, w; } Vector;

DEVICE void differs(Found *found, u64 at) {
    if (at < found->first) found->first = at;
    if (at + 1 > found->end) found->end = at + 1;
    found->count += 1;
}

DEVICE void look(Found *found, const u8 *p, u64 from, u64 to, u64 step, u8 value) {
    for (u64 i = from; i < to; i += step)
        if (p[i] != value) differs(found, i);
}

DEVICE u32 other(Vector v, u32 want) { return (v.x ^ want) | (v.y ^ want) | (v.z ^ want) | (v.w ^ want); }

KERNEL gpumem_guard_verify(const u8 *p, u64 bytes, u64 chunk, u32 value, Found *answers) {
    SHARED Found found[THREADS];
    const u64 me = __nvvm_read_ptx_sreg_tid_x(), block = __nvvm_read_ptx_sreg_ctaid_x();
    const u64 from = block * chunk, to = from + chunk < bytes ? from + chunk : bytes;
    const u32 want = value * 0x01010101u;
    Found mine = {~0ull, 0, 0};

    // What lies before and behind whole vectors byte by byte, a byte for each thread: at most 15 on each side.
    const u64 misaligned = ((u64)p + from) & 15;
    u64 first = misaligned ? from + 16 - misaligned : from;
    if (first > to) first = to;
    const u64 vectors = (to - first) / 16, last = first + vectors * 16;
    look(&mine, p, from + me, first, THREADS, value);
    look(&mine, p, last + me, to, THREADS, value);

    // Four loads are under way at a time: the loop waits for memory, not for one load after another.
    const Vector *v = (const Vector *)(p + first);
    u64 i = me;
    for (; i + 3 * THREADS < vectors; i += 4 * THREADS) {
        const Vector a = v[i], b = v[i + THREADS], c = v[i + 2 * THREADS], d = v[i + 3 * THREADS];
        if (other(a, want) | other(b, want) | other(c, want) | other(d, want))
            for (u64 k = 0; k < 4; k++) look(&mine, p, first + (i + k * THREADS) * 16, first + (i + k * THREADS) * 16 + 16, 1, value);
    }
    for (; i < vectors; i += THREADS)
        if (other(v[i], want)) look(&mine, p, first + i * 16, first + i * 16 + 16, 1, value);

    found[me] = mine;
    for (u64 half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (me < half) {
            const Found theirs = found[me + half];
            if (theirs.first < mine.first) mine.first = theirs.first;
            if (theirs.end > mine.end) mine.end = theirs.end;
            mine.count += theirs.count;
            found[me] = mine;
        }
    }
    if (me == 0) answers[block] = mine;
}
