/* Allocations of every HIP kind, filled, checked, freed. Without a device (the
 * real library on a machine without one) it checks instead that the errors are
 * the library's own: 100 from the count, an error from each allocation. */
#include "count.h"
#include "hip_min.h"
#include <string.h>

enum { N = 300000 };
static unsigned char host[N];

static void *alloc(size_t bytes) {
    void *p = NULL;
    OK(hipMalloc(&p, bytes));
    counted_alloc(DEVICE, bytes);
    return p;
}
static void release(void *p, size_t bytes) {
    OK(hipFree(p));
    counted_free(DEVICE, bytes);
}
static int wrong_bytes(const void *p, unsigned char want) {
    int wrong = 0;
    memset(host, want + 1, N);
    OK(hipMemcpy(host, p, N, hipMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) wrong += host[i] != want;
    return wrong;
}

static int without_device(int rc) {
    void *p = (void *)0x5ca1ab1e;
    EXPECT(rc, hipErrorNoDevice);
    EXPECT(hipMalloc(&p, 4096) != 0, 1);
    EXPECT(p == (void *)0x5ca1ab1e || p == NULL, 1);
    EXPECT(hipFree((void *)0x1000) != 0, 1);
    return report_more("hip_basic", ",\"device\":false");
}

int main(void) {
    int count = 0, rc = hipGetDeviceCount(&count);
    if (rc != 0 || count == 0) return without_device(rc);

    void *a = alloc(N), *b = alloc(N), *p;
    OK(hipMemset(a, 7, N));
    OK(hipMemcpy(b, a, N, hipMemcpyDeviceToDevice));
    EXPECT(wrong_bytes(b, 7), 0);

    size_t pitch = 0;
    OK(hipMallocPitch(&p, &pitch, 1000, 20));
    counted_alloc(DEVICE, pitch * 20);
    EXPECT(pitch >= 1000, 1);
    release(p, pitch * 20);

    OK(hipMallocManaged(&p, N, 1));
    counted_alloc(MANAGED, N);
    OK(hipMemset(p, 9, N));
    OK(hipDeviceSynchronize());
    EXPECT(((unsigned char *)p)[N - 1], 9);
    OK(hipFree(p));
    counted_free(MANAGED, N);

    OK(hipHostMalloc(&p, N, 0));
    counted_alloc(HOST, N);
    memset(p, 11, N);
    OK(hipMemcpy(a, p, N, hipMemcpyHostToDevice));
    EXPECT(wrong_bytes(a, 11), 0);
    OK(hipHostFree(p));
    counted_free(HOST, N);

    p = aligned_alloc(4096, 4096 * 4);
    if (!p) exit(2);
    OK(hipHostRegister(p, 4096 * 4, 0));
    counted_alloc(REGISTERED, 4096 * 4);
    OK(hipHostUnregister(p));
    counted_free(REGISTERED, 4096 * 4);
    free(p);

    hipStream_t s;
    OK(hipStreamCreateWithFlags(&s, hipStreamNonBlocking));
    OK(hipMallocAsync(&p, N, s));
    counted_alloc(ASYNC, N);
    OK(hipMemsetAsync(p, 13, N, s));
    OK(hipMemcpyAsync(b, p, N, hipMemcpyDeviceToDevice, s));
    OK(hipFreeAsync(p, s));
    counted_free(ASYNC, N);
    OK(hipStreamSynchronize(s));
    EXPECT(wrong_bytes(b, 13), 0);
    OK(hipStreamDestroy(s));

    release(b, N);
    EXPECT(hipFree(NULL), 0);
    EXPECT(hipFree((char *)a + 64) != 0, 1); /* interior */
    p = (void *)0x5ca1ab1e;
    EXPECT(hipMalloc(&p, 1ull << 50), hipErrorOutOfMemory);
    EXPECT(hipMalloc(NULL, 64), hipErrorInvalidValue);
    (void)hipGetLastError();
    release(a, N);
    EXPECT(hipFree(a) != 0, 1); /* twice */
    return report_more("hip_basic", ",\"device\":true");
}
