/* An interposer between two copies of gpumem in LD_PRELOAD, as a profiler is: it finds the next function by RTLD_NEXT. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>

int between_calls;

/* The C library says why it finds nothing, also where only copies of gpumem have the name. */
static void *next(const char *name) {
    static int asked;
    if (!asked++ && (dlerror(), dlsym(RTLD_NEXT, "hipMalloc") || !dlerror())) _exit(77);
    if (++between_calls > 1000) _exit(78);
    /* Not a tail call: the return address must lie here. */
    void *volatile found = dlsym(RTLD_NEXT, name);
    /* Programs of the runtime have no driver in the global scope. */
    if (!found) found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
    return found;
}

int cudaMalloc(void **p, size_t bytes) {
    int (*real)(void **, size_t) = (int (*)(void **, size_t))next("cudaMalloc");
    return real ? real(p, bytes) : 999;
}

int cuMemAlloc_v2(unsigned long long *p, size_t bytes) {
    int (*real)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))next("cuMemAlloc_v2");
    return real ? real(p, bytes) : 999;
}
