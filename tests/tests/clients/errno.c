/* errno after allocations and frees that succeed, while threads come, free and end. Whoever sets it to 0
 * before a call expects 0 after it. Arguments: nothing. */
#include "count.h"
#include "cuda_min.h"
#include <errno.h>
#include <pthread.h>

enum { THREADS = 300, BLOCKS = 8 };

static void *work(void *unused) {
    void *p[BLOCKS];
    (void)unused;
    for (size_t i = 0; i < BLOCKS; i++) {
        errno = 0;
        OK(cudaMalloc(&p[i], 1000 * (i + 1)));
        EXPECT(errno, 0);
        counted_alloc(DEVICE, 1000 * (i + 1));
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        errno = 0;
        OK(cudaFree(p[i]));
        EXPECT(errno, 0);
        counted_free(DEVICE, 1000 * (i + 1));
    }
    return NULL;
}

int main(void) {
    for (int i = 0; i < THREADS; i++) {
        pthread_t t;
        if (pthread_create(&t, NULL, work, NULL)) return 2;
        pthread_join(t, NULL);
    }
    return report("errno");
}
