/* A driver that does nothing, as fast as possible: what is left when the same calls are timed with and
 * without the shim is the shim. It says yes to everything and hands out addresses that are never used.
 *
 *     cc -O2 -fPIC -shared -Wl,-soname,libcuda.so.1 nullcuda.c -o null/libcuda.so.1
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
static int context, module_, function_, stream_;
static CUdeviceptr next_address = 0x700000000000ull;
static __thread CUdeviceptr last_freed;

#define API __attribute__((visibility("default")))
API int null_driver = 1; /* its users can tell it from a real one */
#define YES(name) API CUresult name(void) { return 0; }
#define GIVES(name, what) \
    API CUresult name(void **out) { *out = &what; return 0; }

YES(cuInit) YES(cuCtxSetCurrent) YES(cuCtxPushCurrent_v2) YES(cuCtxSynchronize) YES(cuStreamSynchronize)
YES(cuStreamQuery) YES(cuStreamDestroy_v2) YES(cuModuleUnload) YES(cuDevicePrimaryCtxRelease_v2)
YES(cuThreadExchangeStreamCaptureMode) YES(cuMemsetD32_v2) YES(cuMemcpyDtoH_v2)
GIVES(cuCtxGetCurrent, context) GIVES(cuCtxPopCurrent_v2, context) GIVES(cuDevicePrimaryCtxRetain, context)
GIVES(cuModuleLoadData, module_) GIVES(cuModuleGetFunction, function_) GIVES(cuStreamCreate, stream_)
#include "nullgraphs.h"

API CUresult cuDriverGetVersion(int *v) { *v = 13000; return 0; }
API CUresult cuDeviceGetCount(int *n) { *n = 1; return 0; }
API CUresult cuDeviceGet(int *d, int ordinal) { *d = ordinal; return 0; }
API CUresult cuCtxGetDevice(int *d) { *d = 0; return 0; }
API CUresult cuCtxGetDevice_v2(int *d, void *c) { (void)c; *d = 0; return 0; }
API CUresult cuCtxGetId(void *c, unsigned long long *id) { (void)c; *id = 1; return 0; }
API CUresult cuDeviceGetName(char *name, int len, int d) { (void)d; snprintf(name, (size_t)len, "null"); return 0; }
API CUresult cuDeviceTotalMem_v2(size_t *n, int d) { (void)d; *n = (size_t)1 << 37; return 0; }
API CUresult cuDeviceGetAttribute(int *v, int a, int d) { (void)a; (void)d; *v = 1; return 0; }
API CUresult cuDeviceGetUuid_v2(void *u, int d) { (void)d; for (int i = 0; i < 16; i++) ((char *)u)[i] = (char)i; return 0; }
API CUresult cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) { (void)d; *flags = 0; *active = 1; return 0; }
API CUresult cuMemGetInfo_v2(size_t *f, size_t *t) { *f = *t = (size_t)1 << 37; return 0; }
API CUresult cuPointerGetAttributes(unsigned n, int *attributes, void **data, CUdeviceptr p) {
    (void)n, (void)attributes, (void)data, (void)p;
    return 1;
}
API CUresult cuPointerGetAttribute(unsigned *data, int attribute, CUdeviceptr p) {
    (void)p;
    *data = 2;
    return attribute == 2 ? 0 : 1; /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
}
API CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes) {
    if (last_freed) {
        *p = last_freed;
        last_freed = 0;
        return 0;
    }
    *p = __atomic_fetch_add(&next_address, (bytes + 511) & ~(size_t)511, __ATOMIC_RELAXED);
    return 0;
}
API CUresult cuMemFree_v2(CUdeviceptr p) { last_freed = p; return 0; }

/* Names as cuGetProcAddress is asked for them. Our own functions are named through `own`, because a
 * plain reference to an exported name would be answered by whoever is preloaded. */
#define NAMES(X)                                                                                        \
    X(cuInit, cuInit) X(cuCtxSetCurrent, cuCtxSetCurrent) X(cuCtxPushCurrent, cuCtxPushCurrent_v2)      \
    X(cuCtxSynchronize, cuCtxSynchronize) X(cuStreamSynchronize, cuStreamSynchronize)                   \
    X(cuStreamQuery, cuStreamQuery) X(cuStreamDestroy, cuStreamDestroy_v2)                              \
    X(cuLaunchKernel, cuLaunchKernel) X(cuMemsetD8Async, cuMemsetD8Async)                               \
    X(cuModuleUnload, cuModuleUnload) X(cuGraphLaunch, cuGraphLaunch)                                   \
    X(cuGraphDestroy, cuGraphDestroy) X(cuGraphExecDestroy, cuGraphExecDestroy)                         \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)                                          \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2)                                                    \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode)                             \
    X(cuCtxGetCurrent, cuCtxGetCurrent) X(cuCtxPopCurrent, cuCtxPopCurrent_v2)                          \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain) X(cuModuleLoadData, cuModuleLoadData)         \
    X(cuModuleGetFunction, cuModuleGetFunction) X(cuStreamCreate, cuStreamCreate)                       \
    X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags)                                         \
    X(cuDriverGetVersion, cuDriverGetVersion) X(cuDeviceGetCount, cuDeviceGetCount)                     \
    X(cuDeviceGet, cuDeviceGet) X(cuCtxGetDevice, cuCtxGetDevice) X(cuCtxGetId, cuCtxGetId)             \
    X(cuDeviceGetName, cuDeviceGetName) X(cuDeviceTotalMem, cuDeviceTotalMem_v2)                        \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute) X(cuDeviceGetUuid, cuDeviceGetUuid_v2)                \
    X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState) X(cuMemGetInfo, cuMemGetInfo_v2)          \
    X(cuStreamIsCapturing, cuStreamIsCapturing) X(cuStreamEndCapture, cuStreamEndCapture)               \
    X(cuGraphGetNodes, cuGraphGetNodes) X(cuPointerGetAttribute, cuPointerGetAttribute)                 \
    X(cuMemAlloc, cuMemAlloc_v2) X(cuMemFree, cuMemFree_v2)                                             \
    X(cuGraphCreate, cuGraphCreate) X(cuGraphClone, cuGraphClone)                                       \
    X(cuGraphKernelNodeGetParams, cuGraphKernelNodeGetParams_v2)                                        \
    X(cuGraphAddKernelNode, cuGraphAddKernelNode_v2) X(cuGraphNodeGetType, cuGraphNodeGetType)          \
    X(cuGraphKernelNodeGetAttribute, cuGraphKernelNodeGetAttribute)                                     \
    X(cuGraphKernelNodeSetAttribute, cuGraphKernelNodeSetAttribute)                                     \
    X(cuFuncGetParamInfo, cuFuncGetParamInfo) X(cuKernelGetParamInfo, cuKernelGetParamInfo)             \
    X(cuFuncGetAttribute, cuFuncGetAttribute) X(cuFuncGetModule, cuFuncGetModule)                       \
    X(cuKernelGetFunction, cuKernelGetFunction) X(cuKernelGetLibrary, cuKernelGetLibrary)               \
    X(cuLibraryGetModule, cuLibraryGetModule) X(cuGraphGetEdges, cuGraphGetEdges_v2)                    \
    X(cuGraphNodeGetDependencies, cuGraphNodeGetDependencies_v2)                                        \
    X(cuGraphExecUpdate, cuGraphExecUpdate_v2) X(cuGraphExecGetFlags, cuGraphExecGetFlags)              \
    X(cuGraphUpload, cuGraphUpload) X(cuGraphNodeSetEnabled, cuGraphNodeSetEnabled)                     \
    X(cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams_v2)                                \
    X(cuEventCreate, cuEventCreate) X(cuEventRecord, cuEventRecord) X(cuEventQuery, cuEventQuery)       \
    X(cuEventDestroy, cuEventDestroy_v2) X(cuStreamWaitEvent, cuStreamWaitEvent)
/* Y: a second name of what an X has. */
#define Y(name, symbol)
#define X(name, symbol) extern __typeof__(symbol) own_##symbol __attribute__((alias(#symbol), visibility("hidden")));
NAMES(X)
#undef X
#undef Y

API CUresult cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status) {
    static const struct { const char *name; void *fn; } table[] = {
#define X(name, symbol) {#name, (void *)own_##symbol},
#define Y X
        NAMES(X)
#undef X
#undef Y
    };
    (void)version;
    (void)flags;
    *fn = NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table && !*fn; i++)
        if (!strcmp(table[i].name, name)) *fn = table[i].fn;
    if (status) *status = *fn ? 0 : 1;
    return *fn ? 0 : 500;
}
