// A compiled HIP program: its device code and the names of its kernels are registered before main begins
// (__hipRegisterFatBinary, __hipRegisterFunction, __hipRegisterVar). Prints what calls answer.
#include <cstdio>
#include <hip/hip_runtime.h>

__device__ int total;
__global__ void fill(int *p, int value, long wide) {
    p[threadIdx.x] = value + static_cast<int>(wide);
    total = value;
}

int main() {
    int n = -1, *p = nullptr;
    void *symbol = nullptr;
    hipFuncAttributes attributes = {};
    const int count = hipGetDeviceCount(&n), got = hipMalloc(&p, 256);
    fill<<<1, 64>>>(p, 7, 1);
    const int launched = hipGetLastError();
    const int asked = hipFuncGetAttributes(&attributes, reinterpret_cast<const void *>(fill));
    const int found = hipGetSymbolAddress(&symbol, HIP_SYMBOL(total)), waited = hipDeviceSynchronize();
    int first = 0;
    const int copied = hipMemcpy(&first, p, sizeof first, hipMemcpyDeviceToHost);
    std::printf("count %d malloc %d launch %d attributes %d symbol %d wait %d copy %d\n", count, got, launched, asked,
                found, waited, copied);
    return copied == 0 && first != 8;
}
