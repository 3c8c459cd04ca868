/* Allocations from fresh threads that never had a current context: the runtime
 * makes the primary one current; the driver says 201 and gives nothing. */
#include "rt.h"
#include <pthread.h>

static void *runtime_thread(void *unused) {
    (void)unused;
    CUcontext now = (CUcontext)1;
    void *p = dev_alloc(5000);
    OK(cuCtxGetCurrent(&now));
    EXPECT(now != NULL, 1);
    dev_free(p, 5000);
    return NULL;
}

static void *driver_thread(void *arg) {
    CUdeviceptr p = 42;
    CUcontext now = (CUcontext)1;
    OK(cuCtxGetCurrent(&now));
    EXPECT(now == NULL, 1);
    EXPECT(cuMemAlloc_v2(&p, 4096), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(p, 0); /* Written all the same: H200, driver 580. */
    OK(cuCtxSetCurrent(arg));
    OK(cuMemAlloc_v2(&p, 4096));
    counted_alloc(DEVICE, 4096);
    OK(cuMemFree_v2(p));
    counted_free(DEVICE, 4096);
    return NULL;
}

static void in_thread(void *(*f)(void *), void *arg) {
    pthread_t t;
    if (pthread_create(&t, NULL, f, arg)) exit(2);
    pthread_join(t, NULL);
}

int main(void) {
    CUcontext primary;
    /* Before anything was initialised by this process: the runtime does it. */
    in_thread(runtime_thread, NULL);
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    in_thread(driver_thread, primary);
    in_thread(runtime_thread, NULL);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    return report("noctx");
}
