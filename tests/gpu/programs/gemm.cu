// cuBLAS products of growing sizes on two streams: the library's own handle, workspace and kernels.
#include "check.h"
#include <cublas_v2.h>

__global__ void fill(float *p, int n, unsigned seed) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i] = float((i * 2654435761u + seed) % 17u) - 8.0f;
}

int main() {
    Digest digest;
    cublasHandle_t handle;
    CHECK(cublasCreate(&handle));
    cudaStream_t streams[2];
    for (auto &stream : streams) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int round = 0; round < 6; round++) {
        const int n = 256 + 128 * round;
        const size_t bytes = size_t(n) * n * sizeof(float);
        float *a, *b, *c;
        CHECK(cudaMalloc(&a, bytes));
        CHECK(cudaMalloc(&b, bytes));
        CHECK(cudaMalloc(&c, bytes));
        cudaStream_t stream = streams[round % 2];
        fill<<<(n * n + 255) / 256, 256, 0, stream>>>(a, n * n, round);
        fill<<<(n * n + 255) / 256, 256, 0, stream>>>(b, n * n, round + 1);
        CHECK(cudaGetLastError());
        const float one = 1, zero = 0;
        CHECK(cublasSetStream(handle, stream));
        CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, n, b, n, &zero, c, n));
        std::vector<float> host(size_t(n) * n), left(host), right(host);
        CHECK(cudaMemcpyAsync(host.data(), c, bytes, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaMemcpyAsync(left.data(), a, bytes, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaMemcpyAsync(right.data(), b, bytes, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        // Small whole numbers: the product is exact, so one element is checked to the last bit.
        float want = 0;
        for (int k = 0; k < n; k++) want += left[3 + size_t(k) * n] * right[k + size_t(5) * n];
        if (host[3 + size_t(5) * n] != want) return std::fprintf(stderr, "wrong product at size %d\n", n), 1;
        digest.add(host.data(), bytes);
        CHECK(cudaFree(a));
        CHECK(cudaFree(b));
        CHECK(cudaFree(c));
    }
    hold();
    for (auto &stream : streams) CHECK(cudaStreamDestroy(stream));
    CHECK(cublasDestroy(handle));
    digest.print();
    return 0;
}
