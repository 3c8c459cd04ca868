/* Memory runs out in several threads at once. `pool_full MODE`:
 *   shared    three threads allocate and free in one context, where there is room for all of them
 *   contexts  three threads make contexts, work, and destroy them, while a fourth asks for more than there is */
#include "pool.h"

enum { THREADS = 3, BLOCK = 64 * MIB, ROUNDS = 1500, LIVES = 60, KEPT = 8 };

static atomic_long refused;
static atomic_int over;

static void *share(void *unused) {
    OK(cuCtxSetCurrent(gpu.context));
    Stream s = stream_new(1);
    for (int i = 0; i < ROUNDS; i++) {
        CUdeviceptr p = 0;
        CUresult rc = cuMemAlloc_v2(&p, BLOCK);
        if (rc) {
            refused++;
            continue;
        }
        OK(k_fill(&gpu, s, p, 16, 1));
        OK(cuStreamSynchronize(s));
        OK(cuMemFree_v2(p));
    }
    OK(cuStreamDestroy_v2(s));
    return unused;
}

static void *live(void *number) {
    unsigned seed = 7919 * (unsigned)(size_t)number;
    for (int round = 0; round < LIVES; round++) {
        CUcontext context;
        OK(cuCtxCreate_v2(&context, 0, 0));
        Gpu own = fitted(context);
        Stream s = stream_new(1);
        CUdeviceptr p[KEPT] = {0};
        for (int k = 0; k < 12; k++) {
            int i = rand_r(&seed) % KEPT;
            if (p[i]) {
                OK(k_spin(&own, s, (unsigned)rand_r(&seed) % 2));
                OK(k_fill(&own, s, p[i], 64, 1));
                give(p[i], (size_t)(1 + i) * MIB / 2);
                p[i] = 0;
            } else {
                p[i] = get((size_t)(1 + i) * MIB / 2);
                OK(k_fill(&own, s, p[i], 64, 77));
                EXPECT(wrong_words(&own, s, p[i], 64, 77), 0);
            }
        }
        for (int i = 0; i < KEPT; i++)
            if (p[i]) give(p[i], (size_t)(1 + i) * MIB / 2);
        give(own.counter, 8);
        OK(cuCtxDestroy_v2(context));
    }
    return NULL;
}

static void *ask_too_much(void *unused) {
    OK(cuCtxSetCurrent(gpu.context));
    while (!over) {
        CUdeviceptr p = 0;
        EXPECT(cuMemAlloc_v2(&p, (size_t)1 << 45), 2);
    }
    return unused;
}

int main(int argc, char **argv) {
    int contexts = argc > 1 && !strcmp(argv[1], "contexts");
    begin();
    pthread_t threads[THREADS], hog;
    if (contexts) pthread_create(&hog, NULL, ask_too_much, NULL);
    for (size_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, contexts ? live : share, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    over = 1;
    if (contexts) pthread_join(hog, NULL);
    fprintf(stderr, "refused %ld\n", refused);
    return end("pool_full");
}
