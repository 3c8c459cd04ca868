/* Takes 452 MiB of the device from three functions, frees what a fourth took, then asks for what may not
 * fit. Arguments: how often (1 by default), MiB (128), MiB that the fourth takes and frees before (0). */
#include "count.h"
#include "cuda_min.h"

enum { MIB = 1 << 20 };
#define NOINLINE __attribute__((noinline))

static void *take(size_t bytes) {
    void *p = NULL;
    if (cudaMalloc(&p, bytes)) {
        (void)cudaGetLastError();
        return NULL;
    }
    counted_alloc(DEVICE, bytes);
    return p;
}
NOINLINE static void *big(void) { void *p = take(64 * MIB); __asm__ volatile(""); return p; }
NOINLINE static void *middle(void) { void *p = take(32 * MIB); __asm__ volatile(""); return p; }
NOINLINE static void *small(void) { void *p = take(2 * MIB); __asm__ volatile(""); return p; }
NOINLINE static void *ask(size_t bytes) { void *p = take(bytes); __asm__ volatile(""); return p; }

static void give(void *p, size_t bytes) {
    if (!p) return;
    OK(cudaFree(p));
    counted_free(DEVICE, bytes);
}

int main(int argc, char **argv) {
    long times = argc > 1 ? atol(argv[1]) : 1;
    size_t asked = (argc > 2 ? (size_t)atol(argv[2]) : 128) * MIB, before = (argc > 3 ? (size_t)atol(argv[3]) : 0) * MIB;
    void *bigs[4], *middles[3], *smalls[50];
    if (before) give(ask(before), before);
    /* Unrolled, each would be a call site of its own. */
#pragma GCC unroll 0
    for (int i = 0; i < 4; i++) bigs[i] = big();
#pragma GCC unroll 0
    for (int i = 0; i < 3; i++) middles[i] = middle();
#pragma GCC unroll 0
    for (int i = 0; i < 50; i++) smalls[i] = small();
    long refused = 0;
    for (long i = 0; i < times; i++) {
        void *p = ask(asked);
        refused += !p;
        give(p, asked);
    }
    for (int i = 0; i < 4; i++) give(bigs[i], 64 * MIB);
    for (int i = 0; i < 3; i++) give(middles[i], 32 * MIB);
    for (int i = 0; i < 50; i++) give(smalls[i], 2 * MIB);
    char more[64];
    snprintf(more, sizeof more, ",\"refused\":%ld", refused);
    return report_more("holders", more);
}
