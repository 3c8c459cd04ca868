/* The first GPU call of the process, made by many threads at once: half through
 * the runtime, half through the driver. Each must find a working device, and what
 * one allocates another may free. Then the same work once more by one thread. */
#include "rt.h"
#include <pthread.h>

enum { THREADS = 16 };
static pthread_barrier_t gate, done;
static void *block[THREADS];

static size_t size_of(long i) { return 4096u * (unsigned)(i + 1) + (unsigned)i; }

static void runtime(long i) {
    OK(cudaMalloc(&block[i], size_of(i)));
}

static void driver(long i) {
    CUcontext ctx;
    CUdeviceptr p;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    OK(cuMemAlloc_v2(&p, size_of(i)));
    block[i] = (void *)(uintptr_t)p;
}

static void *work(void *arg) {
    long i = (long)arg, other = THREADS - 1 - i;
    pthread_barrier_wait(&gate);
    if (i % 2) driver(i);
    else runtime(i);
    counted_alloc(DEVICE, size_of(i));
    pthread_barrier_wait(&done);
    /* The other kind's block, in this thread's way. */
    if (i % 2) OK(cuMemFree_v2((CUdeviceptr)(uintptr_t)block[other]));
    else OK(cudaFree(block[other]));
    counted_free(DEVICE, size_of(other));
    return NULL;
}

int main(void) {
    pthread_t t[THREADS];
    pthread_barrier_init(&gate, NULL, THREADS);
    pthread_barrier_init(&done, NULL, THREADS);
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&t[i], NULL, work, (void *)i)) return 2;
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < THREADS; i += 2) OK(cuDevicePrimaryCtxRelease_v2(0)); /* the drivers' references */
    kernels_load();
    uint32_t *p = dev_alloc(4096);
    OK(k_fill(p, 1024, 8, NULL));
    EXPECT(mismatches_of(p, 1024, 8, NULL), 0);
    dev_free(p, 4096);
    kernels_unload();
    return report("firstuse");
}
