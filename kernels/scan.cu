// The kernel of `gpumem leaks --suspect` (shim/src/references): which words of device memory may be an address inside of a
// live allocation?
//
// One job: pieces of memory are read once, and the words that pass are written one behind the other, each with its place.
// Nearly none does: a word has to lie between the lowest address and the highest, and then its page of 2 MiB has to be one of
// some allocation. That is looked up in a small table, which has a bit for all pages whose numbers are the same modulo its
// bits; it comes with the launch. Which allocation a word lies in, and which it stands in, is looked up on the host.
//
// One launch reads a list of pieces, which was copied here before it: many small blocks are one launch, and only once do
// processors wait for the last of them. Row y of the grid has piece y. Each block of threads reads one tile of it, and each
// thread has all its loads of the tile under way at once. A piece that is shorter than others leaves blocks with nothing to do.
//
// Measured on an H100 (3.20 TB/s are the best that a plain read of 8 GiB makes there): 0.97 to 0.98 of it. What that takes:
// - a tile a block, of 64 KiB. With tiles of 1 MiB it is 0.93 to 0.94, since the last tiles leave processors idle; where
//   blocks read several tiles by turns it is 0.80 to 0.89.
// - one branch for the 32 words of a thread: whether the upper half of any of them can be that of an address. A branch for
//   each word is 0.95 to 0.96. What passes is compared in full.
//
// A word of pinned memory says that somebody has no time: then the blocks end. One thread in 64 blocks looks at it, and tells
// the others by a word of the device's own. Where all threads looked, the kernel read 1 GiB in 8.3 ms (H200): reads of one
// word of the host's come one after another, about a microsecond for each warp.
//
// Built to scan.ptx by build-ptx.sh. The simulator runs the same on the host by this name: a change here is a change there
// (tests/sim/engine/src/kernels.rs), and in shim/src/vendor/scan.rs, which has the rule and compares it.

typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __attribute__((global)) void
#define DEVICE static inline __attribute__((device, always_inline))
// What an address that was loaded points to: the compiler does not know, and would read it by slower instructions.
#define GLOBAL __attribute__((address_space(1)))

// Threads of a block: the launch has to have as many.
#define THREADS 256
// Vectors that a thread reads of a tile.
#define UNROLL 16
// Vectors of a tile: 64 KiB.
#define TILE 4096
// Pieces of a launch at most, and launches that may be under way at a time.
#define RANGES 4096
#define LISTS 2
// Bits of the table.
#define BITS 16384
#define PAGE_SHIFT 21

typedef struct __attribute__((aligned(16))) { u64 a, b; } Vector;
// A piece: where it begins, at a multiple of 16 bytes, and its words.
typedef struct __attribute__((aligned(16))) { u64 at, words; } Range;
// What may be meant: addresses from `low` on, of which the page has its bit.
typedef struct { u64 low, span; u32 pages[BITS / 32]; } Wanted;
// A word that passes, and where it stands.
typedef struct { u64 at, word; } Found;
// How many pass, and as many of them as there is room for.
typedef struct { u64 count, room; Found found[]; } Answers;

// Pieces: a list for each launch that may be under way.
extern "C" { __attribute__((device)) Range gpumem_scan_ranges[LISTS][RANGES]; }

// Blocks of which one asks the host.
#define ASKING 64
// The launches that were told to end last: each has another number, and those under way one after another.
#define ENDED 16
static __attribute__((device)) volatile u32 ended[ENDED];

DEVICE void look(u64 word, const GLOBAL u64 *at, const Wanted &wanted, Answers *answers) {
    if (word - wanted.low >= wanted.span) return;
    const u64 page = word >> PAGE_SHIFT;
    if (!(wanted.pages[page % BITS / 32] >> (page % 32) & 1)) return;
    const u64 index = __atomic_fetch_add(&answers->count, 1, __ATOMIC_RELAXED);
    if (index < answers->room) {
        answers->found[index].at = (u64)at;
        answers->found[index].word = word;
    }
}

KERNEL gpumem_scan(const Range *ranges, u64 count, Answers *answers, const volatile u32 *cancel, u32 launch, const Wanted wanted) {
    const u32 me = __nvvm_read_ptx_sreg_tid_x(), tile = __nvvm_read_ptx_sreg_ctaid_x(), tiles = __nvvm_read_ptx_sreg_nctaid_x();
    const u32 piece = __nvvm_read_ptx_sreg_ctaid_y();
    if (piece >= count) return;
    const Range range = ranges[piece];
    if ((piece * tiles + tile) % ASKING == 0 && me == 0 && *cancel) ended[launch % ENDED] = launch;
    if (ended[launch % ENDED] == launch) return;

    const u64 vectors = range.words / 2, from = (u64)tile * TILE;
    const GLOBAL Vector *v = (const GLOBAL Vector *)range.at + from + me;
    if (from + TILE <= vectors) {
        const u32 low = (u32)(wanted.low >> 32), span = (u32)((wanted.low + wanted.span - 1) >> 32) - low;
        Vector x[UNROLL];
        u32 any = 0;
#pragma unroll
        for (u32 k = 0; k < UNROLL; k++) {
            x[k].a = v[k * THREADS].a;
            x[k].b = v[k * THREADS].b;
        }
#pragma unroll
        for (u32 k = 0; k < UNROLL; k++) any |= ((u32)(x[k].a >> 32) - low <= span) | ((u32)(x[k].b >> 32) - low <= span);
        if (!any) return;
#pragma unroll
        for (u32 k = 0; k < UNROLL; k++) {
            look(x[k].a, &v[k * THREADS].a, wanted, answers);
            look(x[k].b, &v[k * THREADS].b, wanted, answers);
        }
        return;
    }
    // The last tile of a piece, or none. What is left behind whole vectors is a word at most.
    for (u64 i = from + me; i < vectors; i += THREADS, v += THREADS) {
        const u64 a = v->a, b = v->b;
        look(a, &v->a, wanted, answers);
        look(b, &v->b, wanted, answers);
    }
    if (me == 0 && range.words % 2 && vectors / TILE == tile) {
        const GLOBAL u64 *last = (const GLOBAL u64 *)range.at + range.words - 1;
        look(*last, last, wanted, answers);
    }
}
