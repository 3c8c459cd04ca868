/* Allocates, uses and frees the same eight blocks three times, keeps one of them, says so and
 * waits until stdin ends. Arguments: nothing. */
#include "count.h"
#include "cuda_min.h"
#include <unistd.h>

int main(void) {
    enum { BLOCKS = 8, ROUNDS = 3, BYTES = 4 << 20 };
    void *p[BLOCKS];
    char byte;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            OK(cudaMalloc(&p[i], BYTES));
            counted_alloc(DEVICE, BYTES);
            OK(cudaMemset(p[i], i, BYTES));
        }
        for (int i = 0; i < BLOCKS; i++) {
            if (round == ROUNDS - 1 && i == 0) continue;
            OK(cudaFree(p[i]));
            counted_free(DEVICE, BYTES);
        }
    }
    report("idle");
    while (read(0, &byte, 1) < 0) {}
    OK(cudaFree(p[0]));
    counted_free(DEVICE, BYTES);
    return report("idle");
}
