/* Out-parameters that lead nowhere, of calls that fail: the driver does not touch them. Prints every answer. */
#include "count.h"
#include "cuda_min.h"
#include <string.h>

CUresult cuStreamCreate(void **, unsigned), cuStreamEndCapture(void *, void **);
CUresult cuStreamGetCaptureInfo_v2(void *, int *, uint64_t *, void **, void *, size_t *);
CUresult cuGraphCreate(void **, unsigned), cuGraphClone(void **, void *);
CUresult cuGraphInstantiateWithFlags(void **, void *, uint64_t), cuMemRetainAllocationHandle(uint64_t *, void *);
CUresult cuGreenCtxCreate(void **, void *, int, unsigned), cuCtxFromGreenCtx(CUcontext *, void *);
CUresult cuGreenCtxStreamCreate(void **, void *, unsigned, int), cuCtxAttach(CUcontext *, unsigned);
typedef struct { char reserved[64]; } IpcHandle;
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, IpcHandle, unsigned);

#define SAY(call) printf("%s = %d\n", #call, (int)(call))

/* No program has anything in its first page. */
#define NOWHERE ((void *)64)

/* All of them fail: before cuInit because of that, behind it because of the other arguments. */
static void calls(void) {
    IpcHandle handle;
    int capturing;
    uint64_t id;
    memset(&handle, 0, sizeof handle);
    SAY(cuCtxCreate_v2(NOWHERE, 0, 99));
    SAY(cuDevicePrimaryCtxRetain(NOWHERE, 99));
    SAY(cuCtxAttach(NOWHERE, 7));
    SAY(cuStreamCreate(NOWHERE, 0xffff));
    SAY(cuStreamGetCaptureInfo_v2(NOWHERE, &capturing, &id, NOWHERE, NULL, NULL));
    SAY(cuGraphCreate(NOWHERE, 7));
    SAY(cuGraphClone(NOWHERE, NULL));
    SAY(cuGraphInstantiateWithFlags(NOWHERE, NULL, 0));
    SAY(cuMemRetainAllocationHandle(NOWHERE, NULL));
    SAY(cuIpcOpenMemHandle_v2(NOWHERE, handle, 7));
    SAY(cuGreenCtxCreate(NOWHERE, NULL, 99, 1));
    SAY(cuCtxFromGreenCtx(NOWHERE, NULL));
    SAY(cuGreenCtxStreamCreate(NOWHERE, NULL, 1, 0));
}

int main(void) {
    CUcontext ctx;
    CUdeviceptr p;
    SAY(cuStreamEndCapture(NULL, NOWHERE)); /* once initialised, it writes NULL before it fails */
    calls();
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    /* So that something is recorded. */
    OK(cuMemAlloc_v2(&p, 4096));
    calls();
    OK(cuMemFree_v2(p));
    return 0;
}
