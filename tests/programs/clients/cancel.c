/* A thread that is cancelled, with the cancellation pending, allocates until the program gives it a place to end. */
#include "count.h"
#include "cuda_min.h"
#include <pthread.h>
#include <stdatomic.h>

enum { BLOCKS = 2000 };
static CUcontext context;
static CUdeviceptr p[BLOCKS];
static atomic_int made, freed, go;

static void give_back(void *arg) {
    (void)arg;
    freed = made;
}
static void *worker(void *arg) {
    (void)arg;
    OK(cuCtxSetCurrent(context));
    pthread_cleanup_push(give_back, NULL);
    while (!go) {}
    for (int i = 0; i < BLOCKS; i++, made++) OK(cuMemAlloc_v2(&p[i], 4096 + (size_t)(i % 7) * 512));
    pthread_testcancel();
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void) {
    pthread_t t;
    void *end;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    if (pthread_create(&t, NULL, worker, NULL)) return 2;
    pthread_cancel(t);
    go = 1;
    pthread_join(t, &end);
    printf("%s after %d\n", end == PTHREAD_CANCELED ? "cancelled" : "returned", freed);
    for (int i = 0; i < made; i++) OK(cuMemFree_v2(p[i]));
    return did.failures;
}
