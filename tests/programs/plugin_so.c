/* A plugin linked to cudart; the Makefile builds one against each version. */
#include "plugin.h"
#include "cuda_min.h"
#include <stdlib.h>
#include <string.h>

#define TRY(call) \
    do { if ((call) != 0) { w.failures++; return w; } } while (0)

struct plugin_work plugin_work(size_t bytes, uint32_t value) {
    struct plugin_work w = {0};
    void *a, *b;
    cudaStream_t s;
    cudaGraph_t g;
    cudaGraphExec_t e;
    unsigned char *host = malloc(bytes);
    if (!host) exit(2);
    TRY(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    TRY(cudaMalloc(&a, bytes));
    TRY(cudaMalloc(&b, bytes));
    w.allocs = 2;
    w.bytes = 2 * bytes;
    TRY(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    TRY(cudaMemsetAsync(a, (int)value, bytes, s));
    TRY(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, s));
    TRY(cudaStreamEndCapture(s, &g));
    TRY(cudaGraphInstantiateWithFlags(&e, g, 0));
    w.graphs = 1;
    for (; w.graph_launches < 2; w.graph_launches++) {
        TRY(cudaMemsetAsync(b, 0, bytes, s));
        TRY(cudaGraphLaunch(e, s));
        TRY(cudaStreamSynchronize(s));
        TRY(cudaMemcpy(host, b, bytes, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < bytes; i++) w.failures += host[i] != (unsigned char)value;
    }
    TRY(cudaGraphExecDestroy(e));
    TRY(cudaGraphDestroy(g));
    TRY(cudaFree(b));
    TRY(cudaFree(a));
    w.frees = 2;
    TRY(cudaStreamDestroy(s));
    free(host);
    return w;
}

int plugin_device_of_memory(int device) {
    struct cudaPointerAttributes of;
    void *p;
    if (cudaSetDevice(device) != 0 || cudaMalloc(&p, 1 << 16) != 0) return -1;
    int is_known = cudaPointerGetAttributes(&of, p) == 0;
    return cudaFree(p) == 0 && is_known ? of.device : -1;
}

int plugin_runtime_version(void) {
    int v = 0;
    return cudaRuntimeGetVersion(&v) == 0 ? v : -1;
}
