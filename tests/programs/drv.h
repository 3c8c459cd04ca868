/* The kernels through the driver API. */
#pragma once
#include "count.h"
#include "cuda_min.h"

extern const char gpumem_ptx[];
static struct { CUmodule module; CUfunction fill, verify; } drv;

static inline void kernels_load(void) {
    OK(cuModuleLoadData(&drv.module, gpumem_ptx));
    OK(cuModuleGetFunction(&drv.fill, drv.module, "gpumem_fill"));
    OK(cuModuleGetFunction(&drv.verify, drv.module, "gpumem_verify"));
}
static inline CUdeviceptr dev_alloc(size_t bytes) {
    CUdeviceptr p = 0;
    OK(cuMemAlloc_v2(&p, bytes));
    counted_alloc(DEVICE, bytes);
    return p;
}
static inline void dev_free(CUdeviceptr p, size_t bytes) {
    OK(cuMemFree_v2(p));
    counted_free(DEVICE, bytes);
}
static inline void k_fill(CUdeviceptr p, uint64_t n, uint32_t value) {
    OK(cuLaunchKernel(drv.fill, 64, 1, 1, 256, 1, 1, 0, NULL, (void *[]){&p, &n, &value}, NULL));
    did.kernel_launches++;
}
static inline uint64_t mismatches_of(CUdeviceptr p, uint64_t n, uint32_t value) {
    uint64_t wrong = 1;
    CUdeviceptr d = dev_alloc(8);
    OK(cuMemsetD32_v2(d, 0, 2));
    OK(cuLaunchKernel(drv.verify, 64, 1, 1, 256, 1, 1, 0, NULL, (void *[]){&p, &n, &value, &d}, NULL));
    did.kernel_launches++;
    OK(cuMemcpyDtoH_v2(&wrong, d, 8));
    dev_free(d, 8);
    return wrong;
}
