/* Work of every kind that the simulated driver knows, by the exported names: what each call answers, given
 * what is right and what is not, and what the memory holds afterwards. One line a call. */
#include "drv.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Their names are what the simulator runs them by. */
const char gpumem_ptx[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry gpumem_fill(.param .u64 a, .param .u64 b, .param .u32 c) { ret; }\n"
    ".visible .entry gpumem_verify(.param .u64 a, .param .u64 b, .param .u32 c, .param .u64 d) { ret; }\n";

#define DECLARE(name, ...) extern CUresult name(__VA_ARGS__)
DECLARE(cuLaunchKernel_ptsz, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
DECLARE(cuLaunchCooperativeKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **);
DECLARE(cuStreamAddCallback, void *, void (*)(void *, CUresult, void *), void *, unsigned);
DECLARE(cuMemcpy, CUdeviceptr, CUdeviceptr, size_t);
DECLARE(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, size_t, void *);
DECLARE(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, size_t, void *);
DECLARE(cuMemcpyHtoD_v2_ptds, CUdeviceptr, const void *, size_t);
DECLARE(cuMemcpyPeer, CUdeviceptr, void *, CUdeviceptr, void *, size_t);
DECLARE(cuMemsetD16_v2, CUdeviceptr, unsigned short, size_t);
DECLARE(cuMemsetD2D8_v2, CUdeviceptr, size_t, unsigned char, size_t, size_t);
DECLARE(cuMemsetD2D32Async, CUdeviceptr, size_t, unsigned, size_t, size_t, void *);
DECLARE(cuStreamWriteValue32_v2, void *, CUdeviceptr, unsigned, unsigned);
DECLARE(cuStreamWaitValue32_v2, void *, CUdeviceptr, unsigned, unsigned);
DECLARE(cuStreamWriteValue64_v2, void *, CUdeviceptr, uint64_t, unsigned);
DECLARE(cuStreamAttachMemAsync, void *, CUdeviceptr, size_t, unsigned);
DECLARE(cuMemPrefetchAsync, CUdeviceptr, size_t, int, void *);
struct location { int kind, id; };
DECLARE(cuMemPrefetchAsync_v2, CUdeviceptr, size_t, struct location, unsigned, void *);
DECLARE(cuStreamCreate, void **, unsigned);
DECLARE(cuStreamSynchronize, void *);
DECLARE(cuStreamQuery, void *);
DECLARE(cuStreamWaitEvent, void *, void *, unsigned);
DECLARE(cuEventCreate, void **, unsigned);
DECLARE(cuEventRecord, void *, void *);
DECLARE(cuEventSynchronize, void *);
DECLARE(cuEventRecordWithFlags, void *, void *, unsigned);
DECLARE(cuCtxRecordEvent, void *, void *);
DECLARE(cuCtxWaitEvent, void *, void *);
DECLARE(cuEventQuery, void *);
DECLARE(cuPointerSetAttribute, const void *, int, CUdeviceptr);
DECLARE(cuPointerGetAttribute, void *, int, CUdeviceptr);
DECLARE(cuMemGetAddressRange_v2, CUdeviceptr *, size_t *, CUdeviceptr);
DECLARE(cuMemGetHandleForAddressRange, void *, CUdeviceptr, size_t, int, uint64_t);

#define TELL(call) printf("%s %d\n", #call, call)

static void called(void *stream, CUresult status, void *data) {
    (void)stream;
    *(int *)data += 1 + (int)status;
}

int main(void) {
    enum { N = 1 << 16 };
    static unsigned host[N];
    CUcontext context;
    void *stream, *event, *wrong = (void *)host;
    CUdeviceptr managed = 0, base = 0;
    size_t bytes = 0;
    int calls = 0, fd = -1, on = 1, kind = 0;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, 1));
    OK(cuEventCreate(&event, 0));
    kernels_load();
    CUdeviceptr a = dev_alloc(sizeof host), b = dev_alloc(sizeof host);
    OK(cuMemAllocManaged(&managed, sizeof host, 1));
    uint64_t n = N;
    unsigned value = 7;
    void *params[] = {&a, &n, &value};
    TELL(cuLaunchKernel(drv.fill, 64, 1, 1, 256, 1, 1, 0, stream, params, NULL));
    TELL(cuLaunchKernel_ptsz(drv.fill, 64, 1, 1, 256, 1, 1, 0, NULL, params, NULL));
    TELL(cuLaunchCooperativeKernel(drv.fill, 1, 1, 1, 32, 1, 1, 0, stream, params));
    TELL(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    TELL(cuLaunchKernel(drv.fill, 0, 1, 1, 256, 1, 1, 0, stream, params, NULL));
    TELL(cuLaunchKernel(drv.fill, 1, 1, 1, 1, 1, 1, 0, wrong, params, NULL));
    TELL(cuStreamAddCallback(stream, called, &calls, 0));
    TELL(cuMemcpyDtoDAsync_v2(b, a, sizeof host, stream));
    TELL(cuMemcpyAsync(b, a, sizeof host, stream));
    TELL(cuMemcpyDtoDAsync_v2(b, 8, sizeof host, stream));
    TELL(cuStreamSynchronize(stream));
    printf("called %d\n", calls);
    printf("wrong %d\n", (int)mismatches_of(b, n, value));
    TELL(cuMemcpy(a, b, 4096));
    TELL(cuMemcpyPeer(a, context, b, context, 4096));
    TELL(cuMemcpyPeer(a, wrong, b, context, 4096));
    TELL(cuMemcpyHtoD_v2_ptds(a, host, sizeof host));
    TELL(cuMemsetD16_v2(a, 0x101, 2 * N));
    TELL(cuMemsetD2D8_v2(a, 256, 2, 256, 16));
    TELL(cuCtxSynchronize());
    TELL(cuMemsetD2D32Async(a, 1024, 3, 256, 16, stream));
    TELL(cuMemsetD16_v2(a + 1, 1, 1));
    TELL(cuStreamWriteValue32_v2(stream, b, 5, 0));
    TELL(cuStreamWaitValue32_v2(stream, b, 5, 0));
    TELL(cuStreamWriteValue64_v2(stream, b + 8, 6, 0));
    TELL(cuStreamAttachMemAsync(stream, managed, 0, 4));
    TELL(cuMemPrefetchAsync(managed, sizeof host, 0, stream));
    TELL(cuMemPrefetchAsync_v2(managed, sizeof host, (struct location){1, 0}, 0, stream));
    TELL(cuEventRecordWithFlags(event, stream, 0));
    TELL(cuEventRecord(event, wrong));
    TELL(cuStreamWaitEvent(NULL, event, 0));
    TELL(cuCtxRecordEvent(context, event));
    TELL(cuCtxWaitEvent(context, event));
    TELL(cuEventSynchronize(event));
    TELL(cuEventQuery(event));
    TELL(cuCtxSynchronize());
    TELL(cuStreamQuery(stream));
    TELL(cuStreamQuery(wrong));
    OK(cuMemcpyDtoH_v2(host, a, sizeof host));
    printf("holds %u %u %u\n", host[0], host[256 * 16], host[N - 1]);
    TELL(cuPointerSetAttribute(&on, 6, a));
    TELL(cuPointerSetAttribute(&on, 6, 8));
    TELL(cuPointerGetAttribute(&kind, 2, a));
    printf("kind %d\n", kind);
    TELL(cuMemGetAddressRange_v2(&base, &bytes, a + 12));
    printf("range %d %zu\n", base == a, bytes);
    TELL(cuMemGetAddressRange_v2(&base, &bytes, 8));
    TELL(cuMemGetHandleForAddressRange(&fd, a, sizeof host, 1, 0));
    printf("closes %d\n", close(fd));
    TELL(cuMemGetHandleForAddressRange(&fd, a + 8, 4096, 1, 0));
    TELL(cuMemGetHandleForAddressRange(&fd, a, sizeof host + 4096, 1, 0));
    OK(cuMemFree_v2(managed));
    dev_free(a, sizeof host);
    dev_free(b, sizeof host);
    return 0;
}
