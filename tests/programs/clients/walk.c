/* One call of each kind after another, each allowed to fail: whatever SIM_FAULT makes
 * of it, the answers, the untouched out-parameters and the counts are printed. What
 * depends on something that failed is left out. */
#include "count.h"
#include "cuda_min.h"

CUresult cuStreamCreate(void **, unsigned), cuStreamDestroy_v2(void *), cuStreamBeginCapture_v2(void *, int);
CUresult cuStreamEndCapture(void *, void **), cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, void *);
CUresult cuGraphCreate(void **, unsigned), cuGraphClone(void **, void *), cuGraphDestroy(void *);
CUresult cuGraphInstantiateWithFlags(void **, void *, uint64_t), cuGraphExecUpdate_v2(void *, void *, void *);
CUresult cuGraphLaunch(void *, void *), cuGraphExecDestroy(void *), cuGraphAddEmptyNode(void **, void *, void *, size_t);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, void *), cuMemFreeAsync(CUdeviceptr, void *);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, void *, void *), cuDeviceGetDefaultMemPool(void **, int);
CUresult cuMemHostRegister_v2(void *, size_t, unsigned), cuMemHostUnregister(void *), cuStreamSynchronize(void *);
CUresult cuMemGetInfo_v2(size_t *, size_t *);

enum { BYTES = 70000 };
#define MARK 0x5ca1ab1e5ca1ab1eull
static void *stream;

/* Makes the call; says how it ended. */
#define TRY(call) tried(#call, (int)(call))
static int tried(const char *what, int rc) {
    printf("%s = %d\n", what, rc);
    return rc == 0;
}
static void untouched(const char *what, uint64_t value) {
    printf("%s left alone: %d\n", what, value == MARK);
}

static void device(void) {
    CUdeviceptr p = MARK;
    size_t pitch = MARK;
    if (TRY(cuMemAlloc_v2(&p, BYTES))) {
        counted_alloc(DEVICE, BYTES);
        for (int i = 0; i < 2; i++)
            if (TRY(cuMemFree_v2(p))) {
                counted_free(DEVICE, BYTES);
                break;
            }
    } else untouched("cuMemAlloc", p);
    p = MARK;
    if (TRY(cuMemAllocPitch_v2(&p, &pitch, 1000, 10, 4))) {
        counted_alloc(DEVICE, pitch * 10);
        if (TRY(cuMemFree_v2(p))) counted_free(DEVICE, pitch * 10);
    } else {
        untouched("cuMemAllocPitch", p);
        untouched("its pitch", pitch);
    }
    p = MARK;
    if (TRY(cuMemAllocManaged(&p, BYTES, 1))) {
        counted_alloc(MANAGED, BYTES);
        if (TRY(cuMemFree_v2(p))) counted_free(MANAGED, BYTES);
    } else untouched("cuMemAllocManaged", p);
}

static void host(void) {
    void *p = (void *)MARK;
    if (TRY(cuMemHostAlloc(&p, BYTES, 0))) {
        counted_alloc(HOST, BYTES);
        if (TRY(cuMemFreeHost(p))) counted_free(HOST, BYTES);
    } else untouched("cuMemHostAlloc", (uint64_t)p);
    p = (void *)MARK;
    if (TRY(cuMemAllocHost_v2(&p, BYTES))) {
        counted_alloc(HOST, BYTES);
        if (TRY(cuMemFreeHost(p))) counted_free(HOST, BYTES);
    } else untouched("cuMemAllocHost", (uint64_t)p);
    static char own[1 << 16] __attribute__((aligned(4096)));
    if (TRY(cuMemHostRegister_v2(own, sizeof own, 0))) {
        counted_alloc(REGISTERED, sizeof own);
        if (TRY(cuMemHostUnregister(own))) counted_free(REGISTERED, sizeof own);
    }
}

static void ordered(void) {
    CUdeviceptr p = MARK;
    void *pool = NULL;
    if (TRY(cuMemAllocAsync(&p, BYTES, stream))) {
        counted_alloc(ASYNC, BYTES);
        if (TRY(cuMemFreeAsync(p, stream))) counted_free(ASYNC, BYTES);
    } else untouched("cuMemAllocAsync", p);
    p = MARK;
    if (TRY(cuDeviceGetDefaultMemPool(&pool, 0)) && TRY(cuMemAllocFromPoolAsync(&p, BYTES, pool, stream))) {
        counted_alloc(ASYNC, BYTES);
        if (TRY(cuMemFree_v2(p))) counted_free(ASYNC, BYTES); /* freeing it in order may be refused, this works too */
    } else untouched("cuMemAllocFromPoolAsync", p);
}

static void virtual(void) {
    enum { GRAIN = 2 << 20 };
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle h = MARK;
    CUdeviceptr va = MARK;
    bool reserved = TRY(cuMemAddressReserve(&va, GRAIN, 0, 0, 0)), made = TRY(cuMemCreate(&h, GRAIN, &prop, 0));
    if (!reserved) untouched("cuMemAddressReserve", va);
    if (!made) untouched("cuMemCreate", h);
    if (made) counted_alloc(VMM, GRAIN);
    if (made && reserved && TRY(cuMemMap(va, GRAIN, 0, h, 0)) && !TRY(cuMemUnmap(va, GRAIN))) TRY(cuMemUnmap(va, GRAIN));
    if (made && (TRY(cuMemRelease(h)) || TRY(cuMemRelease(h)))) counted_free(VMM, GRAIN);
    if (reserved && !TRY(cuMemAddressFree(va, GRAIN))) TRY(cuMemAddressFree(va, GRAIN));
}

static void array(void) {
    CUarray a = (CUarray)MARK;
    CUDA_ARRAY_DESCRIPTOR d = {32, 8, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    if (TRY(cuArrayCreate_v2(&a, &d))) {
        counted_alloc(ARRAY, 32 * 8 * 4);
        if (TRY(cuArrayDestroy(a)) || TRY(cuArrayDestroy(a))) counted_free(ARRAY, 32 * 8 * 4);
    } else untouched("cuArrayCreate", (uint64_t)a);
}

static void destroyed(void *graph) {
    if (TRY(cuGraphDestroy(graph)) || TRY(cuGraphDestroy(graph))) did.graphs_destroyed++;
}

static void graphs(void) {
    void *own = (void *)MARK, *clone = (void *)MARK, *exec = (void *)MARK, *captured = NULL, *node;
    if (TRY(cuGraphCreate(&own, 0))) {
        did.graphs_created++;
        TRY(cuGraphAddEmptyNode(&node, own, NULL, 0));
        if (TRY(cuGraphClone(&clone, own))) {
            did.graphs_created++;
            destroyed(clone);
        } else untouched("cuGraphClone", (uint64_t)clone);
        if (TRY(cuGraphInstantiateWithFlags(&exec, own, 0))) {
            did.execs_created++;
            struct { int result; void *node, *from; } info = {0};
            if (TRY(cuGraphExecUpdate_v2(exec, own, &info))) did.exec_updates++;
            else did.exec_updates_failed++;
            if (TRY(cuGraphLaunch(exec, stream))) did.graph_launches++;
            if (TRY(cuGraphExecDestroy(exec)) || TRY(cuGraphExecDestroy(exec))) did.execs_destroyed++;
        } else untouched("cuGraphInstantiate", (uint64_t)exec);
        destroyed(own);
    } else untouched("cuGraphCreate", (uint64_t)own);
    if (stream && TRY(cuStreamBeginCapture_v2(stream, 2))) {
        did.captures++; /* whatever comes of it: a refused end ends it, too */
        TRY(cuStreamEndCapture(stream, &captured));
        if (captured) {
            did.graphs_created++;
            destroyed(captured);
        }
    }
}

int main(void) {
    CUcontext ctx = (CUcontext)MARK, own = (CUcontext)MARK, popped;
    size_t free, total;
    if (!TRY(cuInit(0)) && !TRY(cuInit(0))) return 1;
    if (!TRY(cuDevicePrimaryCtxRetain(&ctx, 0))) {
        untouched("cuDevicePrimaryCtxRetain", (uint64_t)ctx);
        OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    }
    if (TRY(cuCtxCreate_v2(&own, 0, 0))) {
        CUdeviceptr lost;
        if (TRY(cuMemAlloc_v2(&lost, 5000))) { /* ends with its context */
            counted_alloc(DEVICE, 5000);
            if (TRY(cuCtxDestroy_v2(own)) || TRY(cuCtxDestroy_v2(own))) counted_free(DEVICE, 5000);
        } else TRY(cuCtxDestroy_v2(own));
    } else untouched("cuCtxCreate", (uint64_t)own);
    while (cuCtxPopCurrent_v2(&popped) == 0) {}
    OK(cuCtxSetCurrent(ctx));
    if (!TRY(cuStreamCreate(&stream, 1))) stream = NULL;
    device();
    host();
    ordered();
    virtual();
    array();
    graphs();
    TRY(cuMemGetInfo_v2(&free, &total));
    TRY(cuStreamSynchronize(stream));
    if (stream && !TRY(cuStreamDestroy_v2(stream))) TRY(cuStreamDestroy_v2(stream));
    return report("walk");
}
