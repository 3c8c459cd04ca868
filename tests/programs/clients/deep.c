/* Allocates from the bottom of a recursion (first argument: how deep), in a thread
 * whose stack is small (second: KiB), after the GPU is in use. Below that stack's guard page lies other memory,
 * as other threads' stacks do (third argument: anything). */
#include "count.h"
#include "cuda_min.h"
#include <pthread.h>
#include <sys/mman.h>

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

/* A stack of so many bytes above a guard page above other memory. */
static void *stack_with_a_neighbour(size_t bytes) {
    enum { BELOW = 256 << 10, GUARD = 4096 };
    char *low = mmap(NULL, BELOW + GUARD + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (low == MAP_FAILED || mprotect(low + BELOW, GUARD, PROT_NONE)) exit(2);
    for (size_t i = 0; i < BELOW; i += 4096) low[i] = 1;
    return low + BELOW + GUARD;
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
    size_t bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 1024) << 10;
    OK(pthread_attr_setstacksize(&attr, bytes));
    for (int i = 0; i < 3; i++) {
        if (argc > 3) OK(pthread_attr_setstack(&attr, stack_with_a_neighbour(bytes), bytes));
        if (pthread_create(&t, &attr, work, NULL)) return 2;
        pthread_join(t, NULL);
    }
    return report("deep");
}
