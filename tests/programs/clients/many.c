/* N live allocations of a size each, then all freed. `many N [BYTES]` */
#include "count.h"
#include "cuda_min.h"

int main(int argc, char **argv) {
    long n = argc > 1 ? atol(argv[1]) : 1000;
    size_t bytes = argc > 2 ? (size_t)atol(argv[2]) : 256;
    void **p = calloc((size_t)n, sizeof *p);
    if (!p) exit(2);
    for (int round = 0; round < 2; round++) {
        for (long i = 0; i < n; i++) {
            OK(cudaMalloc(&p[i], bytes));
            counted_alloc(DEVICE, bytes);
        }
        for (long i = 0; i < n; i++) {
            OK(cudaFree(p[i]));
            counted_free(DEVICE, bytes);
        }
    }
    free(p);
    return report("many");
}
