/* A preload: each large host allocation also allocates device memory, which is kept. Under it a PyTorch without a GPU
 * makes recorded calls from the stacks that a GPU's allocator has.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

enum { LARGE = 200000, MIRRORED = 256 << 10 };
typedef int (*alloc_fn)(unsigned long long *, size_t);

static alloc_fn ready(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *context;
    if (!driver) return NULL;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
    if (init(0) || retain(&context, 0) || set(context)) return NULL;
    return (alloc_fn)dlsym(driver, "cuMemAlloc_v2");
}

int posix_memalign(void **memory, size_t align, size_t bytes) {
    static __thread int inside;
    static alloc_fn alloc;
    void *got = aligned_alloc(align, (bytes + align - 1) / align * align);
    if (!got) return ENOMEM;
    *memory = got;
    if (bytes >= LARGE && !inside && getenv("MIRROR")) {
        unsigned long long device;
        inside = 1;
        if (!alloc) alloc = ready();
        if (alloc) alloc(&device, MIRRORED);
        inside = 0;
    }
    return 0;
}
