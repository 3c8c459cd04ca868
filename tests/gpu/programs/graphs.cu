// CUDA graphs through the runtime: captured in each mode on two joined streams, updated, refused,
// cloned, launched on several streams, and one per-thread-default-stream launch.
// With `--hold` it keeps launching after it printed what is live, until it is killed.
#include "check.h"
#include <cstring>
#include <thread>

__global__ void step(uint32_t *p, int n, uint32_t factor, uint32_t add) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i] = p[i] * factor + add;
}

static const int N = 1 << 16;

static cudaGraph_t capture(cudaStream_t stream, cudaStream_t side, uint32_t *p, uint32_t *q, uint32_t seed, int extra,
                           cudaStreamCaptureMode mode) {
    cudaEvent_t fork, join;
    CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream, mode));
    CHECK(cudaEventRecord(fork, stream));
    CHECK(cudaStreamWaitEvent(side, fork, 0));
    step<<<N / 256, 256, 0, stream>>>(p, N, 3, seed);
    step<<<N / 256, 256, 0, side>>>(q, N, 5, seed + 1);
    for (int i = 0; i < extra; i++) step<<<N / 256, 256, 0, stream>>>(p, N, 7, seed + i);
    CHECK(cudaEventRecord(join, side));
    CHECK(cudaStreamWaitEvent(stream, join, 0));
    step<<<N / 256, 256, 0, stream>>>(q, N, 11, seed + 2);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaEventDestroy(fork));
    CHECK(cudaEventDestroy(join));
    return graph;
}

int main(int argc, char **argv) {
    const bool hold = argc > 1 && !std::strcmp(argv[1], "--hold");
    Digest digest;
    uint32_t *p, *q;
    CHECK(cudaMalloc(&p, N * 4));
    CHECK(cudaMalloc(&q, N * 4));
    CHECK(cudaMemset(p, 1, N * 4));
    CHECK(cudaMemset(q, 2, N * 4));
    cudaStream_t stream, side;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    std::vector<uint32_t> host(N);
    auto fold = [&] {
        CHECK(cudaDeviceSynchronize());
        for (uint32_t *from : {p, q}) {
            CHECK(cudaMemcpy(host.data(), from, N * 4, cudaMemcpyDeviceToHost));
            digest.add(host.data(), N * 4);
        }
    };

    const cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                                           cudaStreamCaptureModeRelaxed};
    int refused = 0;
    for (int round = 0; round < 30; round++) {
        cudaGraph_t first = capture(stream, side, p, q, round, round % 4, modes[round % 3]);
        cudaGraph_t same = capture(stream, side, p, q, round + 100, round % 4, cudaStreamCaptureModeRelaxed);
        cudaGraph_t other = capture(stream, side, p, q, round + 200, round % 4 + 1, cudaStreamCaptureModeRelaxed);
        cudaGraphExec_t exec;
        CHECK(cudaGraphInstantiate(&exec, first, 0));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaGraphLaunch(exec, side));
        cudaGraphExecUpdateResultInfo info;
        CHECK(cudaGraphExecUpdate(exec, same, &info));
        CHECK(cudaGraphLaunch(exec, stream));
        if (cudaGraphExecUpdate(exec, other, &info) == cudaErrorGraphExecUpdateFailure) refused++;
        cudaGetLastError();
        CHECK(cudaGraphLaunch(exec, stream));
        fold();
        CHECK(cudaGraphExecDestroy(exec));
        cudaGraph_t clone;
        CHECK(cudaGraphClone(&clone, other));
        CHECK(cudaGraphInstantiateWithFlags(&exec, clone, cudaGraphInstantiateFlagUseNodePriority));
        CHECK(cudaGraphLaunch(exec, cudaStreamPerThread));
        fold();
        CHECK(cudaGraphExecDestroy(exec));
        for (cudaGraph_t graph : {first, same, other, clone}) CHECK(cudaGraphDestroy(graph));
    }
    std::printf("refused %d\n", refused);
    digest.print();
    if (hold) {
        // A state that the reader can check to the last one: 7 buffers of known sizes, 3 execs and graphs.
        void *buffers[5];
        for (int i = 0; i < 5; i++) CHECK(cudaMalloc(&buffers[i], (i + 1) * 1000000));
        cudaGraph_t graphs[3];
        cudaGraphExec_t execs[3];
        for (int i = 0; i < 3; i++) {
            graphs[i] = capture(stream, side, p, q, i, i, cudaStreamCaptureModeRelaxed);
            CHECK(cudaGraphInstantiate(&execs[i], graphs[i], 0));
        }
        std::printf("holding {\"device_allocs\":7,\"device_bytes\":%d,\"graphs\":3,\"execs\":3}\n", 15000000 + 2 * N * 4);
        std::fflush(stdout);
        for (;;)
            for (auto exec : execs) {
                CHECK(cudaGraphLaunch(exec, stream));
                CHECK(cudaStreamSynchronize(stream));
            }
    }
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaStreamDestroy(side));
    CHECK(cudaFree(p));
    CHECK(cudaFree(q));
    return 0;
}
