/* Allocates from the bottom of a recursion (first argument: how deep), in a thread
 * whose stack is small (second: KiB), after the GPU is in use. */
#include "count.h"
#include "cuda_min.h"
#include <pthread.h>

static int depth;

__attribute__((noinline)) static void *down(int left) {
    void *p = NULL;
    if (left > 0) {
        p = down(left - 1);
        __asm__ volatile("" ::: "memory"); /* no tail call */
        return p;
    }
    OK(cudaMalloc(&p, 6000));
    counted_alloc(DEVICE, 6000);
    return p;
}

static void *work(void *unused) {
    (void)unused;
    OK(cudaFree(down(depth)));
    counted_free(DEVICE, 6000);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t t;
    pthread_attr_t attr;
    depth = argc > 1 ? atoi(argv[1]) : 100;
    OK(cudaFree(down(0)));
    counted_free(DEVICE, 6000);
    pthread_attr_init(&attr);
    OK(pthread_attr_setstacksize(&attr, (size_t)(argc > 2 ? atoi(argv[2]) : 1024) << 10));
    for (int i = 0; i < 3; i++) {
        if (pthread_create(&t, &attr, work, NULL)) return 2;
        pthread_join(t, NULL);
    }
    return report("deep");
}
