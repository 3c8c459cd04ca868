/* Live allocations while the disk of the ledger fills up, its pages are read by others, pushed out and
 * written again. `full_disk N`; the shell command in $FILL fills the disk, the one in $LOOK reads it. */
#include "count.h"
#include "cuda_min.h"
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

static void run(const char *variable) {
    if (getenv(variable)) OK(system(getenv(variable)));
}

/* Writes the mapped files of the shim back, has their pages taken away, and lets somebody read the files: the
 * kernel then holds them in larger parts than it did. */
static void push_out(void) {
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if ((strstr(line, ".ledger") || strstr(line, ".trace")) && sscanf(line, "%lx-%lx", &from, &to) == 2) {
            msync((void *)from, to - from, MS_SYNC);
            madvise((void *)from, to - from, MADV_PAGEOUT);
        }
    }
    if (maps) fclose(maps);
    run("LOOK");
}

static void allocate(void **p, long n) {
    for (long i = 0; i < n; i++) {
        OK(cudaMalloc(&p[i], 512));
        counted_alloc(DEVICE, 512);
    }
}

static void release(void **p, long n) {
    for (long i = 0; i < n; i++) {
        OK(cudaFree(p[i]));
        counted_free(DEVICE, 512);
    }
}

int main(int argc, char **argv) {
    long n = argc > 1 ? atol(argv[1]) : 6000;
    void **p = calloc(2 * (size_t)n, sizeof *p);
    allocate(p, n);
    push_out();
    run("FILL");
    allocate(p + n, n);
    push_out();
    release(p, 2 * n);
    allocate(p, 2 * n);
    push_out();
    release(p, 2 * n);
    free(p);
    return report("full_disk");
}
