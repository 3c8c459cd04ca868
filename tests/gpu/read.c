/* How fast device memory can be read, natively; and memory for `gpumem leaks --suspect` to read.
 *
 *     read GIB
 *
 * Takes GIB gibibytes in blocks of 1 GiB, and copies between them. Prints {"gib": .., "read_gb_s": ..} and waits until its
 * input ends. A copy reads each byte once and writes it once, so reading alone is counted as half of its time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef unsigned long long CUdeviceptr;
typedef int fn();
enum { MOST = 256, COPIES = 9 };
static const size_t BLOCK = (size_t)1 << 30;

static void *driver;
static fn *symbol(const char *name) {
    fn *found = (fn *)dlsym(driver, name);
    if (!found) fprintf(stderr, "read: the driver has no %s\n", name), exit(2);
    return found;
}
static void must(int code, const char *what) {
    if (code) fprintf(stderr, "read: %s gave %d\n", what, code), exit(2);
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int gib = argc > 1 ? atoi(argv[1]) : 8, device;
    if (gib < 2 || gib > MOST) return fprintf(stderr, "read: 2 to %d GiB, not %d\n", MOST, gib), 2;
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!driver) return fprintf(stderr, "read: %s\n", dlerror()), 2;
    fn *copy = symbol("cuMemcpyDtoDAsync_v2"), *wait = symbol("cuCtxSynchronize"), *fill = symbol("cuMemsetD8_v2");
    void *context;
    must(symbol("cuInit")(0), "cuInit");
    must(symbol("cuDeviceGet")(&device, 0), "cuDeviceGet");
    must(symbol("cuDevicePrimaryCtxRetain")(&context, device), "cuDevicePrimaryCtxRetain");
    must(symbol("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
    static CUdeviceptr blocks[MOST];
    for (int i = 0; i < gib; i++) {
        must(symbol("cuMemAlloc_v2")(&blocks[i], BLOCK), "cuMemAlloc");
        must(fill(blocks[i], i, BLOCK), "cuMemsetD8");
    }
    double seconds[COPIES];
    for (int turn = 0; turn < COPIES; turn++) {
        must(wait(), "cuCtxSynchronize");
        double start = now();
        for (int i = 0; i + 1 < gib; i += 2) must(copy(blocks[i], blocks[i + 1], BLOCK, NULL), "cuMemcpyDtoDAsync");
        must(wait(), "cuCtxSynchronize");
        seconds[turn] = now() - start;
    }
    qsort(seconds, COPIES, sizeof *seconds, by_size);
    double read = (double)(gib / 2) * (double)BLOCK / (seconds[COPIES / 2] / 2);
    printf("{\"gib\": %d, \"read_gb_s\": %.1f}\n", gib, read / 1e9);
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}
