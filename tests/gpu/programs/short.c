/* A program that ends at once: 20 times two allocations and their frees. It finds the driver by dlopen, so it is built
 * without a toolkit, and runs on the simulator and on a GPU: `start.py` measures it. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

static void *driver;

static void *find(const char *name) {
    void *found = dlsym(driver, name);
    if (!found) exit(2);
    return found;
}

int main(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 2;
    int (*init)(unsigned) = (int (*)(unsigned))find("cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))find("cuDevicePrimaryCtxRetain");
    int (*enter)(void *) = (int (*)(void *))find("cuCtxSetCurrent");
    int (*take)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))find("cuMemAlloc_v2");
    int (*give)(unsigned long long) = (int (*)(unsigned long long))find("cuMemFree_v2");
    unsigned long long p, q;
    void *context;
    int failed = init(0) || retain(&context, 0) || enter(context);
    for (int i = 0; i < 20 && !failed; i++) failed = take(&p, 1 << 20) || take(&q, 3 << 16) || give(p) || give(q);
    return failed;
}
