/* Every family of allocation once, each filled, checked and freed: what a plain
 * program does, with a known count of each kind. */
#include "rt.h"
#include <string.h>

enum { N = 1 << 18 }; /* words: 1 MiB */

static void device(cudaStream_t s) {
    static uint32_t host[N];
    uint32_t *a = dev_alloc(sizeof host), *b = dev_alloc(sizeof host);
    for (int i = 0; i < N; i++) host[i] = (uint32_t)i;
    OK(cudaMemcpy(a, host, sizeof host, cudaMemcpyHostToDevice));
    OK(k_scale(b, a, N, 3, s));
    OK(cudaStreamSynchronize(s));
    memset(host, 0, sizeof host);
    OK(cudaMemcpy(host, b, sizeof host, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; i < N; i++) wrong += host[i] != 3u * (uint32_t)i;
    EXPECT(wrong, 0);
    OK(cudaMemset(a, 0x5a, sizeof host));
    EXPECT(mismatches_of(a, N, 0x5a5a5a5au, s), 0);
    dev_free(b, sizeof host);
    dev_free(a, sizeof host);
}

static void pitched(void) {
    enum { W = 1000, H = 33, D = 3 };
    static unsigned char in[D][H][W], out[D][H][W];
    void *p;
    size_t pitch;
    for (int i = 0; i < H; i++) memset(in[0][i], i + 1, W);
    OK(cudaMallocPitch(&p, &pitch, W, H));
    counted_alloc(DEVICE, pitch * H);
    EXPECT(pitch >= W, 1);
    OK(cudaMemcpy2D(p, pitch, in[0], W, W, H, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(out[0], W, p, pitch, W, H, cudaMemcpyDeviceToHost));
    EXPECT(memcmp(in[0], out[0], sizeof in[0]), 0);
    OK(cudaFree(p));
    counted_free(DEVICE, pitch * H);

    struct cudaPitchedPtr pp;
    struct cudaExtent extent = {W, H, D};
    for (int z = 0; z < D; z++)
        for (int y = 0; y < H; y++) memset(in[z][y], z * H + y, W);
    OK(cudaMalloc3D(&pp, extent));
    counted_alloc(DEVICE, pp.pitch * H * D);
    struct cudaMemcpy3DParms to = {.srcPtr = {in, W, W, H}, .dstPtr = pp, .extent = extent, .kind = cudaMemcpyHostToDevice};
    struct cudaMemcpy3DParms from = {.srcPtr = pp, .dstPtr = {out, W, W, H}, .extent = extent, .kind = cudaMemcpyDeviceToHost};
    OK(cudaMemcpy3D(&to));
    OK(cudaMemcpy3D(&from));
    EXPECT(memcmp(in, out, sizeof in), 0);
    OK(cudaFree(pp.ptr));
    counted_free(DEVICE, pp.pitch * H * D);
}

static void managed(cudaStream_t s) {
    uint32_t *p;
    OK(cudaMallocManaged((void **)&p, N * 4, cudaMemAttachGlobal));
    counted_alloc(MANAGED, N * 4);
    OK(k_fill(p, N, 7, s));
    OK(cudaDeviceSynchronize());
    EXPECT(p[0] == 7 && p[N - 1] == 7, 1);
    OK(cudaFree(p));
    counted_free(MANAGED, N * 4);
}

static void host_memory(cudaStream_t s) {
    uint32_t *dev = dev_alloc(N * 4), *pinned, *mapped, *of_mapped;
    OK(cudaMallocHost((void **)&pinned, N * 4));
    counted_alloc(HOST, N * 4);
    OK(cudaHostAlloc((void **)&mapped, N * 4, cudaHostAllocMapped | cudaHostAllocPortable));
    counted_alloc(HOST, N * 4);
    for (int i = 0; i < N; i++) pinned[i] = 11;
    OK(cudaMemcpyAsync(dev, pinned, N * 4, cudaMemcpyHostToDevice, s));
    EXPECT(mismatches_of(dev, N, 11, s), 0);
    OK(cudaHostGetDevicePointer((void **)&of_mapped, mapped, 0));
    OK(k_fill(of_mapped, N, 12, s));
    OK(cudaStreamSynchronize(s));
    EXPECT(mapped[0] == 12 && mapped[N - 1] == 12, 1);

    void *own = aligned_alloc(4096, N * 4);
    if (!own) exit(2);
    memset(own, 1, N * 4);
    OK(cudaHostRegister(own, N * 4, 0));
    counted_alloc(REGISTERED, N * 4);
    OK(cudaMemcpyAsync(dev, own, N * 4, cudaMemcpyHostToDevice, s));
    EXPECT(mismatches_of(dev, N, 0x01010101, s), 0);
    OK(cudaHostUnregister(own));
    counted_free(REGISTERED, N * 4);
    free(own);

    OK(cudaFreeHost(mapped));
    counted_free(HOST, N * 4);
    OK(cudaFreeHost(pinned));
    counted_free(HOST, N * 4);
    dev_free(dev, N * 4);
}

static void arrays(void) {
    enum { W = 64, H = 16 };
    struct cudaChannelFormatDesc desc = {.x = 32, .f = 1 /* unsigned */};
    uint32_t in[H][W], out[H][W];
    cudaArray_t a, cube;
    for (int i = 0; i < W * H; i++) in[i / W][i % W] = (uint32_t)(i * 5);
    OK(cudaMallocArray(&a, &desc, W, H, 0));
    counted_alloc(ARRAY, sizeof in);
    /* With an array in it, the extent is in elements. */
    struct cudaMemcpy3DParms to = {.srcPtr = {in, W * 4, W, H}, .dstArray = a, .extent = {W, H, 1}, .kind = cudaMemcpyHostToDevice};
    struct cudaMemcpy3DParms from = {.srcArray = a, .dstPtr = {out, W * 4, W, H}, .extent = {W, H, 1}, .kind = cudaMemcpyDeviceToHost};
    OK(cudaMemcpy3D(&to));
    OK(cudaMemcpy3D(&from));
    EXPECT(memcmp(in, out, sizeof in), 0);
    OK(cudaMalloc3DArray(&cube, &desc, (struct cudaExtent){W, H, 4}, 0));
    counted_alloc(ARRAY, sizeof in * 4);
    OK(cudaFreeArray(cube));
    counted_free(ARRAY, sizeof in * 4);
    OK(cudaFreeArray(a));
    counted_free(ARRAY, sizeof in);
}

static void stream_ordered(cudaStream_t s) {
    uint32_t *p;
    OK(cudaMallocAsync((void **)&p, N * 4, s));
    counted_alloc(ASYNC, N * 4);
    OK(k_fill(p, N, 21, s));
    EXPECT(mismatches_of(p, N, 21, s), 0);
    OK(cudaFreeAsync(p, s));
    counted_free(ASYNC, N * 4);

    struct cudaMemPoolProps props = {.allocType = 1 /* pinned */, .locationType = 1 /* device */};
    cudaMemPool_t pool;
    OK(cudaMemPoolCreate(&pool, &props));
    OK(cudaMallocFromPoolAsync((void **)&p, N * 4, pool, s));
    counted_alloc(ASYNC, N * 4);
    OK(k_fill(p, N, 22, s));
    EXPECT(mismatches_of(p, N, 22, s), 0);
    /* A stream-ordered block may also be given to cudaFree. */
    OK(cudaFree(p));
    counted_free(ASYNC, N * 4);
    OK(cudaStreamSynchronize(s));
    OK(cudaMemPoolTrimTo(pool, 0));
    OK(cudaMemPoolDestroy(pool));
}

/* Limits for which the driver takes device memory, one of them twice, and one for which it takes none. */
extern cudaError_t cudaDeviceSetLimit(int, size_t);
static void limits(void) {
    enum { STACK, PRINTF, PENDING_LAUNCHES = 4 };
    OK(cudaDeviceSetLimit(PRINTF, 3 << 20));
    OK(cudaDeviceSetLimit(PRINTF, 3 << 20));
    OK(cudaDeviceSetLimit(PENDING_LAUNCHES, 4096));
    OK(cudaDeviceSetLimit(STACK, 2048));
    OK(cudaDeviceSetLimit(STACK, 1024));
}

int main(void) {
    cudaStream_t s;
    limits();
    kernels_load();
    OK(cudaStreamCreate(&s));
    device(s);
    pitched();
    managed(s);
    host_memory(s);
    arrays();
    stream_ordered(s);
    OK(cudaStreamDestroy(s));
    kernels_unload();
    return report("basic");
}
