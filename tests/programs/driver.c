/* A program linked to libcuda: allocations of every driver kind, virtual memory
 * management, arrays, several contexts, and cuGetProcAddress at several versions. */
#include "drv.h"
#include <string.h>

enum { N = 1 << 16 };
static CUdevice device;

static void plain(void) {
    enum { SHARED_MEMORY_CARVEOUT = 9 };
    CUdeviceptr p = dev_alloc(N * 4), base = 0;
    size_t size = 0, pitch = 0;
    OK(cuFuncSetAttribute(drv.fill, SHARED_MEMORY_CARVEOUT, 50));
    k_fill(p, N, 5);
    EXPECT(mismatches_of(p, N, 5), 0);
    OK(cuMemGetAddressRange_v2(&base, &size, p + 100));
    EXPECT(base == p && size == N * 4, 1);
    dev_free(p, N * 4);

    OK(cuMemAllocPitch_v2(&p, &pitch, 1000, 10, 4));
    counted_alloc(DEVICE, pitch * 10);
    EXPECT(pitch >= 1000, 1);
    dev_free(p, pitch * 10);

    OK(cuMemAllocManaged(&p, N * 4, 1));
    counted_alloc(MANAGED, N * 4);
    k_fill(p, N, 6);
    OK(cuCtxSynchronize());
    EXPECT(((uint32_t *)(uintptr_t)p)[N - 1], 6);
    OK(cuMemFree_v2(p));
    counted_free(MANAGED, N * 4);

    void *h1, *h2;
    OK(cuMemAllocHost_v2(&h1, 4096));
    counted_alloc(HOST, 4096);
    OK(cuMemHostAlloc(&h2, 8192, 1));
    counted_alloc(HOST, 8192);
    memset(h1, 1, 4096);
    OK(cuMemFreeHost(h1));
    counted_free(HOST, 4096);
    OK(cuMemFreeHost(h2));
    counted_free(HOST, 8192);
}

/* Two physical pieces mapped side by side at one reserved range. */
static void virtual_memory(void) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle h[2];
    CUdeviceptr va;
    size_t grain;
    OK(cuMemGetAllocationGranularity(&grain, &prop, 0));
    EXPECT(grain > 0 && (grain & (grain - 1)) == 0, 1);
    OK(cuMemAddressReserve(&va, 4 * grain, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        OK(cuMemCreate(&h[i], grain, &prop, 0));
        counted_alloc(VMM, grain);
        OK(cuMemMap(va + i * grain, grain, 0, h[i], 0));
    }
    OK(cuMemSetAccess(va, 2 * grain, &access, 1));
    k_fill(va, 2 * grain / 4, 8);
    EXPECT(mismatches_of(va, 2 * grain / 4, 8), 0);
    /* A released handle lives on until its last mapping goes. */
    OK(cuMemRelease(h[0]));
    EXPECT(mismatches_of(va, grain / 4, 8), 0);
    OK(cuMemUnmap(va, grain));
    counted_free(VMM, grain);
    OK(cuMemUnmap(va + grain, grain));
    OK(cuMemRelease(h[1]));
    counted_free(VMM, grain);
    OK(cuMemAddressFree(va, 4 * grain));
}

static void arrays(void) {
    enum { W = 32, H = 8 };
    uint32_t in[H][W], out[H][W];
    CUarray a;
    CUDA_ARRAY_DESCRIPTOR d = {W, H, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    for (int i = 0; i < W * H; i++) in[i / W][i % W] = (uint32_t)i;
    OK(cuArrayCreate_v2(&a, &d));
    counted_alloc(ARRAY, sizeof in);
    CUDA_MEMCPY2D to = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = in, .srcPitch = W * 4,
                        .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = a, .WidthInBytes = W * 4, .Height = H};
    CUDA_MEMCPY2D from = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = a, .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = out, .dstPitch = W * 4, .WidthInBytes = W * 4, .Height = H};
    OK(cuMemcpy2D_v2(&to));
    OK(cuMemcpy2D_v2(&from));
    EXPECT(memcmp(in, out, sizeof in), 0);
    OK(cuArrayDestroy(a));
    counted_free(ARRAY, sizeof in);

    /* Levels of 32 x 8, 16 x 4 and 8 x 2. */
    enum { LEVELS = 3, ALL_LEVELS = (W * H + W * H / 4 + W * H / 16) * 4 };
    CUmipmappedArray m;
    CUDA_ARRAY3D_DESCRIPTOR top = {W, H, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0};
    OK(cuMipmappedArrayCreate(&m, &top, LEVELS));
    counted_alloc(ARRAY, ALL_LEVELS);
    OK(cuMipmappedArrayGetLevel(&a, m, 1));
    memset(out, 0, sizeof out);
    to.dstArray = from.srcArray = a;
    to.WidthInBytes = from.WidthInBytes = W / 2 * 4;
    to.Height = from.Height = H / 2;
    OK(cuMemcpy2D_v2(&to));
    OK(cuMemcpy2D_v2(&from));
    EXPECT(out[H / 2 - 1][W / 2 - 1], in[H / 2 - 1][W / 2 - 1]);
    OK(cuMipmappedArrayDestroy(m));
    counted_free(ARRAY, ALL_LEVELS);
}

/* A context of its own; what is still allocated in it goes with it. */
static void contexts(CUcontext primary) {
    CUcontext own, now = NULL;
    CUdeviceptr p;
    OK(cuCtxCreate_v2(&own, 0, device));
    OK(cuCtxGetCurrent(&now));
    EXPECT(now == own, 1);
    p = dev_alloc(3 << 20);
    OK(cuMemsetD32_v2(p, 9, 16));
    OK(cuCtxPushCurrent_v2(primary));
    dev_free(p, 3 << 20); /* from another context of the same device */
    OK(cuCtxPopCurrent_v2(&now));
    EXPECT(now == primary, 1);
    (void)dev_alloc(1 << 20);
    OK(cuCtxDestroy_v2(own));
    counted_free(DEVICE, 1 << 20);
    OK(cuCtxSetCurrent(primary));
}

/* The code differs between drivers when a status is asked for; the status, and
 * that no function comes back, do not. */
static void not_found(const char *name, int version, int want_status) {
    void *f = NULL;
    int status = -1, rc = cuGetProcAddress_v2(name, &f, version, CU_GET_PROC_ADDRESS_DEFAULT, &status);
    EXPECT(rc == 0 || rc == CUDA_ERROR_NOT_FOUND, 1);
    EXPECT(f == NULL, 1);
    EXPECT(status, want_status);
}

/* The same name means different functions at different versions. */
static void proc_addresses(void) {
    CUresult (*alloc)(CUdeviceptr *, size_t);
    CUresult (*release)(CUdeviceptr);
    void *old, *current, *legacy, *per_thread;
    int status = -1;
    OK(cuGetProcAddress_v2("cuMemAlloc", (void **)&alloc, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    EXPECT(status, 0);
    OK(cuGetProcAddress_v2("cuMemFree", (void **)&release, 12000, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
    CUdeviceptr p;
    OK(alloc(&p, 12345));
    counted_alloc(DEVICE, 12345);
    OK(release(p));
    counted_free(DEVICE, 12345);
    OK(cuGetProcAddress_v2("cuGraphInstantiate", &old, 10000, 0, &status));
    OK(cuGetProcAddress_v2("cuGraphInstantiate", &current, 12000, 0, &status));
    EXPECT(old != current, 1);
    OK(cuGetProcAddress_v2("cuGraphLaunch", &legacy, 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status));
    OK(cuGetProcAddress_v2("cuGraphLaunch", &per_thread, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
    EXPECT(legacy != per_thread, 1);
    /* The per-thread twins reach the same memory. */
    CUresult (*alloc_async)(CUdeviceptr *, size_t, cudaStream_t), (*free_async)(CUdeviceptr, cudaStream_t);
    OK(cuGetProcAddress_v2("cuMemAllocAsync", (void **)&alloc_async, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
    OK(cuGetProcAddress_v2("cuMemFreeAsync", (void **)&free_async, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
    OK(alloc_async(&p, 54321, NULL));
    counted_alloc(ASYNC, 54321);
    OK(free_async(p, NULL));
    counted_free(ASYNC, 54321);
    OK(cuCtxSynchronize());
    not_found("cuNoSuchFunction", 12000, 1 /* no such symbol */);
    not_found("cuGraphInstantiate", 9000, 2 /* known, but not so early */);
}

int main(void) {
    CUcontext primary;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&primary, device));
    OK(cuCtxSetCurrent(primary));
    kernels_load();
    plain();
    virtual_memory();
    arrays();
    contexts(primary);
    proc_addresses();
    OK(cuModuleUnload(drv.module));
    OK(cuDevicePrimaryCtxRelease_v2(device));
    return report("driver");
}
