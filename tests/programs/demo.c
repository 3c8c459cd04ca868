/* A workload that behaves towards the runtime as llama-server does: weights, a KV
 * cache per slot, a prefill whose scratch grows with the context through the legacy
 * pool, then parallel slots that decode through captured graphs of changing shapes.
 * It checks its own results with kernels and counts its own calls. */
#include "demo.h"
#include <gpumem.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: demo [options]\n"
    "  --slots N        parallel conversations (4)\n"
    "  --shapes N       graph shapes that each slot goes through (8)\n"
    "  --nodes N        kernels in the smallest graph (24)\n"
    "  --seconds S      how long to decode (5)\n"
    "  --iterations N   decode N steps per slot instead: the counts are the same each time\n"
    "  --prefill N      ubatches of 512 tokens before that (40)\n"
    "  --weights MIB    size of the weights (64)\n"
    "  --kv MIB         size of each slot's KV cache (8)\n"
    "  --never-evict    keep every graph, as llama.cpp did before April 2026\n"
    "  --samples N      on the way of --iterations, print N lines about memory\n"
    "  --hold S         before freeing anything, print the counts and wait S seconds\n";

/* What --flag may be, and where its value goes. */
static bool parse(int argc, char **argv, struct knobs *k) {
    const struct { const char *flag; int *number; int least, most; } numbers[] = {
        {"--slots", &k->slots, 1, 256},         {"--shapes", &k->shapes, 1, 100000},
        {"--nodes", &k->nodes, 1, 100000},      {"--iterations", &k->iterations, 1, 100000000},
        {"--prefill", &k->prefill, 0, 100000},  {"--weights", &k->weights_mib, 1, 1 << 20},
        {"--kv", &k->kv_mib, 1, 1 << 20},
        {"--samples", &k->samples, 0, 100000}};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--never-evict")) {
            k->never_evict = true;
            continue;
        }
        if (i + 1 >= argc) return false;
        char *end;
        double value = strtod(argv[i + 1], &end);
        if (*end || end == argv[i + 1] || value < 0) return false;
        bool known = true;
        if (!strcmp(argv[i], "--seconds")) k->seconds = value;
        else if (!strcmp(argv[i], "--hold")) k->hold = value;
        else {
            known = false;
            for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
                if (!strcmp(argv[i], numbers[n].flag)) {
                    if (value < numbers[n].least || value > numbers[n].most) return false;
                    *numbers[n].number = (int)value;
                    known = true;
                }
        }
        if (!known) return false;
        i++;
    }
    return k->samples <= k->iterations;
}

/* Each ubatch needs a workspace as long as the context so far, in two parts that
 * are in use at the same time: no cached buffer is ever large enough again until
 * the look-ahead is used up, and every one outgrown stays cached. */
static void prefill(struct pool *pool, int ubatches, cudaStream_t s) {
    for (int i = 1; i <= ubatches; i++) {
        size_t n_kv = 512 * (size_t)i, scores = n_kv * 512, mask = n_kv * 64, got_scores, got_mask;
        uint32_t *a = pool_alloc(pool, scores, &got_scores), *b = pool_alloc(pool, mask, &got_mask);
        OK(k_fill(a, scores / 4, (uint32_t)i, s));
        OK(k_fill(b, mask / 4, 3u * (uint32_t)i, s));
        if (i % 8 == 0 || i == ubatches) {
            EXPECT(mismatches_of(a, scores / 4, (uint32_t)i, s), 0);
            EXPECT(mismatches_of(b, mask / 4, 3u * (uint32_t)i, s), 0);
        }
        /* Kernels may still use them: the pool hands them to this stream only. */
        pool_free(pool, b, got_mask);
        pool_free(pool, a, got_scores);
    }
}

int main(int argc, char **argv) {
    struct knobs k = {.slots = 4, .shapes = 8, .nodes = 24, .seconds = 5, .prefill = 40, .weights_mib = 64, .kv_mib = 8};
    if (!parse(argc, argv, &k)) {
        fputs(usage, stderr);
        return 2;
    }
    static struct pool pool;
    cudaStream_t main_stream;
    size_t weight_bytes = (size_t)k.weights_mib << 20;
    kernels_load();
    OK(cudaStreamCreateWithFlags(&main_stream, cudaStreamNonBlocking));
    uint32_t *weights = NULL;
    GPUMEM_TAG("weights") { weights = dev_alloc(weight_bytes); }
    OK(k_fill(weights, weight_bytes / 4, 0x3e11a5e5u, main_stream));

    struct slot *slots = calloc((size_t)k.slots, sizeof *slots);
    for (int i = 0; i < k.slots; i++) slot_open(&slots[i], i, &k);
    GPUMEM_TAG("prefill") { prefill(&pool, k.prefill, main_stream); }
    OK(cudaStreamSynchronize(main_stream));

    double start = now_s();
    pthread_t *threads = calloc((size_t)k.slots, sizeof *threads);
    for (int i = 0; i < k.slots; i++) {
        slots[i].end_s = start + k.seconds;
        if (pthread_create(&threads[i], NULL, slot_decode, &slots[i])) return 2;
    }
    long steps = 0;
    for (int i = 0; i < k.slots; i++) {
        pthread_join(threads[i], NULL);
        steps += slots[i].steps;
    }
    double took = now_s() - start;
    EXPECT(mismatches_of(weights, weight_bytes / 4, 0x3e11a5e5u, main_stream), 0);

    char more[256];
    const char *const format = ",\"steps\":%ld,\"decode_seconds\":%.3f,\"steps_per_second\":%.1f,\"holding\":%s";
    if (k.hold > 0) {
        snprintf(more, sizeof more, format, steps, took, (double)steps / took, "true");
        report_more("demo", more);
        usleep((useconds_t)(k.hold * 1e6));
    }
    for (int i = 0; i < k.slots; i++) slot_close(&slots[i]);
    pool_clear(&pool);
    dev_free(weights, weight_bytes);
    OK(cudaStreamDestroy(main_stream));
    kernels_unload();
    free(threads);
    free(slots);
    snprintf(more, sizeof more, format, steps, took, (double)steps / took, "false");
    return report_more("demo", more);
}
