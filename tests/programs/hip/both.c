/* A process that uses CUDA's driver first, found by name, and HIP after it. */
#include "count.h"
#include "hip_min.h"
#include <dlfcn.h>

int main(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(cuda != NULL, 1);
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = (int (*)(void *))dlsym(cuda, "cuCtxSetCurrent");
    int (*alloc)(void **, size_t) = (int (*)(void **, size_t))dlsym(cuda, "cuMemAlloc_v2");
    int (*release)(void *) = (int (*)(void *))dlsym(cuda, "cuMemFree_v2");
    void *context = NULL, *p = NULL;
    OK(init(0));
    OK(retain(&context, 0));
    OK(current(context));
    for (int i = 0; i < 20; i++) {
        OK(alloc(&p, 4096));
        counted_alloc(DEVICE, 4096);
        OK(release(p));
        counted_free(DEVICE, 4096);
    }
    for (int i = 0; i < 20; i++) {
        OK(hipMalloc(&p, 8192));
        counted_alloc(DEVICE, 8192);
        OK(hipFree(p));
        counted_free(DEVICE, 8192);
    }
    return report("both");
}
