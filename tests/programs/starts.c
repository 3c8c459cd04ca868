/* A process at rest, step by step: prints a line about memory once it has a context, once it has allocated and freed
 * something, once three threads have done so and rest, and once a graph was launched.
 *
 *   starts */
#include "sample.h"
#include <pthread.h>

enum { THREADS = 3, WORDS = 64, KERNELS = 8 };
static pthread_barrier_t at_rest, end;

static void *thread(void *unused) {
    (void)unused;
    dev_free(dev_alloc(1 << 16), 1 << 16);
    pthread_barrier_wait(&at_rest);
    pthread_barrier_wait(&end);
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    OK(pthread_barrier_init(&at_rest, NULL, THREADS + 1));
    OK(pthread_barrier_init(&end, NULL, THREADS + 1));
    sample(0);
    dev_free(dev_alloc(1 << 16), 1 << 16);
    sample(1);
    for (int i = 0; i < THREADS; i++) OK(pthread_create(&threads[i], NULL, thread, NULL));
    pthread_barrier_wait(&at_rest);
    sample(2);
    kernels_load();
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    void *words = dev_alloc(WORDS * 4);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (unsigned i = 0; i < KERNELS; i++) OK(k_fill(words, WORDS, i, stream));
    did.kernel_launches -= KERNELS;
    cudaGraph_t graph = end_capture(stream);
    cudaGraphExec_t exec = instantiate(graph);
    graph_launch(exec, stream);
    OK(cudaStreamSynchronize(stream));
    sample(3);
    exec_destroy(exec);
    graph_destroy(graph);
    OK(cudaStreamDestroy(stream));
    dev_free(words, WORDS * 4);
    pthread_barrier_wait(&end);
    for (int i = 0; i < THREADS; i++) OK(pthread_join(threads[i], NULL));
    kernels_unload();
    return report("starts");
}
