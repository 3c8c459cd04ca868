/* Threads that allocate and free at the same call stacks, forty of them by turns: as many threads and rounds as
 * asked. With a third argument, all of it goes on for ever. */
#include "count.h"
#include "cuda_min.h"
#include <pthread.h>

enum { STACKS = 40, BYTES = 8192 };
static int rounds, for_ever;

__attribute__((noinline, noclone)) static void pair(int depth) {
    if (depth) {
        pair(depth - 1);
        __asm__ volatile("" ::: "memory"); /* no tail call: each depth is a frame */
        return;
    }
    void *p = NULL;
    EXPECT(cudaMalloc(&p, BYTES), 0);
    EXPECT(cudaFree(p), 0);
    counted_alloc(DEVICE, BYTES);
    counted_free(DEVICE, BYTES);
}
static void *worker(void *arg) {
    for (int i = 0; i < rounds || for_ever; i++)
        for (int depth = 0; depth < STACKS; depth++) pair(depth);
    return arg;
}

int main(int argc, char **argv) {
    pthread_t threads[128];
    int n = atoi(argv[1]);
    rounds = atoi(argv[2]);
    for_ever = argc > 3;
    for (int i = 0; i < n; i++) pthread_create(&threads[i], NULL, worker, NULL);
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    return report("sites");
}
