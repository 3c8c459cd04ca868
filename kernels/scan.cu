// The kernel of `gpumem leaks --suspect` (shim/src/references): which words of device memory may be an address inside of a
// live allocation?
//
// One job: a range is read once, and the words that pass are written one behind the other. Nearly none does: a word has to
// lie between the lowest address and the highest, and then its page of 2 MiB has to be one of some allocation. That is
// looked up in a small table, which has a bit for all pages whose numbers are the same modulo its bits; it comes with the
// launch, so that no memory of the device is taken for it. Which allocation a word lies in is looked up on the host.
//
// A range is cut into tiles, which the blocks of threads take by turns. A word of pinned memory says that somebody has no
// time: then the blocks end. One thread in 64 blocks looks at it before each tile, and tells the others by a word of the
// device's own. Where all threads looked, the kernel read 1 GiB in 8.3 ms (H200): reads of one word of the host's come one
// after another, about a microsecond for each warp. Four loads are under way at a time: the loop waits for
// memory, not for one load after another. What is tested of a word is a subtraction and a comparison, twice for a load of
// 16 bytes, which takes less time than the load.
//
// Built to scan.ptx by build-ptx.sh. The simulator runs the same on the host by this name: a change here is a change there
// (tests/sim/engine/src/kernels.rs), and in shim/src/vendor/scan.rs, which has the rule and compares it.

typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __attribute__((global)) void
#define DEVICE static inline __attribute__((device, always_inline))

// Threads of a block: the launch has to have as many.
#define THREADS 256
// Vectors of a tile: 1 MiB.
#define TILE 65536
// Bits of the table.
#define BITS 16384
#define PAGE_SHIFT 21

typedef struct __attribute__((aligned(16))) { u64 a, b; } Vector;
// What may be meant: addresses from `low` on, of which the page has its bit.
typedef struct { u64 low, span; u32 pages[BITS / 32]; } Wanted;
// Words that pass: how many, and as many of them as there is room for.
typedef struct { u64 count, room; u64 words[]; } Answers;

// Blocks of which one asks the host.
#define ASKING 64
// The launch that was told to end last: each has another number.
static __attribute__((device)) volatile u32 ended;

#define LOOK(word)                                                                              \
    if ((word) - wanted.low < wanted.span) {                                                    \
        const u64 page = (word) >> PAGE_SHIFT;                                                  \
        if (wanted.pages[page % BITS / 32] >> (page % 32) & 1) {                                \
            const u64 at = __atomic_fetch_add(&answers->count, 1, __ATOMIC_RELAXED);            \
            if (at < answers->room) answers->words[at] = (word);                                \
        }                                                                                       \
    }

KERNEL gpumem_scan(const u64 *p, u64 words, Answers *answers, const volatile u32 *cancel, u32 launch, const Wanted wanted) {
    const u64 me = __nvvm_read_ptx_sreg_tid_x(), block = __nvvm_read_ptx_sreg_ctaid_x();
    const u64 blocks = __nvvm_read_ptx_sreg_nctaid_x();
    // Blocks of the pool are aligned to 512 bytes; what is left behind whole vectors is a word at most.
    const Vector *v = (const Vector *)p;
    const u64 vectors = words / 2;
    if (block == 0 && me == 0 && words % 2) { LOOK(p[words - 1]) }
    for (u64 tile = block * TILE; tile < vectors; tile += blocks * TILE) {
        if (block % ASKING == 0 && me == 0 && *cancel) ended = launch;
        if (ended == launch) return;
        const u64 end = tile + TILE < vectors ? tile + TILE : vectors;
        u64 i = tile + me;
        for (; i + 3 * THREADS < end; i += 4 * THREADS) {
            const Vector a = v[i], b = v[i + THREADS], c = v[i + 2 * THREADS], d = v[i + 3 * THREADS];
            LOOK(a.a) LOOK(a.b) LOOK(b.a) LOOK(b.b) LOOK(c.a) LOOK(c.b) LOOK(d.a) LOOK(d.b)
        }
        for (; i < end; i += THREADS) {
            const Vector a = v[i];
            LOOK(a.a) LOOK(a.b)
        }
    }
}
