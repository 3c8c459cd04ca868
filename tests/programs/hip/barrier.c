/* hipFree and hipHostFree wait for all work of the device, also for that of streams
 * which the default stream does not wait for. Run with work that starts late. */
#include "count.h"
#include "hip_min.h"

hipError_t hipStreamQuery(hipStream_t);
enum { N = 4096, NOT_READY = 600 };

int main(void) {
    hipStream_t s;
    void *work, *other, *host;
    OK(hipStreamCreateWithFlags(&s, hipStreamNonBlocking));
    OK(hipMalloc(&work, N));
    OK(hipMalloc(&other, N));
    OK(hipHostMalloc(&host, N, 0));
    counted_alloc(DEVICE, N);
    counted_alloc(DEVICE, N);
    counted_alloc(HOST, N);
    OK(hipMemsetAsync(work, 1, N, s));
    EXPECT(hipStreamQuery(s), NOT_READY);
    OK(hipFree(other));
    counted_free(DEVICE, N);
    EXPECT(hipStreamQuery(s), 0);
    OK(hipMemsetAsync(work, 2, N, s));
    EXPECT(hipStreamQuery(s), NOT_READY);
    OK(hipFreeHost(host));
    counted_free(HOST, N);
    EXPECT(hipStreamQuery(s), 0);
    OK(hipMemsetAsync(work, 3, N, s));
    OK(hipFree(work)); /* in use until just now */
    counted_free(DEVICE, N);
    OK(hipStreamDestroy(s));
    return report("barrier");
}
