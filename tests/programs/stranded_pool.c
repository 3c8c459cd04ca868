/* A program that allocates as ggml's CUDA backend does without virtual memory
 * (llama.cpp built with GGML_CUDA_NO_VMM): weights, a cache and a buffer for
 * results are allocated before anything runs, and scratch comes from a pool of up
 * to 256 buffers: the smallest that is large enough, else a new one, 5 % larger
 * than asked and a multiple of 256 bytes. With attention over a context that gets
 * longer, each new buffer is a little too small soon after, and stays.
 *
 * When the pool's allocation fails it waits for the device, frees every buffer
 * that is not in use and tries once more (built with ABORTS: it gives up, as
 * llama.cpp b8833 does). When another allocation fails the program gives up.
 *
 *   stranded_pool [STEPS] [MODE]
 *
 * plain    a prefill of so many steps
 * graph    a third of the way the scratch of one step is captured into a graph,
 *          which is launched again and again until two thirds
 * capture  from a third to two thirds, steps are captured (relaxed) and launched
 * threads  two threads, each with a stream and a pool of its own
 * wait     half of the way it says so, and goes on when stdin ends
 *
 * Every step's results are checked. Counted are requests that failed, by who made
 * them, and the bytes of the pool at its peak. */
#include "rt.h"
#include <pthread.h>
#include <string.h>

enum { BUFFERS = 256, TOKENS = 1 << 10, USED = 1 << 12 };
/* Scratch of a step is this times its number. */
#define UNIT ((size_t)2 << 20)

static struct {
    atomic_long pool_allocs, pool_bytes, pool_failures, flushes, freed, other_failures, in_capture, pool_live, pool_peak;
} seen;

#define NOINLINE __attribute__((noinline))

struct pool {
    struct { void *ptr; size_t size; } buffer[BUFFERS];
};

NOINLINE static int device_malloc(void **ptr, size_t size) {
    int rc = cudaMalloc(ptr, size);
    if (rc == 0) counted_alloc(DEVICE, size);
    return rc;
}

static bool capturing(cudaStream_t s) {
    int status = 0;
    return cudaStreamIsCapturing(s, &status) == 0 && status == 1;
}

#ifndef ABORTS
NOINLINE static void pool_flush(struct pool *pool) {
    for (int i = 0; i < BUFFERS; i++)
        if (pool->buffer[i].ptr) {
            dev_free(pool->buffer[i].ptr, pool->buffer[i].size);
            seen.pool_live -= (long)pool->buffer[i].size;
            seen.freed++;
            pool->buffer[i].ptr = NULL;
        }
    seen.flushes++;
}
#endif

NOINLINE static void *pool_alloc(struct pool *pool, size_t size, size_t *actual, cudaStream_t s) {
    int best = -1;
    for (int i = 0; i < BUFFERS; i++) {
        size_t has = pool->buffer[i].ptr ? pool->buffer[i].size : 0;
        if (has >= size && (best < 0 || has < pool->buffer[best].size)) best = i;
    }
    void *ptr = NULL;
    if (best >= 0) {
        ptr = pool->buffer[best].ptr;
        *actual = pool->buffer[best].size;
        pool->buffer[best].ptr = NULL;
        return ptr;
    }
    *actual = ((size_t)(1.05 * (double)size) + 255) / 256 * 256;
    int rc = device_malloc(&ptr, *actual);
    if (rc) {
        seen.pool_failures++;
        seen.in_capture += capturing(s);
        EXPECT(rc, cudaErrorMemoryAllocation);
        (void)cudaGetLastError();
#ifndef ABORTS
        /* ggml logs a line much like this one; it is what tells builds that try again. */
        if (getenv("STRANDED_LOG")) fprintf(stderr, "%zu bytes failed, freeing all cached buffers and retrying\n", *actual);
        OK(cudaDeviceSynchronize());
        pool_flush(pool);
        rc = device_malloc(&ptr, *actual);
#endif
        if (rc) {
            fprintf(stderr, "the pool is out of memory\n");
            exit(3);
        }
    }
    seen.pool_allocs++;
    seen.pool_bytes += (long)*actual;
    raise_to(&seen.pool_peak, atomic_fetch_add(&seen.pool_live, (long)*actual) + (long)*actual);
    return ptr;
}

NOINLINE static void pool_free(struct pool *pool, void *ptr, size_t size) {
    for (int i = 0; i < BUFFERS; i++)
        if (!pool->buffer[i].ptr) {
            pool->buffer[i].ptr = ptr;
            pool->buffer[i].size = size;
            return;
        }
    dev_free(ptr, size);
    seen.pool_live -= (long)size;
}

/* A buffer that the program works with: without it there is no going on. */
NOINLINE static void *buffer_alloc(size_t size) {
    void *ptr = NULL;
    if (device_malloc(&ptr, size)) {
        seen.other_failures++;
        fprintf(stderr, "a buffer cannot be had\n");
        exit(4);
    }
    return ptr;
}

struct worker {
    struct pool pool;
    cudaStream_t stream;
    int steps, mode;
    size_t weights_size, results_size;
    uint32_t *weights, *results;
    uint64_t *wrong;
};

/* Attention over a context of `n` steps: scratch of that length is asked for; its end is filled, read and
 * checked. */
NOINLINE static void attention(struct worker *w, int n) {
    size_t size, small_size, bytes = UNIT * (size_t)n;
    uint32_t *small = pool_alloc(&w->pool, 40000, &small_size, w->stream);
    uint32_t *scratch = pool_alloc(&w->pool, bytes, &size, w->stream);
    OK(k_fill(small, TOKENS, (uint32_t)n, w->stream));
    uint32_t *end = scratch + bytes / 4 - USED;
    OK(k_fill(end, USED, (uint32_t)n * 3, w->stream));
    OK(k_verify(end, USED, (uint32_t)n * 3, w->wrong, w->stream));
    OK(k_scale(w->results, small, TOKENS, 5, w->stream));
    pool_free(&w->pool, scratch, size);
    pool_free(&w->pool, small, small_size);
}

NOINLINE static void compute(struct worker *w, int n) {
    /* What comes before attention in a layer needs no scratch. */
    OK(k_scale(w->results, w->weights, TOKENS, 1, w->stream));
    attention(w, n);
}

static void checked(struct worker *w, int n) {
    uint64_t wrong[1];
    uint32_t got;
    OK(cudaMemcpyAsync(wrong, w->wrong, sizeof wrong, cudaMemcpyDeviceToHost, w->stream));
    OK(cudaMemcpyAsync(&got, w->results + TOKENS - 1, sizeof got, cudaMemcpyDeviceToHost, w->stream));
    OK(cudaStreamSynchronize(w->stream));
    EXPECT(wrong[0], 0);
    EXPECT(got, (uint32_t)n * 5);
}

/* A buffer for results is replaced by a larger one, of about the size of what the pool asks for then: the
 * old one is freed first, after all work is done. */
static void larger_results(struct worker *w, int n) {
    OK(cudaStreamSynchronize(w->stream));
    dev_free(w->results, w->results_size);
    w->results_size = UNIT * (size_t)n * 105 / 100 / 256 * 256;
    w->results = buffer_alloc(w->results_size);
}

enum { PLAIN, GRAPH, CAPTURE, THREADS, WAIT };

static void *prefill(void *arg) {
    struct worker *w = arg;
    cudaGraphExec_t exec = NULL;
    OK(cudaStreamCreateWithFlags(&w->stream, 1 /* not blocking */));
    w->weights_size = 24 << 20;
    w->weights = buffer_alloc(w->weights_size);
    w->results_size = 16 << 20;
    w->results = buffer_alloc(w->results_size);
    w->wrong = dev_alloc(sizeof *w->wrong);
    OK(cudaMemsetAsync(w->wrong, 0, sizeof *w->wrong, w->stream));
    OK(cudaMemsetAsync(w->weights, 1, w->weights_size, w->stream));
    OK(cudaStreamSynchronize(w->stream));
    int graph_step = 0;
    for (int n = 1; n <= w->steps; n++) {
        bool middle = n > w->steps / 3 && n <= 2 * w->steps / 3;
        bool capture = w->mode == CAPTURE ? middle : w->mode == GRAPH && n == w->steps / 3 + 1;
        if (capture) {
            OK(cudaStreamBeginCapture(w->stream, 2 /* relaxed */));
            compute(w, n);
            cudaGraph_t graph = end_capture(w->stream);
            exec = instantiate(graph);
            graph_destroy(graph);
            graph_launch(exec, w->stream);
            graph_step = n;
            checked(w, n);
        } else {
            compute(w, n);
            checked(w, n);
        }
        if (exec && w->mode == GRAPH && middle) {
            /* The graph has the addresses that its scratch had. */
            graph_launch(exec, w->stream);
            checked(w, graph_step);
        }
        if (exec && (w->mode == CAPTURE || !middle)) {
            exec_destroy(exec);
            exec = NULL;
        }
        if (n % 5 == 0 && !exec) larger_results(w, n + 1);
        if (w->mode == WAIT && n == w->steps / 2) {
            puts("half");
            fflush(stdout);
            while (getchar() != EOF) {}
        }
    }
    if (exec) exec_destroy(exec);
    OK(cudaStreamDestroy(w->stream));
    for (int i = 0; i < BUFFERS; i++)
        if (w->pool.buffer[i].ptr) dev_free(w->pool.buffer[i].ptr, w->pool.buffer[i].size);
    dev_free(w->wrong, sizeof *w->wrong);
    dev_free(w->results, w->results_size);
    dev_free(w->weights, w->weights_size);
    return NULL;
}

int main(int argc, char **argv) {
    static struct worker worker[2];
    static const char *const modes[] = {"plain", "graph", "capture", "threads", "wait"};
    int steps = argc > 1 ? atoi(argv[1]) : 24, mode = 0;
    for (int i = 0; argc > 2 && i < 5; i++)
        if (!strcmp(argv[2], modes[i])) mode = i;
    kernels_load();
    pthread_t other;
    for (int i = 0; i < 2; i++) worker[i] = (struct worker){.steps = steps, .mode = mode};
    if (mode == THREADS) OK(pthread_create(&other, NULL, prefill, &worker[1]));
    prefill(&worker[0]);
    if (mode == THREADS) OK(pthread_join(other, NULL));
    kernels_unload();
    char more[400];
    snprintf(more, sizeof more,
             ",\"pool_failures\":%ld,\"flushes\":%ld,\"flushed\":%ld,\"other_failures\":%ld,\"failures_in_capture\":%ld,"
             "\"pool_peak\":%ld,\"largest\":%ld,\"pool_allocs\":%ld,\"pool_bytes\":%ld",
             (long)seen.pool_failures, (long)seen.flushes, (long)seen.freed, (long)seen.other_failures,
             (long)seen.in_capture, (long)seen.pool_peak, (long)((size_t)steps * UNIT), (long)seen.pool_allocs,
             (long)seen.pool_bytes);
    return report_more("stranded_pool", more);
}
