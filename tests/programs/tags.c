/* Tagged regions and the program's own sub-allocations, through gpumem.h: nested,
 * on several threads, unbalanced, and without the preload, where each call is
 * nothing. Prints how many bytes were allocated under each tag. An argument is
 * the number of seconds to hold everything before it is freed. */
#include "rt.h"
#include <gpumem.h>
#include <pthread.h>
#include <unistd.h>

enum { WEIGHTS = 5 << 20, KV = 3 << 20, PAGE = 1 << 16, PAGES = 16, SCRATCH = 70000, THREADS = 4 };

static void *kv;
static void *thread_scratch[THREADS];

static void *work(void *arg) {
    long i = (long)arg;
    GPUMEM_TAG("scratch") { thread_scratch[i] = dev_alloc(SCRATCH); }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t t[THREADS];
    void *weights = NULL, *untagged;
    gpumem_tag_pop(); /* one too many: nothing happens */
    GPUMEM_TAG("model") {
        GPUMEM_TAG("weights") { weights = dev_alloc(WEIGHTS); }
        kv = dev_alloc(KV);
    }
    untagged = dev_alloc(1000);
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&t[i], NULL, work, (void *)i)) return 2;
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);

    /* The KV cache is a pool of pages to the program. */
    for (int i = 0; i < PAGES; i++) gpumem_allocated("kv-pages", (char *)kv + i * PAGE, PAGE);
    gpumem_freed("kv-pages", (char *)kv + 3 * PAGE);
    gpumem_freed("kv-pages", (char *)kv + 3 * PAGE); /* twice */
    gpumem_freed("no such pool", kv);

    char more[256];
    snprintf(more, sizeof more,
             ",\"tags\":{\"weights\":%d,\"model\":%d,\"scratch\":%d},\"reported\":{\"kv-pages\":%d},\"preloaded\":%s",
             WEIGHTS, KV, THREADS * SCRATCH, (PAGES - 1) * PAGE, gpumem_push_tag ? "true" : "false");
    if (argc > 1) {
        report_more("tags", more);
        sleep((unsigned)atoi(argv[1]));
    }
    for (int i = 0; i < PAGES; i++)
        if (i != 3) gpumem_freed("kv-pages", (char *)kv + i * PAGE);
    for (int i = 0; i < THREADS; i++) dev_free(thread_scratch[i], SCRATCH);
    dev_free(untagged, 1000);
    dev_free(kv, KV);
    dev_free(weights, WEIGHTS);
    return report_more("tags", more);
}
