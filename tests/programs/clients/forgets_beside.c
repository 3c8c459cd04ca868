/* Forgets a block of 64 KiB in each round, beside weights and a cache of 16 blocks that are used by turns. It ends with its
 * input. */
#include "rt.h"
#include <poll.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
static void *volatile weights;
static void *volatile cache[16];

NOINLINE static void *cached(void) {
    void *p;
    OK(cudaMalloc(&p, 256 << 10));
    return p;
}
NOINLINE static void forget(void) {
    void *lost;
    OK(cudaMalloc(&lost, 64 << 10));
}

int main(void) {
    void *p;
    OK(cudaMalloc(&p, 32 << 20));
    weights = p;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    for (unsigned i = 0; poll(&input, 1, 10) == 0; i++) {
        if (cache[i % 16]) OK(cudaFree(cache[i % 16]));
        cache[i % 16] = cached();
        forget();
        if (i == 40) {
            puts("begun");
            fflush(stdout);
        }
    }
    return 0;
}
