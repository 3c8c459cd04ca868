/* The order that cuMemFree promises. `pool_order MODE`:
 *   running   work of each kind of stream on a block that is freed, given out again and written by another
 *   green     a context is made of a green one: from then on frees are the driver's, and not before
 *   refused   peer access is refused: from then on frees are as before
 *   idle      frees with nothing given to the device in between: how many driver calls they take
 *   sizes     allocations of ever new sizes, none freed: how many driver calls they take beside their own
 *   busy      idle blocks while a long kernel runs: nobody waits for the device, nothing is given back
 *   streams   many streams at once, blocks handed from one to the other by free and allocation */
#include "pool.h"

enum { WORDS = 4096, BYTES = 3 * MIB };

static int done_at_free; /* whether the work was over when the free returned */

/* Work that takes a while and then writes `p`; the free; the next owner. */
static void once(Gpu *g, Stream s, Stream other, int graph, size_t bytes, int round) {
    CUdeviceptr p = get(bytes);
    Graph captured;
    Exec exec = NULL;
    uint64_t words = bytes / 4 < WORDS ? bytes / 4 : WORDS;
    if (graph) {
        OK(cuStreamBeginCapture_v2(s, 2));
        OK(k_spin(g, s, 15));
        OK(k_fill(g, s, p, words, 1));
        OK(cuStreamEndCapture(s, &captured));
        OK(cuGraphInstantiateWithFlags(&exec, captured, 0));
        OK(cuGraphLaunch(exec, s));
    } else {
        OK(k_spin(g, s, 15));
        OK(k_fill(g, s, p, words, 1));
        if (round & 1) OK(cuMemsetD32Async(p, 2, words, s));
    }
    give(p, bytes);
    done_at_free = cuStreamQuery(s) == 0;
    if (sim.strict) EXPECT(done_at_free, 1);
    CUdeviceptr q = get(bytes);
    OK(k_fill(g, other, q, words, 0xabcd));
    OK(cuStreamSynchronize(other));
    if (!sim.strict) OK(cuStreamSynchronize(s));
    EXPECT(wrong_words(g, other, q, words, 0xabcd), 0);
    give(q, bytes);
    if (graph) {
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(captured));
    }
}

static void running(void) {
    CUcontext second, old;
    OK(cuCtxCreate_v2(&second, 0, 0));
    Gpu own = fitted(second);
    Stream theirs = stream_new(1);
    OK(cuCtxPopCurrent_v2(&old));
    Stream blocking = stream_new(0), free_a = stream_new(1), free_b = stream_new(1);
    struct { const char *name; Stream s; int graph; } kinds[] = {
        {"non-blocking", free_a, 0}, {"blocking", blocking, 0}, {"legacy", NULL, 0},
        {"per-thread", (Stream)2, 0}, {"graph", free_a, 1},
    };
    for (int round = 0; round < 2; round++)
        for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            size_t bytes = round ? BYTES : 16 * KIB;
            once(&gpu, kinds[k].s, free_b, kinds[k].graph, bytes, round);
        }
    /* cuMemFree waits for the work of the memory's context: not for that of another, which waits for us here. */
    for (int round = 0; round < 4; round++) {
        CUdeviceptr p = get(BYTES);
        OK(k_fill(&gpu, NULL, p, WORDS, 1));
        OK(cuCtxPushCurrent_v2(second));
        hold(theirs);
        OK(cuCtxPopCurrent_v2(&old));
        give(p, BYTES);
        EXPECT(cuStreamQuery(theirs), 600);
        released = 1;
        OK(cuStreamSynchronize(theirs));
    }
    /* Memory of one context is not given out in another. */
    OK(cuCtxPushCurrent_v2(second));
    CUdeviceptr q = get(BYTES), owned = 0;
    void *owner = NULL;
    OK(cuPointerGetAttribute(&owner, 1, q));
    EXPECT(owner == (void *)second, 1);
    OK(k_fill(&own, theirs, q, WORDS, 3));
    EXPECT(wrong_words(&own, theirs, q, WORDS, 3), 0);
    give(q, BYTES);
    owned = get(BYTES);
    give(own.counter, 8);
    OK(cuCtxPopCurrent_v2(&old));
    /* What dies with its context is not given out any more. */
    if (sim.free) sim.free(owned), sim.freed(owned, 0, 0);
    OK(cuCtxDestroy_v2(second));
    counted_free(DEVICE, BYTES);
    EXPECT(cuMemFree_v2(owned), 1);
    for (int i = 0; i < 4; i++) {
        CUdeviceptr p = get(BYTES);
        OK(k_fill(&gpu, free_a, p, WORDS, 9));
        EXPECT(wrong_words(&gpu, free_a, p, WORDS, 9), 0);
        give(p, BYTES);
    }
}

static long ms_since(struct timespec from) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - from.tv_sec) * 1000 + (now.tv_nsec - from.tv_nsec) / 1000000;
}

/* Prints how many driver calls so many pairs made, and their milliseconds; which context is current may be asked. */
static void idle(void) {
    enum { PAIRS = 1000 };
    struct timespec from;
    static const size_t sizes[] = {64 * KIB, 300 * KIB, MIB, 4 * MIB};
    for (int i = 0; i < 4; i++) give(get(sizes[i]), sizes[i]);
    OK(cuCtxSynchronize());
    give(get(MIB), MIB);
    uint64_t calls = stat_of("driver_calls") - stat_of("cuCtxGetCurrent"), allocs = stat_of("cuMemAlloc_v2"), frees = stat_of("cuMemFree_v2");
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < PAIRS; i++) {
        CUdeviceptr p = get(sizes[i & 3]);
        give(p, sizes[i & 3]);
    }
    fprintf(stderr, "took %ld calls %llu allocs %llu frees %llu\n", ms_since(from), (unsigned long long)(stat_of("driver_calls") - stat_of("cuCtxGetCurrent") - calls),
            (unsigned long long)(stat_of("cuMemAlloc_v2") - allocs), (unsigned long long)(stat_of("cuMemFree_v2") - frees));
    /* Something given to the device: the next free waits again, once. */
    Stream s = stream_new(1);
    for (int i = 0; i < 8; i++) {
        CUdeviceptr p = get(MIB), q = get(MIB);
        OK(k_spin(&gpu, s, 5));
        OK(k_fill(&gpu, s, p, 64, 1));
        give(p, MIB);
        if (sim.strict) EXPECT(cuStreamQuery(s), 0);
        give(q, MIB);
        OK(cuStreamSynchronize(s));
    }
}

/* Prints the driver calls beside cuMemAlloc, those of them that ask for the context, how many milliseconds all took, and
 * the bytes in use afterwards. */
static void sizes(void) {
    enum { SIZES = 150 };
    static CUdeviceptr p[SIZES];
    size_t bytes[SIZES];
    struct timespec from;
    give(get(64 * KIB), 64 * KIB);
    uint64_t calls = stat_of("driver_calls"), asked = stat_of("cuCtxGetCurrent"), allocs = stat_of("cuMemAlloc_v2");
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < SIZES; i++) p[i] = get(bytes[i] = 5 * MIB + (size_t)i * 26 * KIB);
    long took = ms_since(from);
    allocs = stat_of("cuMemAlloc_v2") - allocs;
    fprintf(stderr, "beside %llu asked %llu took %ld used %llu\n", (unsigned long long)(stat_of("driver_calls") - calls - allocs),
            (unsigned long long)(stat_of("cuCtxGetCurrent") - asked),
            took, (unsigned long long)stat_of("device_used"));
    EXPECT(allocs, SIZES);
    for (int i = 0; i < SIZES; i++) give(p[i], bytes[i]);
}

/* With a small GPUMEM_POOL_DECAY or GPUMEM_POOL_MAX: what is given back meanwhile. */
static long wait_ms; /* the second argument: how long until no more than USED_MOST is used */

static void busy(void) {
    enum { BLOCKS = 16 };
    CUdeviceptr p[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) p[i] = get(8 * MIB);
    for (int i = 0; i < BLOCKS; i++) give(p[i], 8 * MIB);
    Stream s = stream_new(1);
    OK(k_spin(&gpu, s, 400));
    uint64_t frees = stat_of("cuMemFree_v2"), waits = stat_of("waits"), syncs = stat_of("cuCtxSynchronize");
    nap(250);
    EXPECT(cuStreamQuery(s), sim.stat ? 600 : cuStreamQuery(s));
    EXPECT(stat_of("waits") - waits, 0);
    EXPECT(stat_of("cuCtxSynchronize") - syncs, 0);
    fprintf(stderr, "frees while busy %llu\n", (unsigned long long)(stat_of("cuMemFree_v2") - frees));
    OK(cuStreamSynchronize(s));
    for (long ms = 0; ms < wait_ms && stat_of("device_used") > (uint64_t)atol(getenv("USED_MOST")); ms += 20) nap(20);
    fprintf(stderr, "used at the end %llu\n", (unsigned long long)stat_of("device_used"));
}

/* Threads, each with streams of its own: free with work under way, allocate, write, check. */
static void *worker(void *seed) {
    unsigned x = (unsigned)(uintptr_t)seed * 2654435761u + 1;
    OK(cuCtxSetCurrent(gpu.context));
    Gpu mine = gpu;
    mine.counter = get(8);
    Stream s[2] = {stream_new(1), stream_new(1)};
    for (int i = 0; i < 60; i++) {
        x = x * 1664525 + 1013904223;
        size_t bytes = (x >> 16 & 3) == 0 ? 2 * MIB : 16 * KIB << (x >> 18 & 3);
        CUdeviceptr p = get(bytes);
        OK(k_fill(&mine, s[i & 1], p, 256, x));
        if (x >> 24 & 1) EXPECT(wrong_words(&mine, s[i & 1], p, 256, x), 0);
        else if (!(x >> 25 & 7)) OK(k_spin(&mine, s[i & 1], 1));
        give(p, bytes);
    }
    OK(cuStreamSynchronize(s[0]));
    OK(cuStreamSynchronize(s[1]));
    give(mine.counter, 8);
    return NULL;
}

/* Two frees before, eight after. For the simulator alone, which knows no units. */
static void green(void) {
    CUcontext made = NULL;
    void *units = NULL;
    give(get(MIB), MIB);
    EXPECT(cuCtxFromGreenCtx(&made, NULL) != 0, 1);
    give(get(MIB), MIB);
    OK(cuGreenCtxCreate(&units, "units", 0, 1));
    OK(cuCtxFromGreenCtx(&made, units));
    uint64_t frees = stat_of("cuMemFree_v2");
    for (int i = 0; i < 8; i++) give(get(MIB), MIB);
    EXPECT(stat_of("cuMemFree_v2") - frees, 8);
    OK(cuGreenCtxDestroy(units));
}

/* A context is no peer of its own. */
static void refused(void) {
    give(get(MIB), MIB);
    EXPECT(cuCtxEnablePeerAccess(gpu.context, 0) != 0, 1);
    for (int i = 0; i < 8; i++) give(get(MIB), MIB);
}

static void streams(void) {
    enum { THREADS = 6 };
    pthread_t t[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&t[i], NULL, worker, (void *)i)) exit(2);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "running";
    if (argc > 2 && getenv("USED_MOST")) wait_ms = atol(argv[2]);
    begin();
    if (!strcmp(mode, "idle")) idle();
    else if (!strcmp(mode, "sizes")) sizes();
    else if (!strcmp(mode, "busy")) busy();
    else if (!strcmp(mode, "streams")) streams();
    else if (!strcmp(mode, "green")) green();
    else if (!strcmp(mode, "refused")) refused();
    else running();
    return end("pool_order");
}
