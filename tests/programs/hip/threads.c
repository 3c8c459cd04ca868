/* The first HIP call, by eight threads at once; then each goes on alone. */
#include "count.h"
#include "hip_min.h"
#include <pthread.h>

static pthread_barrier_t start;

static void *body(void *arg) {
    size_t bytes = 1000 + 8 * (size_t)arg;
    pthread_barrier_wait(&start);
    for (int i = 0; i < 20; i++) {
        void *p, *host;
        OK(hipMalloc(&p, bytes));
        counted_alloc(DEVICE, bytes);
        OK(hipMallocHost(&host, bytes));
        counted_alloc(HOST, bytes);
        OK(hipFreeHost(host));
        counted_free(HOST, bytes);
        OK(hipFree(p));
        counted_free(DEVICE, bytes);
    }
    return NULL;
}

int main(void) {
    pthread_t t[8];
    pthread_barrier_init(&start, NULL, 8);
    for (size_t i = 0; i < 8; i++) OK(pthread_create(&t[i], NULL, body, (void *)i));
    for (int i = 0; i < 8; i++) pthread_join(t[i], NULL);
    return report("threads");
}
