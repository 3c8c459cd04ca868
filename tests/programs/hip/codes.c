/* What each call answers, whether there is a device or not; and, with the name of
 * a file as argument, whether that is where hipMalloc comes from. */
#define _GNU_SOURCE
#include "hip_min.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

hipError_t hipInit(unsigned);
hipError_t hipGetDevice(int *);
hipError_t hipPeekAtLastError(void);
hipError_t hipDeviceReset(void);
hipError_t hipMallocHost(void **, size_t);
hipError_t hipMemAllocPitch(void **, size_t *, size_t, size_t, unsigned);
const char *hipGetErrorName(int);
hipError_t hipLaunchCooperativeKernel(const void *, dim3, dim3, void **, unsigned, hipStream_t);
hipError_t hipExtLaunchKernel(const void *, dim3, dim3, void **, size_t, hipStream_t, hipEvent_t, hipEvent_t, int);

static void *const UNTOUCHED = (void *)0x5ca1ab1e;
static void said(const char *call, int rc, const void *p) { printf("%s: %d %s %p\n", call, rc, hipGetErrorName(rc), p); }
#define SAY(call, out) (p = UNTOUCHED, rc = call, said(#call, rc, out))

int main(int argc, char **argv) {
    int n = 77, rc;
    void *p, *q = UNTOUCHED;
    size_t a = 1, b = 2;
    const dim3 one = {1, 1, 1};
    SAY(hipGetDeviceCount(&n), (void *)(long)n);
    SAY(hipInit(0), NULL);
    SAY(hipGetDevice(&n), NULL);
    SAY(hipMalloc(&p, 64), p);
    SAY(hipMalloc(NULL, 64), NULL);
    SAY(hipMallocPitch(&p, &a, 64, 2), p);
    SAY(hipMemAllocPitch(&p, &a, 64, 2, 4), p);
    SAY(hipMallocManaged(&p, 64, 1), p);
    SAY(hipMallocAsync(&p, 64, NULL), p);
    SAY(hipHostMalloc(&p, 64, 0), p);
    SAY(hipMallocHost(&p, 64), p);
    SAY(hipHostRegister(&n, 64, 0), NULL);
    SAY(hipHostUnregister(&n), NULL);
    SAY(hipFree(q), NULL);
    SAY(hipFree(NULL), NULL);
    SAY(hipHostFree(q), NULL);
    SAY(hipMemGetInfo(&a, &b), NULL);
    SAY(hipStreamCreateWithFlags((hipStream_t *)&p, 1), p);
    SAY(hipStreamBeginCapture(NULL, 0), NULL);
    SAY(hipStreamEndCapture(NULL, (hipGraph_t *)&p), p);
    SAY(hipGraphCreate((hipGraph_t *)&p, 0), p);
    SAY(hipGraphInstantiate((hipGraphExec_t *)&p, NULL, NULL, NULL, 0), p);
    SAY(hipGraphInstantiateWithFlags((hipGraphExec_t *)&p, NULL, 0), p);
    SAY(hipGraphLaunch(NULL, NULL), NULL);
    SAY(hipGraphExecUpdate(NULL, NULL, (hipGraphNode_t *)&p, &n), p);
    SAY(hipGraphExecDestroy(NULL), NULL);
    SAY(hipGraphDestroy(NULL), NULL);
    SAY(hipLaunchCooperativeKernel(NULL, one, one, NULL, 0, NULL), NULL);
    SAY(hipExtLaunchKernel(NULL, one, one, NULL, 0, NULL, NULL, NULL, 0), NULL);
    SAY(hipPeekAtLastError(), NULL);
    SAY(hipGetLastError(), NULL);
    SAY(hipDeviceReset(), NULL);
    Dl_info at = {0};
    if (argc > 1 && !(dladdr((void *)hipMalloc, &at) && strstr(at.dli_fname, argv[1]))) {
        fprintf(stderr, "hipMalloc is in %s\n", at.dli_fname);
        return 1;
    }
    return 0;
}
