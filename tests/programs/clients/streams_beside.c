/* Two threads at a time each make a stream, and each takes memory in stream order, for which the driver's pool takes
 * much and gives it back; a third one has a plain block of gpumem's pool again and again. Says so after 150 rounds, and
 * waits until stdin ends. */
#include "rt.h"
#include <pthread.h>
#include <unistd.h>

enum { ROUNDS = 150, ORDERED = 256 << 10, PLAIN = 64 << 20 };
static volatile int is_over;

static void *in_order(void *arg) {
    cudaStream_t s;
    void *p;
    OK(cudaStreamCreate(&s));
    OK(cudaMallocAsync(&p, ORDERED, s));
    OK(cudaFreeAsync(p, s));
    OK(cudaStreamSynchronize(s));
    return arg;
}

static void *plain(void *arg) {
    while (!is_over) {
        void *p;
        OK(cudaMalloc(&p, PLAIN));
        usleep(100);
        OK(cudaFree(p));
        usleep(100);
    }
    return arg;
}

int main(void) {
    pthread_t third, pair[2];
    char byte;
    OK(cudaFree(NULL));
    pthread_create(&third, NULL, plain, NULL);
    for (int i = 0; i < ROUNDS; i++) {
        for (int at = 0; at < 2; at++) pthread_create(&pair[at], NULL, in_order, NULL);
        for (int at = 0; at < 2; at++) pthread_join(pair[at], NULL);
        usleep(20000);
    }
    is_over = 1;
    pthread_join(third, NULL);
    puts("made all streams");
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {}
    return 0;
}
