/* What allocations cost, and what is kept of them, natively and under the pool; one JSON line each.
 *
 *     pool pairs [THREADS]        pairs of malloc and free, 64 KiB to 4 MiB mixed, from 32 frames down; misses
 *     pool swap [GIB]             frees GIB in mixed blocks and allocates the same sizes again, several times
 *     pool hold                   for each line of standard input: "take GIB MIN_MIB MAX_MIB" or "free"
 *     pool peer                   frees memory of device 0 under a kernel of device 1 (see peer.h)
 *
 * Calls go the way it was built for: through the driver, opened at run time, or with -DRUNTIME through a
 * cudart that it is linked with, shared or static.
 */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "entries.h"

typedef unsigned long long CUdeviceptr;
typedef int fn();
static struct { fn *init, *device, *retain, *current, *sync, *memset, *alloc, *release, *own_alloc, *own_release; } cu;

static void must(int code, const char *what) {
    if (!code) return;
    fprintf(stderr, "pool: %s gave %d\n", what, code);
    exit(2);
}
static void *driver;
static fn *symbol(const char *name) {
    fn *found = (fn *)dlsym(driver, name);
    if (!found) fprintf(stderr, "pool: the driver has no %s\n", name), exit(2);
    return found;
}
static void *context;

#ifdef RUNTIME
int cudaMalloc(void **, size_t), cudaFree(void *), cudaSetDevice(int);
static int take(CUdeviceptr *p, size_t bytes) { return cudaMalloc((void **)p, bytes); }
static int give(CUdeviceptr p) { return cudaFree((void *)p); }
static void begin_thread(void) { must(cudaSetDevice(0), "cudaSetDevice"); }
#else
#define take(p, bytes) cu.alloc((CUdeviceptr *)(p), (size_t)(bytes))
#define give(p) cu.release((CUdeviceptr)(p))
static void begin_thread(void) { must(cu.current(context), "cuCtxSetCurrent"); }
#endif

static void begin(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!driver) fprintf(stderr, "pool: %s\n", dlerror()), exit(2);
    cu.init = symbol("cuInit"), cu.device = symbol("cuDeviceGet"), cu.retain = symbol("cuDevicePrimaryCtxRetain");
    cu.current = symbol("cuCtxSetCurrent"), cu.sync = symbol("cuCtxSynchronize"), cu.memset = symbol("cuMemsetD8Async");
    cu.alloc = symbol("cuMemAlloc_v2"), cu.release = symbol("cuMemFree_v2");
    cu.own_alloc = (fn *)drivers_own("cuMemAlloc_v2"), cu.own_release = (fn *)drivers_own("cuMemFree_v2");
    int device;
    must(cu.init(0), "cuInit");
    must(cu.device(&device, 0), "cuDeviceGet");
    must(cu.retain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cu.current(context), "cuCtxSetCurrent");
    begin_thread();
}

/* ---- sizes: log-uniform between two bounds, the same in every run ---- */
static uint64_t next(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
static size_t between(uint64_t *state, double least, double most) {
    double u = (double)(next(state) >> 11) / 9007199254740992.0;
    return (size_t)(least * exp2(u * log2(most / least)));
}
enum { SIZES = 4096, RING = 16, BLOCKS = 21 };

/* ---- pairs ---- */
struct worker {
    size_t sizes[SIZES];
    CUdeviceptr ring[RING];
    unsigned at;
    long pairs;
    double took;
    pthread_t thread;
};
static void sized(struct worker *w, uint64_t seed) {
    memset(w, 0, sizeof *w);
    for (int i = 0; i < SIZES; i++) w->sizes[i] = between(&seed, 65536, 4 << 20);
}
typedef void block_fn(struct worker *, int);
static void pair(struct worker *w, int n) {
    for (int i = 0; i < n; i++) {
        CUdeviceptr p;
        must(take(&p, w->sizes[w->at++ % SIZES]), "malloc");
        must(give(p), "free");
    }
}
/* Sixteen live at a time: the oldest goes, a new one comes. */
static void ring(struct worker *w, int n) {
    for (int i = 0; i < n; i++) {
        CUdeviceptr *p = &w->ring[w->at % RING];
        if (*p) must(give(*p), "free");
        must(take(p, w->sizes[w->at++ % SIZES]), "malloc");
    }
}
/* Something is submitted in between, so that a free has something to wait for. */
static void busy(struct worker *w, int n) {
    for (int i = 0; i < n; i++) {
        CUdeviceptr p;
        must(take(&p, w->sizes[w->at++ % SIZES]), "malloc");
        must(cu.memset(p, 1, (size_t)64, NULL), "cuMemsetD8Async");
        must(give(p), "free");
    }
}
/* Median ns of one, over blocks of as many as take a few milliseconds. */
static double each(block_fn *block, struct worker *w) {
    double took[BLOCKS];
    block(w, 1024); /* every size class has a block now */
    double start = now_ns();
    block(w, 64);
    double one = (now_ns() - start) / 64;
    int per = one < 2000 ? 50000 : (int)(4e6 / one) + 1;
    for (int i = 0; i < BLOCKS; i++) {
        start = now_ns();
        block(w, per);
        took[i] = (now_ns() - start) / per;
    }
    return quantile(took, BLOCKS, 0.5);
}

static volatile int stop;
static pthread_barrier_t together;
static void *work(void *of) {
    struct worker *w = of;
    begin_thread();
    pair(w, 128);
    pthread_barrier_wait(&together);
    double start = now_ns();
    while (!stop) {
        pair(w, 16);
        w->pairs += 16;
    }
    w->took = now_ns() - start;
    return NULL;
}
/* Pairs a second of so many threads in all. */
static double threads(int count) {
    struct worker *all = calloc((size_t)count, sizeof *all);
    double sum = 0;
    stop = 0;
    pthread_barrier_init(&together, NULL, (unsigned)count + 1);
    for (int i = 0; i < count; i++) {
        sized(&all[i], 100 + (uint64_t)i);
        if (pthread_create(&all[i].thread, NULL, work, &all[i])) fprintf(stderr, "pool: no thread\n"), exit(2);
    }
    pthread_barrier_wait(&together);
    usleep(250000);
    stop = 1;
    for (int i = 0; i < count; i++) {
        pthread_join(all[i].thread, NULL);
        sum += (double)all[i].pairs / all[i].took * 1e9;
    }
    free(all);
    return sum;
}

/* Allocations that no idle block can serve, by turns through the hook and the driver's own entry: of sizes that were
 * never freed. {median ns through the hook, through the entry, median of the ratios}. */
static void misses(double found[3]) {
    enum { MISSES = 151 };
    static CUdeviceptr p[MISSES][2];
    static double took[2][MISSES], ratio[MISSES];
    uint64_t seed = 7;
    for (int i = 0; i < MISSES; i++) {
        size_t bytes = between(&seed, 5 << 20, 9 << 20);
        for (int turn = 0; turn < 2; turn++) {
            int own = (turn + i) & 1;
            double start = now_ns();
            int code = own ? cu.own_alloc(&p[i][1], bytes) : take(&p[i][0], bytes);
            took[own][i] = now_ns() - start;
            must(code, "malloc");
        }
        ratio[i] = took[0][i] / took[1][i];
    }
    for (int i = 0; i < MISSES; i++) must(give(p[i][0]), "free"), must(cu.own_release(p[i][1]), "free");
    found[0] = quantile(took[0], MISSES, 0.5), found[1] = quantile(took[1], MISSES, 0.5), found[2] = quantile(ratio, MISSES, 0.5);
}

static void pairs(int count) {
    static struct worker w;
    double miss[3] = {0};
    if (cu.own_alloc && cu.own_release) misses(miss);
    sized(&w, 1);
    double plain = each(pair, &w), window = each(ring, &w);
    for (int i = 0; i < RING; i++) must(give(w.ring[i]), "free");
    double working = each(busy, &w);
    must(cu.sync(), "cuCtxSynchronize");
    printf("{\"pair_ns\":%.1f,\"window_ns\":%.1f,\"busy_ns\":%.1f,\"threads\":%d,\"pairs_per_s\":%.0f,\"miss_ns\":%.0f,"
           "\"miss_native_ns\":%.0f,\"miss_ratio\":%.4f}\n",
           plain, window, working, count, threads(count), miss[0], miss[1], miss[2]);
}
/* 32 frames, each of its own function. */
static int pair_threads;
static __attribute__((noinline)) void frame0(void) { pairs(pair_threads); __asm__ volatile(""); }
#define FRAME(n, next) static __attribute__((noinline)) void frame##n(void) { frame##next(); __asm__ volatile(""); }
FRAME(1, 0) FRAME(2, 1) FRAME(3, 2) FRAME(4, 3) FRAME(5, 4) FRAME(6, 5) FRAME(7, 6) FRAME(8, 7) FRAME(9, 8) FRAME(10, 9)
FRAME(11, 10) FRAME(12, 11) FRAME(13, 12) FRAME(14, 13) FRAME(15, 14) FRAME(16, 15) FRAME(17, 16) FRAME(18, 17) FRAME(19, 18)
FRAME(20, 19) FRAME(21, 20) FRAME(22, 21) FRAME(23, 22) FRAME(24, 23) FRAME(25, 24) FRAME(26, 25) FRAME(27, 26) FRAME(28, 27)
FRAME(29, 28) FRAME(30, 29) FRAME(31, 30)

/* ---- many bytes in mixed blocks ---- */
struct block { CUdeviceptr at; size_t bytes; };
static struct block *held;
static int held_n;

static double gib_of(size_t bytes) { return (double)bytes / (1 << 30); }
static int take_all(double gib, double least_mib, double most_mib) {
    uint64_t seed = 3;
    size_t left = (size_t)(gib * (1 << 30)), sum = 0;
    held = realloc(held, sizeof *held * (size_t)(gib * 1024 / least_mib + 2));
    held_n = 0;
    while (left > 0) {
        size_t bytes = between(&seed, least_mib * 1048576, most_mib * 1048576);
        if (bytes > left) bytes = left;
        int code = take(&held[held_n].at, bytes);
        if (code) return printf("{\"code\":%d,\"gib\":%.2f,\"blocks\":%d}\n", code, gib_of(sum), held_n), code;
        held[held_n++].bytes = bytes;
        left -= bytes, sum += bytes;
    }
    return 0;
}
static void give_all(void) {
    for (int i = 0; i < held_n; i++) must(give(held[i].at), "free");
}
static void swap(double gib) {
    enum { TIMES = 7 };
    double took[TIMES], freeing[TIMES];
    if (take_all(gib, 1, 512)) exit(2);
    for (int i = 0; i < TIMES; i++) {
        must(cu.memset(held[i % held_n].at, i, held[i % held_n].bytes, NULL), "cuMemsetD8Async");
        must(cu.sync(), "cuCtxSynchronize");
        double start = now_ns();
        give_all();
        freeing[i] = now_ns() - start;
        for (int b = 0; b < held_n; b++) must(take(&held[b].at, held[b].bytes), "malloc");
        took[i] = now_ns() - start;
    }
    /* The first time the pool learns the sizes. */
    printf("{\"gib\":%.2f,\"blocks\":%d,\"first_ms\":%.4f,\"free_ms\":%.4f,\"swap_ms\":%.4f}\n", gib, held_n, took[0] / 1e6,
           quantile(freeing + 1, TIMES - 1, 0.5) / 1e6, quantile(took + 1, TIMES - 1, 0.5) / 1e6);
    give_all();
}
static void hold(void) {
    char line[128];
    double gib, least, most;
    while (fgets(line, sizeof line, stdin)) {
        double start = now_ns();
        if (sscanf(line, "take %lf %lf %lf", &gib, &least, &most) == 3) {
            if (take_all(gib, least, most)) give_all(), held_n = 0;
            else printf("{\"code\":0,\"gib\":%.2f,\"blocks\":%d,\"ms\":%.3f}\n", gib, held_n, (now_ns() - start) / 1e6);
        } else if (!strncmp(line, "free", 4)) {
            give_all();
            printf("{\"code\":0,\"freed\":%d,\"ms\":%.3f}\n", held_n, (now_ns() - start) / 1e6);
            held_n = 0;
        } else {
            printf("{\"code\":-1}\n");
        }
        fflush(stdout);
    }
    _exit(0);
}
#include "peer.h"

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "";
    double number = argc > 2 ? atof(argv[2]) : 0;
    if (strcmp(command, "pairs") && strcmp(command, "swap") && strcmp(command, "hold") && strcmp(command, "peer"))
        return fprintf(stderr, "pool: pairs [THREADS] | swap [GIB] | hold | peer\n"), 2;
    begin();
    if (!strcmp(command, "pairs")) pair_threads = number > 0 ? (int)number : 16, frame31();
    if (!strcmp(command, "swap")) swap(number > 0 ? number : 20);
    if (!strcmp(command, "hold")) hold();
    if (!strcmp(command, "peer")) peer();
    return 0;
}
