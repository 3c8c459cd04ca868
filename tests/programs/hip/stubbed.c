/* Linked to a stub that exports hipMalloc, then to the runtime: hipMalloc is the
 * stub's, also where the runtime calls it itself; hipFree and all else the runtime's. */
#include "hip_min.h"
#include <stdio.h>

extern int stub_calls;

int main(void) {
    void *p = NULL, *host = NULL, *managed = NULL, *pitched = NULL;
    size_t pitch = 0;
    int a = hipMalloc(&p, 42), b = hipMalloc(&p, 4096);
    int c = hipMallocHost(&host, 100), d = hipFreeHost(host), e = hipFree(p);
    int f = hipMallocManaged(&managed, 200, 1), g = hipFree(managed);
    int h = hipMallocPitch(&pitched, &pitch, 100, 10);
    printf("%d %d %p %d %d %d %d %d %d %p calls %d\n", a, b, p, c, d, e, f, g, h, pitched, stub_calls);
    return 0;
}
