// A kernel whose threads have 16 KiB of local memory each: the driver takes it for all threads that the device runs at once.
#include "check.h"

__global__ void large_frame(int *out) {
    volatile int values[4096];
    for (int i = 0; i < 4096; i++) values[i] = i + threadIdx.x;
    int sum = 0;
    for (int i = 0; i < 4096; i += 97) sum += values[(i * 31) & 4095];
    *out = sum;
}

int main() {
    int *out;
    CHECK(cudaMalloc(&out, sizeof *out));
    large_frame<<<1, 1>>>(out);
    CHECK(cudaDeviceSynchronize());
    hold();
    return 0;
}
