/* The demo's parts: its knobs, the pool that grows, and the slots that decode. */
#pragma once
#include "rt.h"
#include <time.h>

struct knobs {
    int slots;        /* parallel conversations, one thread and one stream each */
    int shapes;       /* shapes of the compute graph that each slot goes through */
    int nodes;        /* kernels in the smallest graph */
    int iterations;   /* decode steps of each slot; 0: run for `seconds` */
    double seconds;
    double hold;      /* seconds to keep everything alive at the end */
    int prefill;      /* ubatches of the prefill */
    int weights_mib, kv_mib;
    bool never_evict; /* keep every graph, as llama.cpp did before April 2026 */
    int samples;      /* lines that slot 0 prints about memory on the way */
};

static inline double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the legacy pool: best fit among 256 cached buffers, 5 % look-ahead ---- */
enum { POOL_BUFFERS = 256 };
struct pool { struct { void *p; size_t bytes; } cached[POOL_BUFFERS]; };

static inline void *pool_alloc(struct pool *pool, size_t bytes, size_t *actual) {
    int best = -1;
    for (int i = 0; i < POOL_BUFFERS; i++)
        if (pool->cached[i].p && pool->cached[i].bytes >= bytes &&
            (best < 0 || pool->cached[i].bytes < pool->cached[best].bytes))
            best = i;
    if (best >= 0) {
        void *p = pool->cached[best].p;
        *actual = pool->cached[best].bytes;
        pool->cached[best].p = NULL;
        return p;
    }
    *actual = (bytes + bytes / 20 + 255) / 256 * 256;
    return dev_alloc(*actual);
}
static inline void pool_free(struct pool *pool, void *p, size_t bytes) {
    for (int i = 0; i < POOL_BUFFERS; i++)
        if (!pool->cached[i].p) {
            pool->cached[i].p = p;
            pool->cached[i].bytes = bytes;
            return;
        }
    dev_free(p, bytes);
}
static inline void pool_clear(struct pool *pool) {
    for (int i = 0; i < POOL_BUFFERS; i++)
        if (pool->cached[i].p) {
            dev_free(pool->cached[i].p, pool->cached[i].bytes);
            pool->cached[i].p = NULL;
        }
}

/* ---- a slot ---- */
struct cached_graph {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int nodes;           /* of the captured graph; 0: not captured yet */
    uint32_t value;      /* its result */
    bool warm;           /* computed once without a graph */
    double used_s;
    int used_step;
};
struct slot {
    int id, steps;
    const struct knobs *k;
    double end_s;
    cudaStream_t stream;
    uint32_t *kv, *act;
    uint64_t *wrong; /* on the device; adds up over all steps */
    void *mark;      /* on the device; that a fill stands among the kernels */
    uint64_t wrong_words;
    struct pool pool;
    struct cached_graph *graphs; /* by shape */
};
/* Shapes grow by a kernel each up to so many, as graphs do with the context; then as large ones come again
 * that are others, as graphs of a long run are no larger than its context. */
enum { ACT_WORDS = 4096, SIZES = 64, MARK_BYTES = 64 };

void slot_open(struct slot *s, int id, const struct knobs *k);
void *slot_decode(void *slot); /* a thread's body */
void slot_close(struct slot *s);
