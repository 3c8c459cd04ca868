/* A call site that asks for 6 % more in each step, in the middle of a computation, and keeps all that it has.
 * `pool_creep USE`: how the older buffers are used in each step
 *   none    not at all: they are stranded
 *   kernel  packed  attributes  cooperative  runtime  fill  copy  rows  volume
 *           by arguments of kernels, by pointers or in one buffer, of a library's kernel through the runtime;
 *           by fills, by copies
 * When a request fails all but the newest buffer are freed, and the same is asked for again. */
#include "pool.h"

enum { STEPS = 24, WORDS = 256 };

typedef struct { size_t v[16]; } Copy2d;
typedef struct { size_t v[25]; } Copy3d;
typedef struct { unsigned grid[3], block[3], shared; Stream stream; void *attributes; unsigned count; } Config;
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, size_t, Stream), cuMemcpy2DAsync_v2(const Copy2d *, Stream);
CUresult cuMemcpy3DAsync_v2(const Copy3d *, Stream), cuLaunchKernelEx(const Config *, CUfunction, void **, void **);
CUresult cuLaunchCooperativeKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void **);

static int failures;
static cudaLibrary_t library;
static cudaKernel_t fill;

__attribute__((noinline)) static CUresult grow(CUdeviceptr *p, size_t bytes) {
    CUresult rc = alloc_any(p, bytes);
    __asm__ volatile("");
    return rc;
}

static void use(const char *how, CUdeviceptr p, CUdeviceptr scratch, Stream s, unsigned value) {
    uint64_t words = WORDS;
    void *params[] = {&p, &words, &value};
    struct { CUdeviceptr p; uint64_t words; unsigned value; } packed = {p, WORDS, value};
    size_t bytes = 20; /* without what the compiler adds at the end: the driver refuses more than it takes */
    void *extra[] = {(void *)1, &packed, (void *)2, &bytes, (void *)0};
    /* Offsets are those of CUDA_MEMCPY2D_v2 and CUDA_MEMCPY3D_v2; 2: device memory. */
    Copy2d rows = {{[2] = 2, [4] = p, [6] = 512, [9] = 2, [11] = scratch, [13] = 512, [14] = 512, [15] = 2}};
    Copy3d volume = {{[4] = 2, [6] = p, [9] = 512, [10] = 2, [15] = 2, [17] = scratch, [20] = 512, [21] = 2, [22] = 512, [23] = 2, [24] = 1}};
    Config config = {.grid = {4, 1, 1}, .block = {64, 1, 1}, .stream = s};
    if (!strcmp(how, "kernel")) OK(cuLaunchKernel(gpu.fill, 4, 1, 1, 64, 1, 1, 0, s, params, NULL));
    else if (!strcmp(how, "packed")) OK(cuLaunchKernel(gpu.fill, 4, 1, 1, 64, 1, 1, 0, s, NULL, extra));
    else if (!strcmp(how, "attributes")) OK(cuLaunchKernelEx(&config, gpu.fill, params, NULL));
    else if (!strcmp(how, "cooperative")) OK(cuLaunchCooperativeKernel(gpu.fill, 4, 1, 1, 64, 1, 1, 0, s, params));
    else if (!strcmp(how, "runtime")) OK(cudaLaunchKernel((const void *)fill, (dim3){4, 1, 1}, (dim3){64, 1, 1}, params, 0, (cudaStream_t)s));
    else if (!strcmp(how, "fill")) OK(cuMemsetD32Async(p + 4096, value, WORDS, s));
    else if (!strcmp(how, "copy")) OK(cuMemcpyDtoDAsync_v2(scratch, p, 4 * WORDS, s));
    else if (!strcmp(how, "rows")) OK(cuMemcpy2DAsync_v2(&rows, s));
    else if (!strcmp(how, "volume")) OK(cuMemcpy3DAsync_v2(&volume, s));
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "none";
    CUdeviceptr p[STEPS] = {0};
    size_t bytes[STEPS] = {4 * MIB};
    begin();
    Stream s = stream_new(1);
    CUdeviceptr scratch = get(64 * KIB);
    OK(cudaLibraryLoadData(&library, gpumem_ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cudaLibraryGetKernel(&fill, library, "gpumem_fill"));
#pragma GCC unroll 0
    for (int i = 0; i < STEPS; i++) {
        if (i > 0) bytes[i] = (bytes[i - 1] + bytes[i - 1] / 16 + 255) / 256 * 256;
        OK(k_spin(&gpu, s, 0));
        CUresult rc = grow(&p[i], bytes[i]);
        if (rc) {
            EXPECT(rc, 2);
            failures++;
            OK(cuCtxSynchronize());
            for (int k = 0; k < i; k++)
                if (p[k]) give(p[k], bytes[k]), p[k] = 0;
            OK(grow(&p[i], bytes[i]));
        }
        for (int k = 0; k <= i; k++)
            if (p[k] && (k == i || strcmp(how, "none"))) use(k == i ? "kernel" : how, p[k], scratch, s, (unsigned)k);
        OK(cuStreamSynchronize(s));
    }
    for (int i = 0; i < STEPS; i++)
        if (p[i]) give(p[i], bytes[i]);
    give(scratch, 64 * KIB);
    OK(cuStreamDestroy_v2(s));
    OK(cuCtxSynchronize());
    OK(cudaLibraryUnload(library));
    give(gpu.counter, 8);
    char more[64];
    snprintf(more, sizeof more, ",\"pool_failures\":%d", failures);
    return report_more("pool_creep", more);
}
