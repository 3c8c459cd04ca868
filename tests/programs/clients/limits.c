/* Takes device memory in one way alone, 16 MiB at a time, until there is no more or 1 GiB is taken; says how
 * many blocks that were, and how the last request ended. `limits WAY`:
 *   plain, async, pitch, create, array   cuMemAlloc, cuMemAllocAsync, ...
 *   few        cuMemAlloc, then blocks of one to eight bytes, which are freed
 *   threads    cuMemAlloc by sixteen threads at a time, one block each
 *   info       says what cuMemGetInfo tells, before anything is allocated
 *   runtime    the same of cudaMemGetInfo */
#include "count.h"
#include "cuda_min.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

CUresult cuMemAllocAsync(CUdeviceptr *, size_t, void *), cuMemGetInfo_v2(size_t *, size_t *);
enum { BLOCK = 16 << 20, MOST = 64 };

static int take(const char *way) {
    CUdeviceptr p;
    size_t pitch;
    CUarray array;
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUDA_ARRAY_DESCRIPTOR desc = {.Width = 2048, .Height = 2048, .Format = 0x20 /* CU_AD_FORMAT_FLOAT */, .NumChannels = 1};
    if (!strcmp(way, "plain") || !strcmp(way, "few")) return cuMemAlloc_v2(&p, BLOCK);
    if (!strcmp(way, "async")) return cuMemAllocAsync(&p, BLOCK, NULL);
    if (!strcmp(way, "pitch")) return cuMemAllocPitch_v2(&p, &pitch, 16384, 1024, 16);
    if (!strcmp(way, "create")) return cuMemCreate(&h, BLOCK, &prop, 0);
    if (!strcmp(way, "array")) return cuArrayCreate_v2(&array, &desc);
    fprintf(stderr, "limits: unknown way %s\n", way);
    exit(2);
}

static void told(size_t free, size_t total) {
    EXPECT(free <= total, 1);
    printf("total %zu\n", total >> 20);
}

static CUcontext ctx;
static pthread_barrier_t all;
static atomic_int got;
static void *take_one(void *arg) {
    CUdeviceptr p;
    (void)arg;
    OK(cuCtxSetCurrent(ctx));
    pthread_barrier_wait(&all);
    if (cuMemAlloc_v2(&p, BLOCK) == 0) got++;
    return NULL;
}

int main(int argc, char **argv) {
    size_t free, total;
    int taken = 0, rc = 0;
    const char *way = argc > 1 ? argv[1] : "";
    if (!strcmp(way, "runtime")) {
        void *runtime = dlopen("libcudart.so.13", RTLD_NOW);
        cudaError_t (*info)(size_t *, size_t *) = runtime ? dlsym(runtime, "cudaMemGetInfo") : NULL;
        if (!info) return 2;
        OK(info(&free, &total));
        told(free, total);
        return did.failures;
    }
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    if (!strcmp(way, "info")) {
        OK(cuMemGetInfo_v2(&free, &total));
        told(free, total);
        return did.failures;
    }
    if (!strcmp(way, "threads")) {
        enum { THREADS = 16 };
        pthread_t t[THREADS];
        pthread_barrier_init(&all, NULL, THREADS);
        for (int i = 0; i < THREADS; i++) pthread_create(&t[i], NULL, take_one, NULL);
        for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
        printf("%d of %d\n", got, THREADS);
        return did.failures;
    }
    while (taken < MOST && (rc = take(way)) == 0) taken++;
    for (size_t bytes = 1; bytes <= 8 && !strcmp(way, "few"); bytes++) {
        CUdeviceptr p;
        OK(cuMemAlloc_v2(&p, bytes));
        OK(cuMemFree_v2(p));
    }
    printf("%d then %d\n", taken, rc);
    return did.failures;
}
