/* Holds memory of several kinds and an exec, says so, and waits until stdin ends or
 * a byte comes; then frees all. Arguments: nothing. */
#include "count.h"
#include "cuda_min.h"
#include <unistd.h>

CUresult cuStreamCreate(void **, unsigned), cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, void *), cuGraphInstantiateWithFlags(void **, void *, uint64_t);
CUresult cuGraphDestroy(void *), cuGraphExecDestroy(void *), cuStreamDestroy_v2(void *);

int main(void) {
    enum { BLOCKS = 20 };
    CUcontext ctx;
    CUdeviceptr block[BLOCKS];
    void *pinned, *stream, *graph, *exec;
    char byte;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    for (size_t i = 0; i < BLOCKS; i++) {
        OK(cuMemAlloc_v2(&block[i], (i + 1) << 16));
        counted_alloc(DEVICE, (i + 1) << 16);
    }
    OK(cuMemHostAlloc(&pinned, 123456, 0));
    counted_alloc(HOST, 123456);
    OK(cuStreamCreate(&stream, 1));
    OK(cuStreamBeginCapture_v2(stream, 2));
    OK(cuMemsetD8Async(block[0], 1, 1000, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    did.captures++;
    did.graphs_created++;
    did.execs_created++;
    report("held");
    while (read(0, &byte, 1) < 0) {}
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy_v2(stream));
    did.execs_destroyed++;
    did.graphs_destroyed++;
    OK(cuMemFreeHost(pinned));
    counted_free(HOST, 123456);
    for (size_t i = 0; i < BLOCKS; i++) {
        OK(cuMemFree_v2(block[i]));
        counted_free(DEVICE, (i + 1) << 16);
    }
    return report("held");
}
