/* The runtime's functions for per-thread default streams, as a compiler calls them
 * with --default-stream per-thread. */
#include "count.h"
#include "cuda_min.h"

cudaError_t cudaMallocAsync_ptsz(void **, size_t, cudaStream_t), cudaFreeAsync_ptsz(void *, cudaStream_t);
cudaError_t cudaMallocFromPoolAsync_ptsz(void **, size_t, cudaMemPool_t, cudaStream_t);
cudaError_t cudaStreamBeginCapture_ptsz(cudaStream_t, int), cudaStreamEndCapture_ptsz(cudaStream_t, cudaGraph_t *);
cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t, cudaStream_t), cudaStreamSynchronize_ptsz(cudaStream_t);
cudaError_t cudaMemsetAsync_ptsz(void *, int, size_t, cudaStream_t);
cudaError_t cudaGraphInstantiateWithParams_ptsz(cudaGraphExec_t *, cudaGraph_t, void *);

int main(void) {
    void *p, *q;
    cudaMemPool_t pool;
    cudaGraph_t g;
    cudaGraphExec_t e;
    struct { unsigned long long flags; cudaStream_t stream; cudaGraphNode_t node; int result; } params = {0};
    OK(cudaMallocAsync_ptsz(&p, 40000, NULL));
    counted_alloc(ASYNC, 40000);
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMallocFromPoolAsync_ptsz(&q, 50000, pool, NULL));
    counted_alloc(ASYNC, 50000);
    OK(cudaStreamBeginCapture_ptsz(NULL, cudaStreamCaptureModeRelaxed));
    OK(cudaMemsetAsync_ptsz(p, 3, 40000, NULL));
    OK(cudaStreamEndCapture_ptsz(NULL, &g));
    did.captures++;
    did.graphs_created++;
    OK(cudaGraphInstantiateWithParams_ptsz(&e, g, &params));
    did.execs_created++;
    OK(cudaGraphLaunch_ptsz(e, NULL));
    did.graph_launches++;
    OK(cudaStreamSynchronize_ptsz(NULL));
    OK(cudaGraphExecDestroy(e));
    OK(cudaGraphDestroy(g));
    did.execs_destroyed++;
    did.graphs_destroyed++;
    OK(cudaFreeAsync_ptsz(q, NULL));
    counted_free(ASYNC, 50000);
    OK(cudaFreeAsync_ptsz(p, NULL));
    counted_free(ASYNC, 40000);
    OK(cudaStreamSynchronize_ptsz(NULL));
    return report("perthread");
}
