/* Where memory runs out. `pool_spill MODE`, for a device of some 512 MiB, or a quota of 256 MiB:
 *   spill   a program as ggml is: buffers that it works with, then scratch that a pool of its own grows by
 *           in the middle of a computation, a little more each time; says of each what it got
 *   quota   every way to take device memory, until there is no more of it; then all is given back */
#include "pool.h"

enum { BUFFER = 64 * MIB, BUFFERS = 12, GROWTHS = 12, BLOCK = 16 * MIB, MOST = 64, IS_MANAGED = 8 };

static const char *kind_of(CUdeviceptr p) {
    unsigned type = 0, managed = 0;
    OK(cuPointerGetAttribute(&type, MEMORY_TYPE, p));
    OK(cuPointerGetAttribute(&managed, IS_MANAGED, p));
    return managed & 0xff ? "managed" : type == 1 ? "host" : "plain";
}

/* Says what was got, and writes the ends of it. */
static void got(const char *what, int i, int rc, CUdeviceptr p, size_t bytes) {
    SAY("%s %d: %d %s", what, i, rc, rc ? "nothing" : kind_of(p));
    if (rc) return;
    size_t size = 0;
    OK(cuMemGetAddressRange_v2(NULL, &size, p + 8));
    EXPECT(size, bytes);
    OK(k_fill(&gpu, NULL, p, 1024, 100u + (unsigned)i));
    OK(k_fill(&gpu, NULL, p + bytes - 4096, 1024, 200u + (unsigned)i));
}
static void still_there(int i, CUdeviceptr p, size_t bytes) {
    EXPECT(wrong_words(&gpu, NULL, p, 1024, 100u + (unsigned)i), 0);
    EXPECT(wrong_words(&gpu, NULL, p + bytes - 4096, 1024, 200u + (unsigned)i), 0);
}

/* The one place where the pool of the program grows. */
__attribute__((noinline)) static CUresult grow(CUdeviceptr *p, size_t bytes) {
    CUresult rc = cuMemAlloc_v2(p, bytes);
    if (rc == 0) counted_alloc(DEVICE, bytes);
    return rc;
}
__attribute__((noinline)) static CUresult buffer(CUdeviceptr *p, size_t bytes) {
    CUresult rc = cuMemAlloc_v2(p, bytes);
    if (rc == 0) counted_alloc(DEVICE, bytes);
    return rc;
}

static void spill(void) {
    CUdeviceptr buffers[BUFFERS] = {0}, grown[GROWTHS] = {0};
    size_t sizes[GROWTHS];
    for (int i = 0; i < 4; i++) {
        int rc = buffer(&buffers[i], BUFFER);
        got("buffer", i, rc, buffers[i], BUFFER);
        if (rc) exit(2);
        OK(cuCtxSynchronize());
    }
    size_t bytes = 16 * MIB;
    for (int i = 0; i < GROWTHS; i++) {
        OK(k_spin(&gpu, NULL, 1));
        sizes[i] = bytes;
        int rc = grow(&grown[i], bytes);
        got("growth", i, rc, grown[i], bytes);
        if (rc) grown[i] = 0;
        bytes = (bytes + bytes / 20 + 255) / 256 * 256;
        if (i % 4 == 3) OK(cuCtxSynchronize());
    }
    OK(cuCtxSynchronize());
    for (int i = 4; i < BUFFERS; i++) {
        int rc = buffer(&buffers[i], BUFFER);
        got("buffer", i, rc, buffers[i], BUFFER);
        if (rc) buffers[i] = 0;
        OK(cuCtxSynchronize());
    }
    for (int i = 0; i < BUFFERS; i++)
        if (buffers[i]) still_there(i, buffers[i], BUFFER);
    for (int i = 0; i < GROWTHS; i++)
        if (grown[i]) still_there(i, grown[i], sizes[i]);
    OK(cuCtxSynchronize());
    for (int i = 0; i < BUFFERS; i++)
        if (buffers[i]) {
            EXPECT(cuMemFree_v2(buffers[i] + 4096), 1);
            OK(cuMemFree_v2(buffers[i]));
            counted_free(DEVICE, BUFFER);
            EXPECT(cuMemFree_v2(buffers[i]), 1);
        }
    for (int i = 0; i < GROWTHS; i++)
        if (grown[i]) {
            OK(cuMemFree_v2(grown[i]));
            counted_free(DEVICE, sizes[i]);
        }
}

static void info(const char *when) {
    size_t free, total;
    OK(cuMemGetInfo_v2(&free, &total));
    fprintf(stderr, "%s: %zu MiB free of %zu\n", when, free / MIB, total / MIB);
}

static void quota(void) {
    CUdeviceptr p[MOST], one = 0;
    int n = 0, rc = 0;
    info("at first");
    while (n < MOST && (rc = cuMemAlloc_v2(&p[n], BLOCK)) == 0) n++;
    fprintf(stderr, "plain %d then %d\n", n, rc);
    info("full");
    if (n < MOST) EXPECT(cuMemAlloc_v2(&one, BLOCK), 2);
    /* What lies in host memory until it is used is not the device's. */
    OK(cuMemAllocManaged(&one, 512 * (size_t)MIB, 1));
    OK(cuMemFree_v2(one));
    while (n > 0) OK(cuMemFree_v2(p[--n]));
    OK(cuCtxSynchronize());
    info("empty");
    while (n < MOST && (rc = cuMemAllocAsync(&p[n], BLOCK, NULL)) == 0) n++;
    fprintf(stderr, "async %d then %d\n", n, rc);
    OK(cuStreamSynchronize(NULL));
    while (n > 0) OK(cuMemFreeAsync(p[--n], NULL));
    OK(cuStreamSynchronize(NULL));
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle h[MOST];
    while (n < MOST && (rc = cuMemCreate(&h[n], BLOCK, &prop, 0)) == 0) n++;
    fprintf(stderr, "created %d then %d\n", n, rc);
    while (n > 0) OK(cuMemRelease(h[--n]));
    size_t pitch;
    while (n < MOST && (rc = cuMemAllocPitch_v2(&p[n], &pitch, 16384, 1024, 16)) == 0) n++;
    fprintf(stderr, "pitched %d then %d\n", n, rc);
    while (n > 0) OK(cuMemFree_v2(p[--n]));
    CUarray a[MOST];
    CUDA_ARRAY_DESCRIPTOR rows = {.Width = 4096, .Height = 1024, .Format = 0x20 /* float */, .NumChannels = 1};
    while (n < MOST && (rc = cuArrayCreate_v2(&a[n], &rows)) == 0) n++;
    fprintf(stderr, "arrays %d then %d\n", n, rc);
    while (n > 0) OK(cuArrayDestroy(a[--n]));
    void *q[MOST];
    while (n < MOST && (rc = cudaMalloc(&q[n], BLOCK)) == 0) n++;
    fprintf(stderr, "runtime %d then %d, last error %d\n", n, rc, cudaGetLastError());
    while (n > 0) OK(cudaFree(q[--n]));
    /* Larger than all of it, and then what fits. */
    if (rc) EXPECT(cuMemAlloc_v2(&one, 512 * (size_t)MIB), 2);
    OK(cuMemAlloc_v2(&one, BLOCK));
    OK(k_fill(&gpu, NULL, one, 1024, 5));
    EXPECT(wrong_words(&gpu, NULL, one, 1024, 5), 0);
    OK(cuMemFree_v2(one));
    info("at last");
}

int main(int argc, char **argv) {
    begin();
    if (argc > 1 && !strcmp(argv[1], "quota")) quota();
    else spill();
    return end("pool_spill");
}
