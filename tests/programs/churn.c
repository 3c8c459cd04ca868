/* Does the same over and over, so that natively its memory is flat: allocates and frees blocks of many sizes, makes
 * graphs of a few shapes, launches and destroys them, makes streams and threads and lets them end. Prints lines
 * about memory on the way. Before each all threads have done as much, so that two runs hold the same blocks there.
 *
 *   churn [--operations N] [--threads T] [--samples S]     (100000, 2, 20) */
#include "sample.h"
#include <pthread.h>
#include <string.h>

enum { BLOCKS = 32, SHAPES = 6, KEPT = 3, WORDS = 64 };
static long operations = 100000, threads = 2, samples = 20;
static pthread_barrier_t all_as_far;

struct worker {
    long id;
    unsigned random;
    void *block[BLOCKS];
    size_t bytes[BLOCKS];
    cudaStream_t stream;
    void *words;
    struct { cudaGraph_t graph; cudaGraphExec_t exec; } kept[KEPT];
};

static unsigned below(struct worker *w, unsigned n) {
    w->random = w->random * 1664525u + 1013904223u;
    return (w->random >> 16) % n;
}

/* Frees a block and takes another in its place. */
static void block(struct worker *w) {
    unsigned at = below(w, BLOCKS);
    if (w->block[at]) dev_free(w->block[at], w->bytes[at]);
    w->bytes[at] = (size_t)(256 + below(w, 256)) << below(w, 8);
    w->block[at] = dev_alloc(w->bytes[at]);
}

/* A graph takes the place of another, of whatever shape. */
static void graph(struct worker *w) {
    unsigned at = below(w, KEPT), kernels = 4 + 7 * below(w, SHAPES);
    OK(cudaStreamBeginCapture(w->stream, cudaStreamCaptureModeRelaxed));
    for (unsigned i = 0; i < kernels; i++) OK(k_fill(w->words, WORDS, w->random + i, w->stream));
    did.kernel_launches -= kernels;
    cudaGraph_t g = end_capture(w->stream);
    if (w->kept[at].exec) {
        exec_destroy(w->kept[at].exec);
        graph_destroy(w->kept[at].graph);
    }
    w->kept[at].graph = g;
    w->kept[at].exec = instantiate(g);
    graph_launch(w->kept[at].exec, w->stream);
    if (below(w, 4) == 0) OK(cudaStreamSynchronize(w->stream));
}

static void open_worker(struct worker *w, long id) {
    memset(w, 0, sizeof *w);
    w->id = id;
    w->random = (unsigned)id + 1;
    OK(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking));
    w->words = dev_alloc(WORDS * 4);
}
static void close_worker(struct worker *w) {
    OK(cudaStreamSynchronize(w->stream));
    for (int i = 0; i < BLOCKS; i++)
        if (w->block[i]) dev_free(w->block[i], w->bytes[i]);
    for (int i = 0; i < KEPT; i++)
        if (w->kept[i].exec) {
            exec_destroy(w->kept[i].exec);
            graph_destroy(w->kept[i].graph);
        }
    dev_free(w->words, WORDS * 4);
    OK(cudaStreamDestroy(w->stream));
}
/* One that ends soon. */
static void *guest(void *unused) {
    struct worker w;
    (void)unused;
    open_worker(&w, 99);
    for (int i = 0; i < 50; i++) block(&w);
    graph(&w);
    close_worker(&w);
    return NULL;
}
static void *work(void *id) {
    struct worker w;
    open_worker(&w, (long)id);
    for (long done = 1; done <= operations / threads; done++) {
        if (done % 100 == 0) graph(&w);
        else block(&w);
        if (done % 2000 == 0) {
            OK(cudaStreamSynchronize(w.stream));
            OK(cudaStreamDestroy(w.stream));
            OK(cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking));
        }
        if (done % 20000 == 0) {
            pthread_t other;
            OK(pthread_create(&other, NULL, guest, NULL));
            OK(pthread_join(other, NULL));
        }
        if (done % (operations / threads / samples) == 0) {
            pthread_barrier_wait(&all_as_far);
            if (w.id == 0) sample(done * threads);
            pthread_barrier_wait(&all_as_far);
        }
    }
    close_worker(&w);
    return NULL;
}

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        long *to = !strcmp(argv[i], "--operations") ? &operations
                 : !strcmp(argv[i], "--threads")    ? &threads
                 : !strcmp(argv[i], "--samples")    ? &samples
                                                    : NULL;
        if (!to || (*to = atol(argv[i + 1])) < 1) return 2;
    }
    if (threads > 64 || operations / threads / samples < 1) return 2;
    pthread_t all[64];
    kernels_load();
    OK(pthread_barrier_init(&all_as_far, NULL, (unsigned)threads));
    for (long i = 0; i < threads; i++) OK(pthread_create(&all[i], NULL, work, (void *)i));
    for (long i = 0; i < threads; i++) OK(pthread_join(all[i], NULL));
    kernels_unload();
    return report("churn");
}
