/* Takes the runtime's calls of its own names, as any preloaded library could: what
 * is exported here comes first in the global scope. */
#define _GNU_SOURCE
#include "hip_min.h"
#include <dlfcn.h>
#include <stdio.h>

static int mallocs, host_mallocs, host_frees, instantiates;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
hipError_t hipMalloc(void **p, size_t n) { return mallocs++, REAL(hipMalloc)(p, n); }
hipError_t hipHostMalloc(void **p, size_t n, unsigned f) { return host_mallocs++, REAL(hipHostMalloc)(p, n, f); }
hipError_t hipHostFree(void *p) { return host_frees++, REAL(hipHostFree)(p); }
hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t *e, hipGraph_t g, unsigned long long f) {
    return instantiates++, REAL(hipGraphInstantiateWithFlags)(e, g, f);
}

int main(void) {
    void *p;
    size_t pitch;
    hipGraph_t g;
    hipGraphExec_t e;
    int rc = hipMemAllocPitch(&p, &pitch, 10, 10, 4) | hipFree(p);
    rc |= hipMallocHost(&p, 10) | hipFreeHost(p);
    rc |= hipGraphCreate(&g, 0) | hipGraphInstantiate(&e, g, NULL, NULL, 0) | hipGraphExecDestroy(e) | hipGraphDestroy(g);
    printf("%d: %d %d %d %d\n", rc, mallocs, host_mallocs, host_frees, instantiates);
    return 0;
}
