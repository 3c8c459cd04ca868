/* Descriptions that lead nowhere, of calls that fail for another reason: the driver does not read them. Prints every
 * answer. */
#include "count.h"
#include "cuda_min.h"
#include <string.h>

CUresult cuArray3DCreate_v2(void **, const void *);
CUresult cuLaunchKernelEx(void *, void *, void **, void **);
CUresult cuGraphAddNode(void **, void *, void *, size_t, void *), cuGraphNodeSetParams(void *, void *);
CUresult cuGraphAddNode_v2(void **, void *, void *, void *, size_t, void *), cuGraphExecNodeSetParams(void *, void *, void *);
CUresult cuGraphInstantiateWithParams(void **, void *, void *), cuGraphExecKernelNodeSetParams_v2(void *, void *, void *);
CUresult cuGraphExecMemsetNodeSetParams(void *, void *, void *, void *), cuGraphExecHostNodeSetParams(void *, void *, void *);
CUresult cuGraphExecMemcpyNodeSetParams(void *, void *, void *, void *), cuMemcpy3D_v2(void *);
CUresult cuStreamBeginCaptureToGraph(void *, void *, void *, void *, size_t, int);
CUresult cuPointerGetAttributes(unsigned, int *, void **, CUdeviceptr), cuStreamSetAttribute(void *, int, void *);
CUresult cuGraphKernelNodeSetAttribute(void *, int, void *);

#define SAY(call) printf("%s = %d\n", #call, (int)(call))

/* No program has anything in its first page. */
#define NOWHERE ((void *)64)

/* All of them fail: before cuInit because of that, behind it because of the other arguments. */
static void calls(void) {
    SAY(cuArrayCreate_v2(NULL, NOWHERE));
    SAY(cuArray3DCreate_v2(NULL, NOWHERE));
    SAY(cuMemCreate(NULL, 1 << 21, NOWHERE, 0));
    SAY(cuGraphInstantiateWithParams(NULL, NULL, NOWHERE));
    SAY(cuGraphExecNodeSetParams(NULL, NULL, NOWHERE));
    SAY(cuGraphExecKernelNodeSetParams_v2(NULL, NULL, NOWHERE));
    SAY(cuGraphExecHostNodeSetParams(NULL, NULL, NOWHERE));
    SAY(cuGraphExecMemsetNodeSetParams(NULL, NULL, NOWHERE, NULL));
    SAY(cuGraphExecMemcpyNodeSetParams(NULL, NULL, NOWHERE, NULL));
}

/* Before cuInit alone: later the driver reads them first. */
static void early(void) {
    SAY(cuLaunchKernelEx(NOWHERE, NULL, NULL, NULL));
    SAY(cuGraphAddNode(NULL, NULL, NULL, 0, NOWHERE));
    SAY(cuGraphAddNode_v2(NULL, NULL, NULL, NULL, 0, NOWHERE));
    SAY(cuGraphNodeSetParams(NULL, NOWHERE));
    SAY(cuGraphKernelNodeSetAttribute(NULL, 1, NOWHERE));
    SAY(cuMemcpy2D_v2(NOWHERE));
    SAY(cuMemcpy3D_v2(NOWHERE));
    SAY(cuStreamBeginCaptureToGraph(NULL, NULL, NOWHERE, NOWHERE, 3, 0));
    SAY(cuPointerGetAttributes(3, NOWHERE, NOWHERE, 0));
    SAY(cuStreamSetAttribute(NULL, 1, NOWHERE));
}

int main(void) {
    CUcontext ctx;
    CUdeviceptr p;
    early();
    calls();
    OK(cuInit(0));
    calls();
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    /* So that something is recorded. */
    OK(cuMemAlloc_v2(&p, 4096));
    calls();
    OK(cuMemFree_v2(p));
    return 0;
}
