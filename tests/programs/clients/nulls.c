/* NULL where an out-parameter may be NULL, and where it may not. Prints every answer. */
#include "count.h"
#include "cuda_min.h"

CUresult cuMemGetInfo_v2(size_t *, size_t *), cuStreamCreate(void **, unsigned), cuStreamEndCapture(void *, void **);
CUresult cuGraphCreate(void **, unsigned), cuGraphInstantiateWithFlags(void **, void *, uint64_t);
CUresult cuGraphExecUpdate_v2(void *, void *, void *), cuGraphInstantiateWithParams(void **, void *, void *);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, void *), cuGraphExecDestroy(void *), cuGraphDestroy(void *);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, void *, void *), cuMemHostRegister_v2(void *, size_t, unsigned);
CUresult cuDeviceGetDefaultMemPool(void **, int), cuMemRetainAllocationHandle(uint64_t *, void *);
CUresult cuIpcGetMemHandle(void *, CUdeviceptr), cuStreamCreateWithPriority(void **, unsigned, int);

#define SAY(call) printf("%s = %d\n", #call, (int)(call))

int main(void) {
    CUcontext ctx;
    size_t n = 1;
    void *graph = NULL, *exec = NULL, *f = NULL, *pool = NULL;
    SAY(cuMemAlloc_v2(NULL, 4096)); /* before cuInit */
    SAY(cuInit(7));
    OK(cuInit(0));
    SAY(cuMemAlloc_v2(NULL, 4096)); /* without a context */
    SAY(cuDevicePrimaryCtxRetain(NULL, 0));
    SAY(cuDevicePrimaryCtxRetain(&ctx, 99));
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    SAY(cuMemAlloc_v2(NULL, 4096));
    SAY(cuMemAlloc_v2(NULL, 0));
    SAY(cuMemAllocPitch_v2(NULL, &n, 10, 10, 4));
    SAY(cuMemAllocManaged(NULL, 4096, 1));
    SAY(cuMemHostAlloc(NULL, 4096, 0));
    SAY(cuMemAllocHost_v2(NULL, 4096));
    SAY(cuMemHostRegister_v2(NULL, 4096, 0));
    SAY(cuMemAllocAsync(NULL, 4096, NULL));
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    SAY(cuMemAllocFromPoolAsync(NULL, 4096, pool, NULL));
    SAY(cuMemGetInfo_v2(NULL, NULL));
    SAY(cuMemGetInfo_v2(NULL, &n));
    SAY(cuMemCreate(NULL, 1 << 21, NULL, 0));
    SAY(cuMemAddressReserve(NULL, 1 << 21, 0, 0, 0));
    SAY(cuMemRetainAllocationHandle(NULL, NULL));
    SAY(cuArrayCreate_v2(NULL, NULL));
    SAY(cuIpcGetMemHandle(NULL, 0));
    SAY(cuStreamCreate(NULL, 0));
    SAY(cuStreamCreateWithPriority(NULL, 0, 0));
    SAY(cuStreamEndCapture(NULL, NULL));
    SAY(cuGraphCreate(NULL, 0));
    OK(cuGraphCreate(&graph, 0));
    SAY(cuGraphInstantiateWithFlags(NULL, graph, 0));
    SAY(cuGraphInstantiateWithFlags(&exec, NULL, 0));
    SAY(cuGraphInstantiateWithParams(NULL, graph, NULL));
    SAY(cuGraphInstantiateWithParams(&exec, graph, NULL));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    SAY(cuGraphExecUpdate_v2(exec, graph, NULL));
    SAY(cuGraphExecUpdate_v2(NULL, graph, NULL));
    SAY(cuGraphExecDestroy(NULL));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    SAY(cuCtxCreate_v2(NULL, 0, 0));
    SAY(cuGetProcAddress_v2("cuMemAlloc", NULL, 12000, 0, NULL));
    SAY(cuGetProcAddress_v2(NULL, &f, 12000, 0, NULL));
    SAY(cuGetProcAddress_v2("cuMemAlloc", &f, 12000, 0, NULL));
    SAY(f != NULL);
    SAY(cuMemFree_v2(0));
    SAY(cuMemFreeHost(NULL));
    return 0;
}
