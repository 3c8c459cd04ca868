/* What allocation promises through HIP: the barrier of hipFree on every stream, answers to wrong frees,
 * captures, blocks that threads hand to one another. With SIM_LAG_US all work is late. Without a device it
 * does nothing. */
#define _GNU_SOURCE
#include "count.h"
#include "hip_min.h"
#include "sim.h"
#include <pthread.h>
#include <string.h>

hipError_t hipStreamQuery(hipStream_t), hipMemGetInfo(size_t *, size_t *), hipGetDeviceCount(int *);
enum { WORDS = 1024, MIB = 1 << 20 };
static struct {
    void (*alloc)(uint64_t, uint64_t), (*free)(uint64_t), (*freed)(uint64_t, unsigned, int);
    int strict;
} sim;
#define SAY(...) (printf(__VA_ARGS__), putchar('\n'))

static void *get(size_t bytes) {
    void *p = NULL;
    OK(hipMalloc(&p, bytes));
    counted_alloc(DEVICE, bytes);
    if (sim.alloc) sim.alloc((uintptr_t)p, bytes);
    return p;
}
static int give(void *p, size_t bytes) {
    if (sim.free) sim.free((uintptr_t)p);
    int rc = hipFree(p);
    if (sim.freed) sim.freed((uintptr_t)p, (unsigned)rc, sim.strict && !getenv("GPUMEM_POOL_FILL"));
    if (rc == 0) counted_free(DEVICE, bytes);
    return rc;
}
/* How many of the first bytes are not `value`. */
static int wrong(hipStream_t s, void *p, int value) {
    unsigned char host[WORDS];
    int n = 0;
    OK(hipMemcpyAsync(host, p, sizeof host, hipMemcpyDeviceToHost, s));
    OK(hipStreamSynchronize(s));
    for (unsigned i = 0; i < sizeof host; i++) n += host[i] != value;
    return n;
}

static void order(hipStream_t s, hipStream_t other, size_t bytes) {
    void *p = get(bytes);
    OK(hipMemsetAsync(p, 1, WORDS, s));
    OK(hipMemsetAsync(p, 2, WORDS, s));
    OK(give(p, bytes));
    if (sim.strict) EXPECT(hipStreamQuery(s), 0);
    void *q = get(bytes);
    OK(hipMemsetAsync(q, 7, WORDS, other));
    OK(hipStreamSynchronize(other));
    OK(hipStreamSynchronize(s));
    EXPECT(wrong(other, q, 7), 0);
    OK(give(q, bytes));
}

static void answers(void) {
    for (size_t bytes = 4096; bytes <= 4 * MIB; bytes *= 32) {
        char *p = get(bytes);
        SAY("inside %d, behind %d", hipFree(p + 256), hipFree(p + bytes));
        OK(give(p, bytes));
        SAY("twice %d, inside freed %d", hipFree(p), hipFree(p + 256));
    }
    void *p = (void *)42, *async = NULL, *managed = NULL;
    SAY("none %d, small %d, NULL %d", hipMalloc(&p, 0), hipFree((void *)0x1000), hipFree(NULL));
    int large = hipMalloc(&p, (size_t)1 << 50);
    int last = hipGetLastError();
    SAY("too large %d, last error %d, then %d", large, last, hipGetLastError());
    OK(hipMallocAsync(&async, MIB, NULL));
    OK(hipMallocManaged(&managed, MIB, 1));
    SAY("stream-ordered %d, managed %d, again %d", hipFree(async), hipFree(managed), hipFree(managed));
    SAY("last error %d, then %d", hipGetLastError(), hipGetLastError());
}

static void captures(hipStream_t s) {
    for (int mode = 0; mode < 3; mode++)
        for (int free = 0; free < 2; free++) {
            void *p = get(3 * MIB), *q = NULL;
            hipGraph_t g = NULL;
            OK(hipStreamBeginCapture(s, mode));
            int rc = free ? give(p, 3 * MIB) : hipMalloc(&q, 3 * MIB), ended = hipStreamEndCapture(s, &g);
            SAY("mode %d, %s: %d, the capture %d", mode, free ? "free" : "allocate", rc, ended);
            if (ended == 0) OK(hipGraphDestroy(g));
            if (!free && rc == 0) {
                counted_alloc(DEVICE, 3 * MIB);
                OK(hipFree(q));
                counted_free(DEVICE, 3 * MIB);
            }
            if (!free || rc) OK(give(p, 3 * MIB));
            hipGetLastError();
        }
}

static void *worker(void *seed) {
    unsigned x = (unsigned)(uintptr_t)seed * 2654435761u + 1;
    hipStream_t s;
    OK(hipStreamCreateWithFlags(&s, hipStreamNonBlocking));
    for (int i = 0; i < 40; i++) {
        x = x * 1664525 + 1013904223;
        size_t bytes = (x >> 16 & 3) ? 64 * 1024 : MIB;
        void *p = get(bytes);
        OK(hipMemsetAsync(p, (int)(x >> 24), WORDS, s));
        if (i & 1) EXPECT(wrong(s, p, (int)(x >> 24)), 0);
        OK(give(p, bytes));
    }
    OK(hipStreamSynchronize(s));
    OK(hipStreamDestroy(s));
    return NULL;
}

int main(void) {
    int devices = 0;
    if (hipGetDeviceCount(&devices) || !devices) return report("hip_pool");
    OK(hipFree(NULL));
    const char *free = getenv("GPUMEM_FREE");
    sim.strict = !getenv("LD_PRELOAD") || !free || strcmp(free, "deferred");
    void *library = dlopen("libamdhip64.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (library) {
        *(void **)&sim.alloc = dlsym(library, "sim_note_alloc");
        *(void **)&sim.free = dlsym(library, "sim_note_free");
        *(void **)&sim.freed = dlsym(library, "sim_note_freed");
    }
    hipStream_t blocking, a, b;
    OK(hipStreamCreateWithFlags(&blocking, 0));
    OK(hipStreamCreateWithFlags(&a, hipStreamNonBlocking));
    OK(hipStreamCreateWithFlags(&b, hipStreamNonBlocking));
    for (int round = 0; round < 3; round++) {
        size_t bytes = round ? 3 * MIB : 16384;
        order(a, b, bytes);
        order(blocking, b, bytes);
        order(NULL, a, bytes);
        answers();
        captures(a);
    }
    pthread_t t[4];
    for (uintptr_t i = 0; i < 4; i++)
        if (pthread_create(&t[i], NULL, worker, (void *)i)) return 2;
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    OK(hipStreamDestroy(blocking));
    OK(hipStreamDestroy(a));
    OK(hipStreamDestroy(b));
    return report("hip_pool");
}
