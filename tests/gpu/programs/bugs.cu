// Plants the bug that its argument names, in a kernel of its own: what the kernels of tests/programs cannot do. Most of
// these are undefined; guard.py runs each natively, under GPUMEM_GUARD and under compute-sanitizer's memcheck.
#include "check.h"
#include <cstring>

// A loop that goes one too far.
__global__ void scale(float *p, int n, float by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) p[i] = by * float(i);
}
// A value that has no bin.
__global__ void histogram(unsigned *bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&bins[i % 257], 1u);
}
// Four at a time, and the length is no multiple of four.
__global__ void vectors(float4 *p, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (4 * i < n) p[i] = make_float4(1, 2, 3, 4);
}
// A row's left neighbour, also of the first one.
__global__ void halo(float *p, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i - 1] = float(i);
}
// An address that lies in device memory, and whose block was freed.
__global__ void through_table(unsigned **table, int n) {
    int i = threadIdx.x;
    if (i < n) table[1][i] = 0x11223344;
}
__global__ void misaligned(char *p) { *reinterpret_cast<volatile int *>(p + 1) = 7; }
__global__ void in_shared(unsigned *out, int n) {
    __shared__ unsigned all[64];
    if (threadIdx.x < n) reinterpret_cast<volatile unsigned *>(all)[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x < 64) out[threadIdx.x] = all[threadIdx.x];
}
__global__ void in_heap(unsigned *out, int n) {
    volatile unsigned *own = static_cast<volatile unsigned *>(malloc(64));
    if (!own) return;
    for (int i = 0; i < n; i++) own[i] = i;
    out[0] = own[0];
    free(const_cast<unsigned *>(own));
}
__device__ unsigned table[64];
__global__ void in_symbol(unsigned *out, int n) {
    if (threadIdx.x < n) reinterpret_cast<volatile unsigned *>(table)[threadIdx.x] = threadIdx.x;
    out[0] = table[0];
}
// Two blocks of threads write the same words, in no order.
__global__ void race(unsigned *p, int n) {
    if (threadIdx.x < n) reinterpret_cast<volatile unsigned *>(p)[threadIdx.x] = blockIdx.x;
}

template <class T> static T *get(size_t bytes) {
    T *p;
    CHECK(cudaMalloc(&p, bytes));
    return p;
}
// What the device says of work that may be wrong: natively some of it is an error, which is part of the output.
static int waited() {
    int launched = cudaGetLastError(), done = cudaDeviceSynchronize();
    return launched ? launched : done;
}

int main(int argc, char **argv) {
    const char *bug = argc > 1 ? argv[1] : "";
    auto is = [&](const char *name) { return !std::strcmp(bug, name); };
    int answer = 0;
    if (is("loop")) {
        float *p = get<float>(1000 * 4);
        scale<<<4, 256>>>(p, 1000, 2);
        answer = waited();
        cudaFree(p);
    } else if (is("histogram")) {
        unsigned *p = get<unsigned>(256 * 4);
        CHECK(cudaMemset(p, 0, 256 * 4));
        histogram<<<16, 256>>>(p, 4096);
        answer = waited();
        cudaFree(p);
    } else if (is("vectors")) {
        float *p = get<float>(1021 * 4);
        vectors<<<4, 256>>>(reinterpret_cast<float4 *>(p), 1021);
        answer = waited();
        cudaFree(p);
    } else if (is("halo")) {
        float *p = get<float>(4096 * 4);
        halo<<<16, 256>>>(p, 4096);
        answer = waited();
        cudaFree(p);
    } else if (is("table")) {
        unsigned **of = get<unsigned *>(2 * sizeof(unsigned *)), *p = get<unsigned>(1 << 20);
        unsigned *both[2] = {nullptr, p};
        CHECK(cudaMemcpy(of, both, sizeof both, cudaMemcpyHostToDevice));
        CHECK(cudaFree(p));
        through_table<<<1, 64>>>(of, 64);
        answer = waited();
        cudaFree(of);
    } else if (is("misaligned")) {
        char *p = get<char>(64);
        misaligned<<<1, 1>>>(p);
        answer = waited();
    } else if (is("null")) {
        scale<<<1, 32>>>(nullptr, 31, 2);
        answer = waited();
    } else if (is("shared")) {
        unsigned *p = get<unsigned>(64 * 4);
        in_shared<<<1, 128>>>(p, 80);
        answer = waited();
        cudaFree(p);
    } else if (is("heap")) {
        unsigned *p = get<unsigned>(64 * 4);
        in_heap<<<1, 1>>>(p, 24);
        answer = waited();
        cudaFree(p);
    } else if (is("symbol")) {
        unsigned *p = get<unsigned>(64 * 4);
        in_symbol<<<1, 128>>>(p, 68);
        answer = waited();
        cudaFree(p);
    } else if (is("race")) {
        unsigned *p = get<unsigned>(64 * 4);
        race<<<64, 64>>>(p, 64);
        answer = waited();
        cudaFree(p);
    } else {
        return std::fprintf(stderr, "what is %s?\n", bug), 2;
    }
    std::printf("did %s: %d\n", bug, answer);
    return answer ? 1 : 0;
}
