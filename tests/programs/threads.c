/* N threads that allocate, fill, check, launch graphs and free at random, each on
 * its own stream and with its own values, so that a block handed to two of them
 * shows. Arguments: threads (8), rounds of each (100). */
#include "rt.h"
#include <pthread.h>

enum { SLOTS = 6 };
struct worker { pthread_t thread; unsigned seed; int rounds; };

static uint32_t next(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void graph_round(cudaStream_t s, uint32_t *p, uint64_t n, uint32_t value) {
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(k_fill(p, n, value, s));
    OK(k_scale(p, p, n, 3, s));
    did.kernel_launches -= 2;
    cudaGraph_t g = end_capture(s);
    cudaGraphExec_t e = instantiate(g);
    graph_launch(e, s);
    graph_destroy(g);
    OK(cudaStreamSynchronize(s));
    exec_destroy(e);
}

static void *work(void *arg) {
    struct worker *w = arg;
    struct { uint32_t *p; uint64_t n; uint32_t value; } slot[SLOTS] = {0};
    cudaStream_t s;
    uint64_t *wrong = dev_alloc(8), host_wrong;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMemsetAsync(wrong, 0, 8, s));
    for (int i = 0; i < w->rounds + SLOTS; i++) {
        int k = i < w->rounds ? (int)(next(&w->seed) % SLOTS) : i - w->rounds;
        if (slot[k].p) {
            OK(k_verify(slot[k].p, slot[k].n, slot[k].value, wrong, s));
            OK(cudaStreamSynchronize(s));
            dev_free(slot[k].p, slot[k].n * 4);
            slot[k].p = NULL;
        }
        if (i >= w->rounds) continue; /* the last turns only give back */
        slot[k].n = 1 + next(&w->seed) % (next(&w->seed) % 8 ? 1 << 14 : 1 << 19);
        slot[k].value = next(&w->seed);
        slot[k].p = dev_alloc(slot[k].n * 4);
        if (i % 8 == 0) {
            graph_round(s, slot[k].p, slot[k].n, slot[k].value);
            slot[k].value *= 3;
        } else {
            OK(k_fill(slot[k].p, slot[k].n, slot[k].value, s));
        }
    }
    OK(cudaMemcpyAsync(&host_wrong, wrong, 8, cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    EXPECT(host_wrong, 0);
    dev_free(wrong, 8);
    OK(cudaStreamDestroy(s));
    return NULL;
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 8, rounds = argc > 2 ? atoi(argv[2]) : 100;
    if (n < 1 || n > 256 || rounds < 1) {
        fprintf(stderr, "usage: threads [THREADS 1..256 [ROUNDS]]\n");
        return 2;
    }
    struct worker *w = calloc((size_t)n, sizeof *w);
    if (!w) exit(2);
    kernels_load();
    for (int i = 0; i < n; i++) {
        w[i] = (struct worker){.seed = 17u + (unsigned)i * 7919u, .rounds = rounds};
        if (pthread_create(&w[i].thread, NULL, work, &w[i])) return 2;
    }
    for (int i = 0; i < n; i++) pthread_join(w[i].thread, NULL);
    free(w);
    kernels_unload();
    return report("threads");
}
