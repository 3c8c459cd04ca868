// y = a x + y with `<<<>>>`, as a first CUDA program does it. Built twice: with nvcc's default static
// cudart and with `-cudart shared`. Its argument: how many rounds (20).
#include "check.h"

__global__ void saxpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

int main(int argc, char **argv) {
    const int n = 1 << 20, rounds = argc > 1 ? std::atoi(argv[1]) : 20;
    std::vector<float> host(n);
    Digest digest;
    for (int round = 0; round < rounds; round++) {
        // A different size each round, so that nothing of one round can stand in for the next.
        const int m = n - round % 200 * 4096;
        float *x, *y, *pinned;
        CHECK(cudaMalloc(&x, m * sizeof(float)));
        CHECK(cudaMalloc(&y, m * sizeof(float)));
        CHECK(cudaMallocHost(&pinned, m * sizeof(float)));
        for (int i = 0; i < m; i++) pinned[i] = float((i * 7 + round) % 1000);
        CHECK(cudaMemcpy(x, pinned, m * sizeof(float), cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(y, pinned, m * sizeof(float), cudaMemcpyHostToDevice));
        saxpy<<<(m + 255) / 256, 256>>>(m, 0.5f, x, y);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpy(host.data(), y, m * sizeof(float), cudaMemcpyDeviceToHost));
        for (int i = 0; i < m; i++)
            if (host[i] != 1.5f * pinned[i]) return std::fprintf(stderr, "wrong at %d\n", i), 1;
        digest.add(host.data(), m * sizeof(float));
        CHECK(cudaFree(x));
        CHECK(cudaFree(y));
        CHECK(cudaFreeHost(pinned));
    }
    // Managed, pitched, stream-ordered and array memory, once each.
    int *managed;
    CHECK(cudaMallocManaged(&managed, 4096));
    void *pitched;
    size_t pitch;
    CHECK(cudaMallocPitch(&pitched, &pitch, 1000, 30));
    CHECK(cudaMemset2D(pitched, pitch, 7, 1000, 30));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    void *ordered;
    CHECK(cudaMallocAsync(&ordered, 1 << 20, stream));
    CHECK(cudaMemsetAsync(ordered, 3, 1 << 20, stream));
    CHECK(cudaFreeAsync(ordered, stream));
    CHECK(cudaStreamSynchronize(stream));
    cudaArray_t array;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    CHECK(cudaMallocArray(&array, &format, 64, 32));
    CHECK(cudaFreeArray(array));
    CHECK(cudaFree(managed));
    CHECK(cudaFree(pitched));
    CHECK(cudaStreamDestroy(stream));
    // Refused, and said so: the code and the last error are part of the output.
    void *none = nullptr;
    int refused = cudaMalloc(&none, size_t(1) << 50);
    int last = cudaGetLastError();
    int twice = cudaFree(managed);
    cudaGetLastError();
    std::printf("codes %d %d %d pitch %zu\n", refused, last, twice, pitch);
    digest.print();
    return 0;
}
