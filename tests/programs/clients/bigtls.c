/* A program with much thread-local storage, which the C library puts on the stack of each thread. */
#include "count.h"
#include "cuda_min.h"
#include <unistd.h>

static __thread char mine[1 << 20];

int main(void) {
    void *p;
    OK(cudaMalloc(&p, 1000));
    counted_alloc(DEVICE, 1000);
    mine[0] = 1;
    /* Until the thread of the preload has sampled once. */
    usleep(1200000);
    OK(cudaFree(p));
    counted_free(DEVICE, 1000);
    return report("bigtls") || mine[0] != 1;
}
