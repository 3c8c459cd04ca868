/* Blocks and threads. `pool_threads MODE`:
 *   ends    a thread ends with freed blocks of its own: others can have them, and they are given back
 *   joined  threads are waited for that free what this one asks for next: how many real allocations that takes
 *   keeps   threads that go on with one size give up what they keep of others
 *   names   threads that come and go, without end
 *   tls     a thread's destructor frees; so does a destructor of static storage at exit
 *   race    a freed address is another thread's at once
 *   fork    a child of a process with live and freed blocks; the parent goes on
 *   reset   the device is reset under live and freed blocks */
#include "pool.h"
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

enum { BLOCKS = 48, BYTES = MIB };

static void *fill_and_end(void *unused) {
    (void)unused;
    OK(cuCtxSetCurrent(gpu.context));
    CUdeviceptr p[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) p[i] = get(BYTES);
    for (int i = 0; i < BLOCKS; i++) OK(k_fill(&gpu, NULL, p[i], 64, 1));
    for (int i = 0; i < BLOCKS; i++) give(p[i], BYTES);
    /* Frees that do not wait leave blocks that work still uses. */
    OK(cuCtxSynchronize());
    return NULL;
}

static long wait_ms; /* the second argument: how long what is given back may take */

static void ends(void) {
    /* A block of 1 MiB takes two of the device's; what is in quarantine is nobody's. */
    uint64_t used = stat_of("device_used"), slack = (getenv("GPUMEM_QUARANTINE") ? 24 : 2) * MIB;
    uint64_t most = used + 2ul * BLOCKS * BYTES + slack;
    int missed = 0;
    for (int round = 0; round < 6; round++) {
        on_thread(fill_and_end, NULL);
        OK(cuCtxSynchronize()); /* deferred frees are over then */
        uint64_t now = stat_of("device_used");
        if (now <= most) continue;
        missed++;
        most = now + slack;
    }
    /* What the threads before left is what a thread got, but where the pool's own thread was just looking through it: once
     * a second, and for longer where it has to wait for a processor. */
    EXPECT(missed < 3, 1);
    uint64_t real = stat_of("cuMemAlloc_v2");
    CUdeviceptr p[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) p[i] = get(BYTES);
    fprintf(stderr, "real allocations %llu\n", (unsigned long long)(stat_of("cuMemAlloc_v2") - real));
    for (int i = 0; i < BLOCKS; i++) give(p[i], BYTES);
    OK(cuCtxSynchronize());
    for (long ms = 0; ms < wait_ms && stat_of("device_used") > used + 2 * MIB; ms += 20) nap(20);
    fprintf(stderr, "still used %lld\n", (long long)(stat_of("device_used") - used));
}

/* A free leaves the block with a thread that has allocated; one that was joined has nothing of its own. The kernel
 * closes the files of a thread after whoever waits for it goes on. */
static void *free_and_end(void *block) {
    enum { FILES = 900 };
    OK(cuCtxSetCurrent(gpu.context));
    give(get(4 * KIB), 4 * KIB);
    give((CUdeviceptr)(uintptr_t)block, BYTES);
    EXPECT(unshare(CLONE_FILES), 0);
    for (int i = 0; i < FILES && eventfd(0, 0) >= 0; i++) {}
    return NULL;
}
static void joined(void) {
    enum { ROUNDS = 50 };
    uint64_t real = stat_of("cuMemAlloc_v2");
    /* One for each of the two sizes. */
    for (int round = 0; round < ROUNDS; round++) on_thread(free_and_end, (void *)(uintptr_t)get(BYTES));
    fprintf(stderr, "real allocations %llu\n", (unsigned long long)(stat_of("cuMemAlloc_v2") - real));
}

enum { KEEPERS = 20 };
static atomic_int ready, quit;
static void *keep(void *unused) {
    (void)unused;
    pthread_setname_np(pthread_self(), "keeper");
    OK(cuCtxSetCurrent(gpu.context));
    CUdeviceptr p[8];
    for (int i = 0; i < 8; i++) p[i] = get((512 - 64 * (i / 4)) * KIB);
    for (int i = 0; i < 8; i++) give(p[i], (512 - 64 * (i / 4)) * KIB);
    ready++;
    while (!quit) {
        give(get(4 * KIB), 4 * KIB);
        nap(1);
    }
    return NULL;
}
/* Threads come and go, more than a small ledger has places for. */
static void *named(void *name) {
    pthread_setname_np(pthread_self(), name);
    OK(cuCtxSetCurrent(gpu.context));
    give(get(4 * KIB), 4 * KIB);
    return NULL;
}
static void names(void) {
    enum { THREADS = 600 };
    for (int i = 0; i < THREADS; i++) on_thread(named, "worker");
    on_thread(named, "the last");
}

static void keeps(void) {
    uint64_t used = stat_of("device_used");
    pthread_t t[KEEPERS];
    for (int i = 0; i < KEEPERS; i++)
        if (pthread_create(&t[i], NULL, keep, NULL)) exit(2);
    while (ready < KEEPERS) nap(1);
    fprintf(stderr, "used at first %lld\n", (long long)(stat_of("device_used") - used));
    for (long ms = 0; ms < wait_ms && stat_of("device_used") > used + 4 * MIB; ms += 20) nap(20);
    fprintf(stderr, "still used %lld\n", (long long)(stat_of("device_used") - used));
    quit = 1;
    for (int i = 0; i < KEEPERS; i++) pthread_join(t[i], NULL);
}

static pthread_key_t key;
static int of_destructor = -1;
static void destroy(void *p) {
    of_destructor = cuMemFree_v2((CUdeviceptr)(uintptr_t)p);
    CUdeviceptr q = 0;
    if (cuMemAlloc_v2(&q, BYTES) == 0) cuMemFree_v2(q);
}
static void *with_destructor(void *unused) {
    (void)unused;
    OK(cuCtxSetCurrent(gpu.context));
    CUdeviceptr p = 0;
    OK(cuMemAlloc_v2(&p, BYTES));
    pthread_setspecific(key, (void *)(uintptr_t)p);
    return NULL;
}
static CUdeviceptr static_live, static_idle;
__attribute__((destructor)) static void at_the_very_end(void) {
    if (!static_live) return;
    CUdeviceptr p = 42;
    int freed = cuMemFree_v2(static_live), again = cuMemFree_v2(static_idle), got = cuMemAlloc_v2(&p, BYTES);
    void *q = NULL;
    fprintf(stderr, "at the very end: %d %d %d, runtime %d %d\n", freed, again, got, cudaMalloc(&q, BYTES), cudaFree(q));
}
static void tls(void) {
    pthread_key_create(&key, destroy);
    for (int i = 0; i < 8; i++) {
        on_thread(with_destructor, NULL);
        EXPECT(of_destructor, 0);
        of_destructor = -1;
    }
    static_idle = get(BYTES);
    give(static_idle, BYTES);
    OK(cuMemAlloc_v2(&static_live, BYTES));
    counted_alloc(DEVICE, BYTES);
}

/* One thread frees, the other allocates at once and often gets that address: what is known of it is its own. */
static void *racer(void *out) {
    OK(cuCtxSetCurrent(gpu.context));
    Gpu mine = gpu;
    mine.counter = get(8);
    Stream s = stream_new(1);
    unsigned x = (unsigned)(uintptr_t)out;
    for (int i = 0; i < 400; i++) {
        x = x * 1664525 + 1013904223;
        size_t bytes = MIB + 512 * (x >> 20 & 3), size = 0; /* of one class, each of its own size */
        CUdeviceptr p = get(bytes), base = 0;
        OK(cuMemGetAddressRange_v2(&base, &size, p + 100));
        EXPECT(base == p && size == bytes, 1);
        if (i % 8 == 0) {
            OK(k_fill(&mine, s, p, 64, x));
            EXPECT(wrong_words(&mine, s, p, 64, x), 0);
        }
        give(p, bytes);
    }
    give(mine.counter, 8);
    return NULL;
}
static void race(void) {
    pthread_t t[4];
    for (uintptr_t i = 0; i < 4; i++)
        if (pthread_create(&t[i], NULL, racer, (void *)(i + 1))) exit(2);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
}

static int status_of(pid_t pid) {
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}
static void forks(void) {
    CUdeviceptr live = get(BYTES), idle = get(BYTES);
    OK(k_fill(&gpu, NULL, live, 64, 5));
    give(idle, BYTES);
    for (int round = 0; round < 3; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            CUdeviceptr p = 42;
            int got = cuMemAlloc_v2(&p, BYTES), freed = cuMemFree_v2(live), again = cuMemFree_v2(idle);
            size_t free, total;
            _exit(got == 3 && freed == 3 && again == 3 && cuMemGetInfo_v2(&free, &total) == 3 ? 7 : 8);
        }
        int status = status_of(pid);
        if (sim.stat) EXPECT(status, 7);
        CUdeviceptr p = get(BYTES);
        OK(k_fill(&gpu, NULL, p, 64, 6));
        EXPECT(wrong_words(&gpu, NULL, p, 64, 6), 0);
        EXPECT(wrong_words(&gpu, NULL, live, 64, 5), 0);
        give(p, BYTES);
        /* A child that starts another program is a process like any other. */
        pid = fork();
        if (pid == 0) {
            execl("/proc/self/exe", "pool_threads", "race", (char *)NULL);
            _exit(9);
        }
        EXPECT(status_of(pid), 0);
    }
    give(live, BYTES);
}

/* What was there before is nobody's afterwards, and nothing of it is given out. */
static void reset(void) {
    for (int round = 0; round < 4; round++) {
        CUdeviceptr live = get(BYTES), idle = get(BYTES), p;
        give(idle, BYTES);
        if (sim.free) sim.free(live), sim.freed(live, 0, 0), sim.free(gpu.counter), sim.freed(gpu.counter, 0, 0);
        OK(cuDevicePrimaryCtxReset_v2(0));
        counted_free(DEVICE, BYTES);
        counted_free(DEVICE, 8);
        CUcontext context;
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxSetCurrent(context));
        EXPECT(cuMemFree_v2(live), 1);
        EXPECT(cuMemFree_v2(idle), 1);
        gpu = fitted(context);
        p = get(BYTES);
        OK(k_fill(&gpu, NULL, p, 64, 6));
        EXPECT(wrong_words(&gpu, NULL, p, 64, 6), 0);
        give(p, BYTES);
    }
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "race";
    if (argc > 2) wait_ms = atol(argv[2]);
    begin();
    if (!strcmp(mode, "ends")) ends();
    else if (!strcmp(mode, "joined")) joined();
    else if (!strcmp(mode, "keeps")) keeps();
    else if (!strcmp(mode, "names")) names();
    else if (!strcmp(mode, "tls")) tls();
    else if (!strcmp(mode, "fork")) forks();
    else if (!strcmp(mode, "reset")) reset();
    else race();
    return end("pool_threads");
}
