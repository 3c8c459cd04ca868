/* Functions of HIP that few programs call: each gives or changes something that a
 * ledger tells of; the test counts them. Ends with a reset of the device's context, with memory held. */
#include "count.h"
#include "hip_min.h"

typedef struct {
    size_t x, y, z, lod;
    int type; /* 2: device */
    const void *host;
    void *device;
    hipArray_t array;
    size_t pitch, height;
} side;
typedef struct { side src, dst; size_t width, height, depth; } HIP_MEMCPY3D;

hipError_t hipExtHostAlloc(void **, size_t, unsigned);
hipError_t hipMipmappedArrayCreate(hipMipmappedArray_t *, const HIP_ARRAY3D_DESCRIPTOR *, unsigned);
hipError_t hipMipmappedArrayDestroy(hipMipmappedArray_t);
hipError_t hipExtStreamCreateWithCUMask(hipStream_t *, unsigned, const unsigned *);
hipError_t hipDevicePrimaryCtxReset(int);
hipError_t hipMemPoolImportPointer(void **, hipMemPool_t, void *);
hipError_t hipImportExternalMemory(void **, const void *);
hipError_t hipGraphExecMemcpyNodeSetParams1D(hipGraphExec_t, hipGraphNode_t, void *, const void *, size_t, int);
hipError_t hipGraphExecMemcpyNodeSetParamsFromSymbol(hipGraphExec_t, hipGraphNode_t, void *, const void *, size_t, size_t, int);
hipError_t hipGraphExecMemcpyNodeSetParamsToSymbol(hipGraphExec_t, hipGraphNode_t, const void *, const void *, size_t, size_t, int);
hipError_t hipDrvGraphExecMemcpyNodeSetParams(hipGraphExec_t, hipGraphNode_t, const HIP_MEMCPY3D *, void *);
hipError_t hipDrvGraphExecMemsetNodeSetParams(hipGraphExec_t, hipGraphNode_t, const hipMemsetParams *, void *);

static unsigned word(const unsigned *at) {
    unsigned v = 0;
    OK(hipMemcpy(&v, at, sizeof v, hipMemcpyDeviceToHost));
    return v;
}

static void setters(hipStream_t s) {
    unsigned *p;
    hipGraph_t g;
    hipGraphNode_t set, copy;
    hipGraphExec_t e;
    OK(hipMalloc((void **)&p, 4096));
    OK(hipGraphCreate(&g, 0));
    hipMemsetParams ms = {.dst = p, .elementSize = 4, .height = 1, .pitch = 4, .value = 7, .width = 1};
    OK(hipGraphAddMemsetNode(&set, g, NULL, 0, &ms));
    OK(hipGraphAddMemcpyNode1D(&copy, g, &set, 1, p + 1, p, 4, hipMemcpyDeviceToDevice));
    OK(hipGraphInstantiate(&e, g, NULL, NULL, 0));
    ms.value = 8;
    OK(hipDrvGraphExecMemsetNodeSetParams(e, set, &ms, NULL));
    HIP_MEMCPY3D c = {.src = {.type = 2, .device = p}, .dst = {.type = 2, .device = p + 2}, .width = 4, .height = 1, .depth = 1};
    OK(hipDrvGraphExecMemcpyNodeSetParams(e, copy, &c, NULL));
    OK(hipGraphLaunch(e, s));
    OK(hipStreamSynchronize(s));
    EXPECT(word(p), 8);
    EXPECT(word(p + 2), 8);
    OK(hipGraphExecMemcpyNodeSetParams1D(e, copy, p + 3, p, 4, hipMemcpyDeviceToDevice));
    OK(hipGraphLaunch(e, s));
    OK(hipStreamSynchronize(s));
    EXPECT(word(p + 3), 8);
    /* No variable of this name: 13. */
    EXPECT(hipGraphExecMemcpyNodeSetParamsFromSymbol(e, copy, p, "none", 4, 0, hipMemcpyDeviceToDevice), 13);
    EXPECT(hipGraphExecMemcpyNodeSetParamsToSymbol(e, copy, "none", p, 4, 0, hipMemcpyDeviceToDevice), 13);
    OK(hipGraphExecDestroy(e));
    OK(hipGraphDestroy(g));
    OK(hipFree(p));
}

int main(void) {
    void *p;
    hipMipmappedArray_t m;
    hipMemPool_t pool;
    hipMemPoolProps props = {.allocType = 1, .location = {1, 0}};
    hipStream_t s;
    OK(hipExtHostAlloc(&p, 104, 0));
    OK(hipHostFree(p));
    OK(hipMipmappedArrayCreate(&m, &(HIP_ARRAY3D_DESCRIPTOR){8, 8, 0, 0x20, 2, 0}, 3));
    OK(hipMipmappedArrayDestroy(m));
    OK(hipExtStreamCreateWithCUMask(&s, 1, (unsigned[]){0xff}));
    setters(s);
    OK(hipStreamDestroy(s));
    /* Other processes' and other APIs' memory is not simulated: 801. */
    OK(hipMemPoolCreate(&pool, &props));
    EXPECT(hipMemPoolImportPointer(&p, pool, props.reserved), 801);
    OK(hipMemPoolDestroy(pool));
    EXPECT(hipImportExternalMemory(&p, &props), 801);
    OK(hipMalloc(&p, 5000));
    OK(hipDevicePrimaryCtxReset(0));
    EXPECT(hipFree(p) != 0, 1);
    return report("newer");
}
