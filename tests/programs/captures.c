/* What may be called while a stream captures, in each mode, and what it does to
 * the capture: as measured on an H200 (driver 580, CUDA 13.0). */
#include "rt.h"
#include <pthread.h>

enum { N = 1024 };
static uint32_t *buffer;
static cudaStream_t s, other;

/* Begins a capture that fills the buffer. */
static void begin(int mode) {
    OK(cudaStreamBeginCapture(s, mode));
    OK(k_fill(buffer, N, 5, s));
    did.kernel_launches--;
}

/* Ends it: a working graph when `want` is 0, else that code and no graph. */
static void end(int want) {
    cudaGraph_t g = NULL;
    int rc = cudaStreamEndCapture(s, &g);
    EXPECT(rc, want);
    cudaGetLastError();
    did.captures++;
    if (rc != 0) {
        EXPECT(g == NULL, 1);
        return;
    }
    did.graphs_created++;
    cudaGraphExec_t e = instantiate(g);
    OK(cudaMemsetAsync(buffer, 0, N * 4, s));
    graph_launch(e, s);
    EXPECT(mismatches_of(buffer, N, 5, s), 0);
    exec_destroy(e);
    graph_destroy(g);
}

static void *malloc_elsewhere(void *rc) {
    void *p;
    *(int *)rc = cudaMalloc(&p, 4096);
    if (*(int *)rc == 0) {
        counted_alloc(DEVICE, 4096);
        *(void **)((char *)rc + 8) = p;
    }
    return NULL;
}

static void allocations(int mode, int same_thread, int other_thread) {
    int ends = same_thread ? cudaErrorStreamCaptureInvalidated : 0;
    void *p = NULL, *old = dev_alloc(4096);

    begin(mode);
    EXPECT(cudaMalloc(&p, 4096), same_thread);
    if (p) counted_alloc(DEVICE, 4096);
    end(ends);
    if (p) dev_free(p, 4096);

    begin(mode);
    if (EXPECT(cudaFree(old), same_thread) && same_thread == 0) counted_free(DEVICE, 4096);
    end(ends);
    if (same_thread) dev_free(old, 4096);

    struct { int rc; void *p; } from = {0};
    pthread_t t;
    begin(mode);
    if (pthread_create(&t, NULL, malloc_elsewhere, &from)) exit(2);
    pthread_join(t, NULL);
    EXPECT(from.rc, other_thread);
    end(other_thread ? cudaErrorStreamCaptureInvalidated : 0);
    if (from.p) dev_free(from.p, 4096);
}

/* Between two exchanges of the thread's mode, anything goes in any capture. */
static void exchanged(int mode) {
    void *p;
    int relaxed = cudaStreamCaptureModeRelaxed;
    begin(mode);
    OK(cudaThreadExchangeStreamCaptureMode(&relaxed));
    EXPECT(relaxed, cudaStreamCaptureModeGlobal); /* the default before */
    p = dev_alloc(4096);
    dev_free(p, 4096);
    OK(cudaThreadExchangeStreamCaptureMode(&relaxed));
    EXPECT(relaxed, cudaStreamCaptureModeRelaxed);
    end(0);
}

static void synchronising(int mode) {
    int strict = mode == cudaStreamCaptureModeRelaxed ? 0 : cudaErrorStreamCaptureUnsupported;
    int ends = strict ? cudaErrorStreamCaptureInvalidated : 0;
    void *p = NULL;
    begin(mode);
    EXPECT(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported); /* relaxed too */
    end(cudaErrorStreamCaptureInvalidated);
    begin(mode);
    EXPECT(cudaStreamSynchronize(other), strict);
    end(ends);
    begin(mode);
    EXPECT(cudaMallocAsync(&p, 4096, other), strict);
    end(ends);
    if (p) {
        counted_alloc(ASYNC, 4096);
        OK(cudaFreeAsync(p, other));
        counted_free(ASYNC, 4096);
    }
}

static void harmless(int mode) {
    size_t f, t;
    cudaEvent_t e;
    int status = -1;
    begin(mode);
    EXPECT(cudaMemGetInfo(&f, &t), 0);
    EXPECT(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), 0);
    EXPECT(cudaEventDestroy(e), 0);
    OK(cudaStreamIsCapturing(s, &status));
    EXPECT(status, cudaStreamCaptureStatusActive);
    end(0);
}

/* An allocation inside the captured stream is a node of the graph. */
static void stream_ordered_nodes(void) {
    uint32_t *p = NULL;
    cudaGraph_t g;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(cudaMallocAsync((void **)&p, N * 4, s));
    OK(k_fill(p, N, 8, s));
    OK(k_scale(buffer, p, N, 2, s));
    did.kernel_launches -= 2;
    OK(cudaFreeAsync(p, s));
    g = end_capture(s);
    cudaGraphExec_t e = instantiate(g);
    for (int i = 0; i < 2; i++) {
        OK(cudaMemsetAsync(buffer, 0, N * 4, s));
        graph_launch(e, s);
        EXPECT(mismatches_of(buffer, N, 16, s), 0);
    }
    exec_destroy(e);
    graph_destroy(g);
}

int main(void) {
    kernels_load();
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    buffer = dev_alloc(N * 4);
    allocations(cudaStreamCaptureModeGlobal, cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureUnsupported);
    allocations(cudaStreamCaptureModeThreadLocal, cudaErrorStreamCaptureUnsupported, 0);
    allocations(cudaStreamCaptureModeRelaxed, 0, 0);
    for (int mode = cudaStreamCaptureModeGlobal; mode <= cudaStreamCaptureModeRelaxed; mode++) {
        exchanged(mode);
        synchronising(mode);
        harmless(mode);
    }
    stream_ordered_nodes();
    dev_free(buffer, N * 4);
    OK(cudaStreamDestroy(other));
    OK(cudaStreamDestroy(s));
    kernels_unload();
    return report("captures");
}
