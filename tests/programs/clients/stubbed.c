/* Linked to a stub that exports cudaMalloc, then to the runtime: cudaMalloc is the
 * stub's, cudaFree and all else the runtime's. */
#include "cuda_min.h"
#include <stdio.h>

extern int stub_calls;

int main(void) {
    void *p = NULL, *pitched = NULL;
    size_t pitch = 0;
    int a = cudaMalloc(&p, 42), b = cudaMalloc(&p, 4096);
    int c = cudaMallocPitch(&pitched, &pitch, 100, 10), d = cudaFree(pitched), e = cudaFree(p);
    printf("%d %d %p %d %d %d calls %d\n", a, b, p, c, d, e, stub_calls);
    return 0;
}
