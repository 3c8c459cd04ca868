/* How long it takes to show an allocation to other processes by an address inside of it, beside few live allocations and
 * beside many: `pool_shown MANY`. Says the median of each, in nanoseconds of the thread's own. */
#include "pool.h"

enum { FEW = 100, BLOCK = 8 * KIB, INSIDE = 4 * KIB, CALLS = 50 };

static uint64_t own_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
static int by_size(const void *a, const void *b) {
    uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return (one > other) - (one < other);
}
static uint64_t median(const CUdeviceptr *all, size_t count) {
    uint64_t took[CALLS];
    for (size_t i = 0; i < CALLS; i++) {
        cudaIpcMemHandle_t handle;
        uint64_t begin = own_time();
        OK(cuIpcGetMemHandle(&handle, all[(i * 7919 + 1) % count] + INSIDE));
        took[i] = own_time() - begin;
    }
    qsort(took, CALLS, sizeof *took, by_size);
    return took[CALLS / 2];
}

int main(int argc, char **argv) {
    size_t many = argc > 1 ? strtoul(argv[1], NULL, 10) : 10000;
    begin();
    CUdeviceptr *all = calloc(many, sizeof *all);
    for (size_t i = 0; i < FEW; i++) OK(cuMemAlloc_v2(&all[i], BLOCK));
    uint64_t few = median(all, FEW);
    for (size_t i = FEW; i < many; i++) OK(cuMemAlloc_v2(&all[i], BLOCK));
    printf("{\"few_ns\": %llu, \"many_ns\": %llu}\n", (unsigned long long)few, (unsigned long long)median(all, many));
    fflush(stdout);
    _exit(0);
}
