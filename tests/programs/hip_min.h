/* The few HIP declarations that these programs use, written for them; true for
 * ROCm 5 to 7. Status codes and enumerations are plain ints. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum {
    hipSuccess = 0,
    hipErrorInvalidValue = 1,
    hipErrorOutOfMemory = 2,
    hipErrorNoDevice = 100,
    hipErrorInvalidDevice = 101,
    hipErrorGraphExecUpdateFailure = 910,
};
enum { hipMemcpyHostToHost, hipMemcpyHostToDevice, hipMemcpyDeviceToHost, hipMemcpyDeviceToDevice, hipMemcpyDefault };
enum { hipStreamNonBlocking = 1 };
enum { hipStreamCaptureModeGlobal, hipStreamCaptureModeThreadLocal, hipStreamCaptureModeRelaxed };

typedef int hipError_t;
typedef struct ihipStream_t *hipStream_t;
typedef struct ihipGraph *hipGraph_t;
typedef struct hipGraphExec *hipGraphExec_t;
typedef struct hipGraphNode *hipGraphNode_t;
/* Fields in HIP's order, which is not CUDA's. */
typedef struct { void *dst; unsigned elementSize; size_t height, pitch; unsigned value; size_t width; } hipMemsetParams;

hipError_t hipGetDeviceCount(int *);
hipError_t hipRuntimeGetVersion(int *);
hipError_t hipDeviceSynchronize(void);
hipError_t hipGetLastError(void);
hipError_t hipMemGetInfo(size_t *, size_t *);
hipError_t hipMalloc(void **, size_t);
hipError_t hipFree(void *);
hipError_t hipMallocPitch(void **, size_t *, size_t, size_t);
hipError_t hipMallocManaged(void **, size_t, unsigned);
hipError_t hipHostMalloc(void **, size_t, unsigned);
hipError_t hipHostFree(void *);
hipError_t hipHostRegister(void *, size_t, unsigned);
hipError_t hipHostUnregister(void *);
hipError_t hipMallocAsync(void **, size_t, hipStream_t);
hipError_t hipFreeAsync(void *, hipStream_t);
hipError_t hipMemcpy(void *, const void *, size_t, int);
hipError_t hipMemcpyAsync(void *, const void *, size_t, int, hipStream_t);
hipError_t hipMemset(void *, int, size_t);
hipError_t hipMemsetAsync(void *, int, size_t, hipStream_t);
hipError_t hipStreamCreateWithFlags(hipStream_t *, unsigned);
hipError_t hipStreamDestroy(hipStream_t);
hipError_t hipStreamSynchronize(hipStream_t);
hipError_t hipStreamBeginCapture(hipStream_t, int);
hipError_t hipStreamEndCapture(hipStream_t, hipGraph_t *);
hipError_t hipGraphCreate(hipGraph_t *, unsigned);
hipError_t hipGraphDestroy(hipGraph_t);
hipError_t hipGraphAddMemsetNode(hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t, const hipMemsetParams *);
hipError_t hipGraphAddMemcpyNode1D(hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t, void *, const void *, size_t, int);
hipError_t hipGraphGetNodes(hipGraph_t, hipGraphNode_t *, size_t *);
/* Five arguments still, as CUDA before 12. */
hipError_t hipGraphInstantiate(hipGraphExec_t *, hipGraph_t, hipGraphNode_t *, char *, size_t);
hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t *, hipGraph_t, unsigned long long);
hipError_t hipGraphExecUpdate(hipGraphExec_t, hipGraph_t, hipGraphNode_t *, int *);
hipError_t hipGraphExecMemsetNodeSetParams(hipGraphExec_t, hipGraphNode_t, const hipMemsetParams *);
hipError_t hipGraphLaunch(hipGraphExec_t, hipStream_t);
hipError_t hipGraphExecDestroy(hipGraphExec_t);

/* What hip_kinds.c, hip_nodes.c and hip_demo.c use besides. */
enum { hipMemAttachGlobal = 1, hipGraphInstantiateFlagUseNodePriority = 8 };
typedef struct ihipMemPoolHandle_t *hipMemPool_t;
typedef struct ihipMemGenericAllocationHandle *hipMemGenericAllocationHandle_t;
typedef struct hipArray *hipArray_t;
typedef struct hipMipmappedArray *hipMipmappedArray_t;
typedef struct ihipEvent_t *hipEvent_t;
typedef struct ihipModule_t *hipModule_t;
typedef struct ihipModuleSymbol_t *hipFunction_t;
typedef struct { size_t width, height, depth; } hipExtent;
typedef struct { void *ptr; size_t pitch, xsize, ysize; } hipPitchedPtr;
typedef struct { int x, y, z, w, f; } hipChannelFormatDesc;
typedef struct { size_t Width, Height; unsigned Format, NumChannels; } HIP_ARRAY_DESCRIPTOR;
typedef struct { size_t Width, Height, Depth; unsigned Format, NumChannels, Flags; } HIP_ARRAY3D_DESCRIPTOR;
typedef struct { int type, id; } hipMemLocation;
typedef struct { int type, requestedHandleType; hipMemLocation location; void *meta; unsigned char flags[8]; } hipMemAllocationProp;
typedef struct { hipMemLocation location; int flags; } hipMemAccessDesc;
typedef struct { int allocType, handleTypes; hipMemLocation location; void *security; size_t maxSize; unsigned char reserved[56]; } hipMemPoolProps;
typedef struct { hipMemPoolProps poolProps; const hipMemAccessDesc *accessDescs; size_t accessDescCount, bytesize; void *dptr; } hipMemAllocNodeParams;
typedef struct { unsigned x, y, z; } dim3;
typedef struct { dim3 blockDim; void **extra; void *func; dim3 gridDim; void **kernelParams; unsigned sharedMemBytes; } hipKernelNodeParams;
typedef struct { void (*fn)(void *); void *userData; } hipHostNodeParams;
/* CUDA's fields, in alphabetical order. */
typedef struct { hipGraphNode_t errNode_out; unsigned long long flags; int result_out; hipStream_t uploadStream; } hipGraphInstantiateParams;

hipError_t hipExtMallocWithFlags(void **, size_t, unsigned);
hipError_t hipMemAllocPitch(void **, size_t *, size_t, size_t, unsigned);
hipError_t hipMalloc3D(hipPitchedPtr *, hipExtent);
hipError_t hipHostAlloc(void **, size_t, unsigned);
hipError_t hipMallocHost(void **, size_t);
hipError_t hipMemAllocHost(void **, size_t);
hipError_t hipFreeHost(void *);
hipError_t hipMallocFromPoolAsync(void **, size_t, hipMemPool_t, hipStream_t);
hipError_t hipMemPoolCreate(hipMemPool_t *, const hipMemPoolProps *);
hipError_t hipMemPoolDestroy(hipMemPool_t);
hipError_t hipDeviceGetDefaultMemPool(hipMemPool_t *, int), hipDeviceGetMemPool(hipMemPool_t *, int), hipDeviceSetMemPool(int, hipMemPool_t);
hipError_t hipArrayCreate(hipArray_t *, const HIP_ARRAY_DESCRIPTOR *);
hipError_t hipArray3DCreate(hipArray_t *, const HIP_ARRAY3D_DESCRIPTOR *);
hipError_t hipArrayDestroy(hipArray_t);
hipError_t hipMallocArray(hipArray_t *, const hipChannelFormatDesc *, size_t, size_t, unsigned);
hipError_t hipMalloc3DArray(hipArray_t *, const hipChannelFormatDesc *, hipExtent, unsigned);
hipError_t hipFreeArray(hipArray_t);
hipError_t hipMallocMipmappedArray(hipMipmappedArray_t *, const hipChannelFormatDesc *, hipExtent, unsigned, unsigned);
hipError_t hipFreeMipmappedArray(hipMipmappedArray_t);
hipError_t hipMemCreate(hipMemGenericAllocationHandle_t *, size_t, const hipMemAllocationProp *, unsigned long long);
hipError_t hipMemRelease(hipMemGenericAllocationHandle_t);
hipError_t hipMemAddressReserve(void **, size_t, size_t, void *, unsigned long long);
hipError_t hipMemAddressFree(void *, size_t);
hipError_t hipMemMap(void *, size_t, size_t, hipMemGenericAllocationHandle_t, unsigned long long);
hipError_t hipMemUnmap(void *, size_t);
hipError_t hipMemSetAccess(void *, size_t, const hipMemAccessDesc *, size_t);
hipError_t hipStreamCreate(hipStream_t *);
hipError_t hipEventCreate(hipEvent_t *);
hipError_t hipEventDestroy(hipEvent_t);
hipError_t hipModuleLoadData(hipModule_t *, const void *);
hipError_t hipModuleUnload(hipModule_t);
hipError_t hipModuleGetFunction(hipFunction_t *, hipModule_t, const char *);
hipError_t hipModuleLaunchKernel(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, hipStream_t, void **, void **);
hipError_t hipStreamBeginCapture_spt(hipStream_t, int);
hipError_t hipStreamEndCapture_spt(hipStream_t, hipGraph_t *);
hipError_t hipStreamBeginCaptureToGraph(hipStream_t, hipGraph_t, const hipGraphNode_t *, const void *, size_t, int);
hipError_t hipMemsetAsync_spt(void *, int, size_t, hipStream_t);
hipError_t hipStreamSynchronize_spt(hipStream_t);
hipError_t hipGraphLaunch_spt(hipGraphExec_t, hipStream_t);
hipError_t hipGraphClone(hipGraph_t *, hipGraph_t);
hipError_t hipGraphAddKernelNode(hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t, const hipKernelNodeParams *);
hipError_t hipGraphAddHostNode(hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t, const hipHostNodeParams *);
hipError_t hipGraphAddChildGraphNode(hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t, hipGraph_t);
hipError_t hipGraphAddEmptyNode(hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t);
hipError_t hipGraphAddEventRecordNode(hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t, hipEvent_t);
hipError_t hipGraphAddEventWaitNode(hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t, hipEvent_t);
hipError_t hipGraphAddMemAllocNode(hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t, hipMemAllocNodeParams *);
hipError_t hipGraphAddMemFreeNode(hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t, void *);
hipError_t hipGraphInstantiateWithParams(hipGraphExec_t *, hipGraph_t, hipGraphInstantiateParams *);
hipError_t hipGraphExecKernelNodeSetParams(hipGraphExec_t, hipGraphNode_t, const hipKernelNodeParams *);
hipError_t hipGraphNodeSetEnabled(hipGraphExec_t, hipGraphNode_t, unsigned);
