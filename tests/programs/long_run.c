/* One kind of traffic for as long as it is told. Natively the memory of each kind is flat. Prints lines about memory
 * on the way, and what it did.
 *
 *   long_run KIND [--calls N] [--samples S]     (1000000, 20)
 *
 *   graphs    two threads capture graphs of a few shapes, instantiate, update, launch and destroy them
 *   pool      buffers that grow by a twentieth each time until they start over, beside small ones
 *   threads   threads that come, allocate, launch a graph and end
 *   contexts  a context is made, worked in and destroyed
 *   models    weights, caches and scratch of one model after another are loaded, used and dropped */
#include "sample.h"
#include <pthread.h>
#include <string.h>

enum { SLOTS = 8, SHAPES = 6, WORDS = 64, BUFFERS = 24, MIB = 1 << 20 };

struct worker {
    unsigned random;
    cudaStream_t stream;
    void *words;
    struct { cudaGraph_t graph; cudaGraphExec_t exec; } slot[SLOTS];
};

static unsigned below(unsigned *random, unsigned n) {
    *random = *random * 1664525u + 1013904223u;
    return (*random >> 16) % n;
}

/* What was counted, in calls. */
static long calls_so_far(void) {
    return sum_of(did.allocs) + sum_of(did.frees) + did.graphs_created + did.graphs_destroyed + did.execs_created +
           did.execs_destroyed + did.graph_launches + did.exec_updates + did.exec_updates_failed + did.captures +
           did.kernel_launches;
}

static struct worker opened(unsigned random) {
    struct worker w = {.random = random};
    OK(cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking));
    w.words = dev_alloc(WORDS * 4);
    return w;
}
static void drop(struct worker *w, unsigned at) {
    if (!w->slot[at].exec) return;
    exec_destroy(w->slot[at].exec);
    graph_destroy(w->slot[at].graph);
    w->slot[at].exec = NULL;
}
static void closed(struct worker *w) {
    OK(cudaStreamSynchronize(w->stream));
    for (unsigned at = 0; at < SLOTS; at++) drop(w, at);
    dev_free(w->words, WORDS * 4);
    OK(cudaStreamDestroy(w->stream));
}

/* A new graph updates the exec of a slot, or takes its place, and is launched. */
static void graph(struct worker *w) {
    unsigned at = below(&w->random, SLOTS), kernels = 4 + 7 * below(&w->random, SHAPES);
    OK(cudaStreamBeginCapture(w->stream, cudaStreamCaptureModeThreadLocal));
    for (unsigned i = 0; i < kernels; i++) OK(k_fill(w->words, WORDS, w->random + i, w->stream));
    cudaGraph_t made = end_capture(w->stream);
    if (w->slot[at].exec && below(&w->random, 2) && exec_update(w->slot[at].exec, made) == 0) {
        graph_destroy(w->slot[at].graph);
        w->slot[at].graph = made;
    } else {
        cudaGetLastError();
        drop(w, at);
        w->slot[at].graph = made;
        w->slot[at].exec = instantiate(made);
    }
    for (unsigned n = 1 + below(&w->random, 3); n > 0; n--) graph_launch(w->slot[at].exec, w->stream);
    if (below(&w->random, 4) == 0) OK(cudaStreamSynchronize(w->stream));
}
static void pairs(struct worker *w, int n) {
    for (; n > 0; n--) {
        size_t bytes = (size_t)(256 + below(&w->random, 256)) << below(&w->random, 8);
        dev_free(dev_alloc(bytes), bytes);
    }
}

static void *graphs_of_a_thread(void *random) {
    struct worker w = opened((unsigned)(size_t)random);
    for (int i = 0; i < 500; i++) graph(&w);
    closed(&w);
    return NULL;
}
static void *guest(void *random) {
    struct worker w = opened((unsigned)(size_t)random);
    pairs(&w, 100);
    graph(&w);
    closed(&w);
    return NULL;
}
static void on_threads(void *(*run)(void *), size_t n) {
    static size_t random;
    pthread_t thread[8];
    for (size_t i = 0; i < n; i++) OK(pthread_create(&thread[i], NULL, run, (void *)++random));
    for (size_t i = 0; i < n; i++) OK(pthread_join(thread[i], NULL));
}

static void graphs(unsigned *random) { (void)random, on_threads(graphs_of_a_thread, 2); }
static void threads(unsigned *random) { on_threads(guest, 1 + below(random, 8)); }

static void pool(unsigned *random) {
    static size_t creeping = MIB;
    struct worker w = opened(*random);
    void *buffer[BUFFERS];
    size_t bytes[BUFFERS];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < BUFFERS; i++) {
            bytes[i] = i % 3 ? (size_t)(1 + below(&w.random, 512)) << 10 : creeping;
            buffer[i] = dev_alloc(bytes[i]);
            if (i % 8 == 0) OK(k_fill(buffer[i], WORDS, 7, w.stream));
        }
        for (int i = BUFFERS - 1; i >= 0; i--) dev_free(buffer[i], bytes[i]);
        pairs(&w, 50);
        creeping += creeping / 20;
        if (creeping > 48 * (size_t)MIB) creeping = MIB;
    }
    closed(&w);
    *random += 1;
}

static void contexts(unsigned *random) {
    CUcontext context, before;
    OK(cuCtxCreate_v2(&context, 0, 0));
    struct worker w = opened(++*random);
    pairs(&w, 50);
    for (int i = 0; i < 4; i++) graph(&w);
    closed(&w);
    OK(cuCtxPopCurrent_v2(&before));
    OK(cuCtxDestroy_v2(context));
}

static void *model(void *random) {
    struct worker w = opened((unsigned)(size_t)random);
    unsigned layers = 20 + 20 * below(&w.random, 7), left = layers;
    void *weight[160];
    size_t bytes = (size_t)(1 + below(&w.random, 6)) * MIB, cache_bytes = 4 * bytes;
    for (unsigned i = 0; i < layers; i++) {
        weight[i] = dev_alloc(bytes);
        OK(k_fill(weight[i], WORDS, i, w.stream));
    }
    void *cache = dev_alloc(cache_bytes);
    for (int token = 0; token < 20; token++) {
        pairs(&w, 10);
        graph(&w);
    }
    dev_free(cache, cache_bytes);
    while (left > 0) {
        unsigned at = below(&w.random, left);
        dev_free(weight[at], bytes);
        weight[at] = weight[--left];
    }
    closed(&w);
    return NULL;
}
static void models(unsigned *random) {
    if (++*random % 4) model((void *)(size_t)*random);
    else on_threads(model, 1);
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*round)(unsigned *); } KINDS[] = {
        {"graphs", graphs}, {"pool", pool}, {"threads", threads}, {"contexts", contexts}, {"models", models}};
    long calls = 1000000, samples = 20, taken = 0;
    void (*round)(unsigned *) = NULL;
    unsigned random = 1;
    for (size_t i = 0; argc > 1 && i < sizeof KINDS / sizeof *KINDS; i++)
        if (!strcmp(argv[1], KINDS[i].name)) round = KINDS[i].round;
    for (int i = 2; i + 1 < argc; i += 2) {
        long *to = !strcmp(argv[i], "--calls") ? &calls : !strcmp(argv[i], "--samples") ? &samples : NULL;
        if (!to || (*to = atol(argv[i + 1])) < 1) return 2;
    }
    if (!round || argc % 2) return 2;
    kernels_load();
    long begin = calls_so_far();
    while (taken < samples) {
        round(&random);
        for (; taken < samples && calls_so_far() - begin >= (taken + 1) * calls / samples; taken++) sample(calls_so_far());
    }
    kernels_unload();
    return report("long_run");
}
