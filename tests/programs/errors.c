/* Wrong calls, and the answers measured on an H200 (driver 580, CUDA 13.0): codes,
 * last-error state, out-parameters. The sticky error comes last: nothing works in
 * the process after it. */
#include "rt.h"

#define UNTOUCHED ((void *)0x5ca1ab1e)

static void sizes(void) {
    void *p = UNTOUCHED;
    EXPECT(cudaMalloc(&p, 0), 0);
    EXPECT(p == NULL, 1);
    EXPECT(cudaFree(NULL), 0);
    EXPECT(cudaFreeHost(NULL), 0);
    p = UNTOUCHED;
    EXPECT(cudaMalloc(&p, 1ull << 50), cudaErrorMemoryAllocation);
    EXPECT(p == UNTOUCHED || p == NULL, 1); /* the driver writes 0 */
    EXPECT(cudaGetLastError(), cudaErrorMemoryAllocation);
    EXPECT(cudaGetLastError(), 0); /* not sticky: gone once read */
    EXPECT(cudaMalloc(NULL, 4096), cudaErrorInvalidValue);
    EXPECT(cudaGetLastError(), cudaErrorInvalidValue);
    dev_free(dev_alloc(1), 1);
}

static void wrong_frees(void) {
    char *p = dev_alloc(4 << 20);
    char on_stack, *heap = malloc(64), *pinned;
    OK(cudaMallocHost((void **)&pinned, 4096));
    counted_alloc(HOST, 4096);
    EXPECT(cudaFree(p + 256), cudaErrorInvalidValue);  /* interior */
    EXPECT(cudaFree((void *)0x1000), cudaErrorInvalidValue);
    EXPECT(cudaFree(&on_stack), cudaErrorInvalidValue);
    EXPECT(cudaFree(heap), cudaErrorInvalidValue);
    EXPECT(cudaFreeHost(p), cudaErrorInvalidValue);
    EXPECT(cudaFreeHost(heap), cudaErrorInvalidValue);
    EXPECT(mismatches_of(p, 0, 0, NULL), 0);
    OK(cudaMemset(p, 0, 4 << 20)); /* still allocated after all that */
    dev_free(p, 4 << 20);
    EXPECT(cudaFree(p), cudaErrorInvalidValue); /* twice */
    EXPECT(cudaFree(p), cudaErrorInvalidValue);
    struct cudaPointerAttributes attr = {.type = 99};
    EXPECT(cudaPointerGetAttributes(&attr, p), 0);
    EXPECT(attr.type, cudaMemoryTypeUnregistered);
    OK(cudaFreeHost(pinned));
    counted_free(HOST, 4096);
    EXPECT(cudaFreeHost(pinned), cudaErrorInvalidValue);
    free(heap);
    cudaGetLastError();
}

/* A plain allocation freed in stream order: the runtime refused it (1), the driver
 * took it. Either way it is wholly one or the other. */
static void plain_freed_async(void) {
    void *p = dev_alloc(3 << 20);
    cudaStream_t s;
    OK(cudaStreamCreate(&s));
    int rc = cudaFreeAsync(p, s);
    EXPECT(rc == 0 || rc == cudaErrorInvalidValue, 1);
    OK(cudaStreamSynchronize(s));
    EXPECT(cudaFree(p), rc == 0 ? cudaErrorInvalidValue : 0);
    counted_free(DEVICE, 3 << 20);
    OK(cudaStreamDestroy(s));
    cudaGetLastError();
}

static void last_error_state(void) {
    int count;
    EXPECT(cudaFree((void *)0x1000), cudaErrorInvalidValue);
    EXPECT(cudaPeekAtLastError(), cudaErrorInvalidValue);
    void *p = dev_alloc(4096); /* success does not clear it */
    OK(cudaGetDeviceCount(&count));
    dev_free(p, 4096);
    EXPECT(cudaPeekAtLastError(), cudaErrorInvalidValue);
    EXPECT(cudaGetLastError(), cudaErrorInvalidValue);
    EXPECT(cudaPeekAtLastError(), 0);
}

static void pointers(void) {
    char *p = dev_alloc(3 << 20);
    CUdeviceptr base = 0;
    size_t size = 0;
    /* Out-parameters that may be NULL. */
    EXPECT(cuMemGetAddressRange_v2(NULL, &size, (CUdeviceptr)(uintptr_t)p), 0);
    EXPECT(size, 3 << 20); /* what was asked for, not what was taken */
    EXPECT(cuMemGetAddressRange_v2(&base, NULL, (CUdeviceptr)(uintptr_t)p + 5000), 0);
    EXPECT(base == (CUdeviceptr)(uintptr_t)p, 1);
    struct cudaPointerAttributes attr;
    EXPECT(cudaPointerGetAttributes(&attr, p + 77), 0);
    EXPECT(attr.type, cudaMemoryTypeDevice);
    dev_free(p, 3 << 20);
    base = 42;
    EXPECT(cuMemGetAddressRange_v2(&base, &size, (CUdeviceptr)(uintptr_t)p) != 0, 1);
    EXPECT(base == 42 || base == 0, 1); /* an H200's driver clears it */
}

static void graphs(void) {
    cudaGraph_t g;
    cudaStream_t s;
    OK(cudaStreamCreate(&s));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    EXPECT(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed), cudaErrorIllegalState);
    g = end_capture(s);
    cudaGraph_t none = NULL;
    EXPECT(cudaStreamEndCapture(s, &none), cudaErrorIllegalState);
    EXPECT(none == NULL, 1);
    cudaGetLastError();
    EXPECT(cudaGraphInstantiate(NULL, g, 0), cudaErrorInvalidValue);
    cudaGetLastError();
    graph_destroy(g);
    OK(cudaStreamDestroy(s));
}

static void sticky(void) {
    void *p = dev_alloc(4096);
    size_t f, t;
    /* A graph that is known by then. */
    cudaStream_t s;
    cudaGraphExec_t e, other;
    OK(cudaStreamCreate(&s));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(k_fill(p, 1, 1, s));
    cudaGraph_t g = end_capture(s);
    e = instantiate(g);
    /* A kernel that writes where nothing is. */
    OK(k_fill((void *)0x100, 1, 1, NULL));
    EXPECT(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    EXPECT(cudaFree(p), cudaErrorIllegalAddress);
    EXPECT(cudaFree(NULL), cudaErrorIllegalAddress);
    EXPECT(cudaMalloc(&p, 4096), cudaErrorIllegalAddress);
    EXPECT(cudaMemGetInfo(&f, &t), cudaErrorIllegalAddress);
    EXPECT(cuMemFree_v2(0), cudaErrorIllegalAddress);
    EXPECT(cudaGraphInstantiate(&other, g, 0), cudaErrorIllegalAddress);
    EXPECT(cudaGraphLaunch(e, s), cudaErrorIllegalAddress);
    EXPECT(cudaGetLastError(), cudaErrorIllegalAddress);
    EXPECT(cudaMalloc(&p, 4096), cudaErrorIllegalAddress); /* reading it clears nothing */
}

int main(int argc, char **argv) {
    (void)argv;
    kernels_load();
    sizes();
    wrong_frees();
    plain_freed_async();
    last_error_state();
    pointers();
    graphs();
    if (argc > 1) { /* any argument: without the sticky error */
        kernels_unload();
        return report("errors");
    }
    sticky();
    return report("errors");
}
