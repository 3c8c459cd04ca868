/* A backend as ggml's: linked to the HIP runtime, itself loaded for its loader alone. */
#include "hip_min.h"

int plugin_run(size_t bytes) {
    void *p, *host;
    int rc = hipMalloc(&p, bytes) | hipMallocHost(&host, bytes);
    rc |= hipMemset(p, 1, bytes) | hipMemcpy(host, p, bytes, hipMemcpyDeviceToHost);
    rc |= ((unsigned char *)host)[bytes - 1] != 1;
    return rc | hipFreeHost(host) | hipFree(p);
}
