/* The runtime API with counting, and the kernels through cudaLibrary*. */
#pragma once
#include "count.h"
#include "cuda_min.h"

/* The committed PTX, linked in by ptx.S. */
extern const char gpumem_ptx[];

static inline void *dev_alloc(size_t bytes) {
    void *p = NULL;
    OK(cudaMalloc(&p, bytes));
    counted_alloc(DEVICE, bytes);
    return p;
}
static inline void dev_free(void *p, size_t bytes) {
    OK(cudaFree(p));
    counted_free(DEVICE, bytes);
}

__attribute__((weak)) struct { cudaLibrary_t lib; cudaKernel_t fill, verify, scale, spin; } rt;

static inline void kernels_get(void) {
    OK(cudaLibraryLoadData(&rt.lib, gpumem_ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cudaLibraryGetKernel(&rt.fill, rt.lib, "gpumem_fill"));
    OK(cudaLibraryGetKernel(&rt.verify, rt.lib, "gpumem_verify"));
    OK(cudaLibraryGetKernel(&rt.scale, rt.lib, "gpumem_scale"));
    OK(cudaLibraryGetKernel(&rt.spin, rt.lib, "gpumem_spin"));
}
static inline void kernels_unload(void) { OK(cudaLibraryUnload(rt.lib)); }

static inline dim3 one_d(unsigned x) { return (dim3){x, 1, 1}; }
static inline unsigned blocks_for(uint64_t n) {
    uint64_t b = (n + 255) / 256;
    return b < 1 ? 1 : b > 1024 ? 1024 : (unsigned)b;
}
static inline int launch(cudaKernel_t k, uint64_t n, void **args, cudaStream_t s) {
    int rc = cudaLaunchKernel((const void *)k, one_d(blocks_for(n)), one_d(256), args, 0, s);
    if (rc == 0) did.kernel_launches++;
    return rc;
}
static inline int k_fill(void *p, uint64_t n, uint32_t value, cudaStream_t s) {
    return launch(rt.fill, n, (void *[]){&p, &n, &value}, s);
}
static inline int k_scale(void *dst, const void *src, uint64_t n, uint32_t factor, cudaStream_t s) {
    return launch(rt.scale, n, (void *[]){&dst, &src, &n, &factor}, s);
}
static inline int k_verify(const void *p, uint64_t n, uint32_t value, void *mismatches, cudaStream_t s) {
    return launch(rt.verify, n, (void *[]){&p, &n, &value, &mismatches}, s);
}
/* Loads the kernels and launches those that captures use on no words: one that is
 * loaded lazily must not be loaded by its first launch inside a capture. */
static inline void kernels_load(void) {
    kernels_get();
    OK(k_fill(NULL, 0, 0, NULL));
    OK(k_scale(NULL, NULL, 0, 0, NULL));
    OK(cudaDeviceSynchronize());
}
static inline int k_spin(uint64_t ns, void *done, cudaStream_t s) {
    int rc = cudaLaunchKernel((const void *)rt.spin, one_d(1), one_d(1), (void *[]){&ns, &done}, 0, s);
    if (rc == 0) did.kernel_launches++;
    return rc;
}
/* How many of the words at `p` are not `value`, counted on the device. */
static inline uint64_t mismatches_of(const void *p, uint64_t n, uint32_t value, cudaStream_t s) {
    uint64_t wrong = 1, *d = dev_alloc(sizeof *d);
    OK(cudaMemsetAsync(d, 0, sizeof *d, s));
    OK(k_verify(p, n, value, d, s));
    OK(cudaMemcpyAsync(&wrong, d, sizeof wrong, cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    dev_free(d, sizeof *d);
    return wrong;
}

/* Counted graph calls. */
static inline cudaGraph_t end_capture(cudaStream_t s) {
    cudaGraph_t g = NULL;
    OK(cudaStreamEndCapture(s, &g));
    did.captures++;
    did.graphs_created++;
    return g;
}
static inline void graph_destroy(cudaGraph_t g) {
    OK(cudaGraphDestroy(g));
    did.graphs_destroyed++;
}
static inline cudaGraphExec_t instantiate(cudaGraph_t g) {
    cudaGraphExec_t e = NULL;
    OK(cudaGraphInstantiate(&e, g, 0));
    did.execs_created++;
    return e;
}
static inline void exec_destroy(cudaGraphExec_t e) {
    OK(cudaGraphExecDestroy(e));
    did.execs_destroyed++;
}
static inline void graph_launch(cudaGraphExec_t e, cudaStream_t s) {
    OK(cudaGraphLaunch(e, s));
    did.graph_launches++;
}
static inline int exec_update(cudaGraphExec_t e, cudaGraph_t g) {
    cudaGraphExecUpdateResultInfo info;
    int rc = cudaGraphExecUpdate(e, g, &info);
    if (rc == 0) did.exec_updates++;
    else did.exec_updates_failed++;
    return rc;
}
