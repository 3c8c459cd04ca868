/* Loses N blocks of 40 KiB (first argument), says so, and waits until stdin ends. Meanwhile threads (second argument:
 * how many) have a block each for a moment, again and again. */
#include "rt.h"
#include <pthread.h>
#include <unistd.h>

enum { BYTES = 40 << 10 };
static volatile int is_over;

__attribute__((noinline)) static void lose(void) {
    void *volatile p = NULL;
    OK(cudaMalloc((void **)&p, BYTES));
    p = NULL;
}

static void *churn(void *arg) {
    for (size_t round = 0; !is_over; round++) {
        void *p = NULL;
        OK(cudaMalloc(&p, (size_t)(4 << 10) << round % 8));
        usleep(500);
        OK(cudaFree(p));
        p = NULL;
        usleep(500);
    }
    return arg;
}

int main(int argc, char **argv) {
    int blocks = argc > 1 ? atoi(argv[1]) : 1000, threads = argc > 2 ? atoi(argv[2]) : 0;
    pthread_t churns[16];
    char byte;
    for (int i = 0; i < blocks; i++) lose();
    for (int i = 0; i < threads; i++) pthread_create(&churns[i], NULL, churn, NULL);
    printf("lost %d\n", blocks);
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {}
    is_over = 1;
    for (int i = 0; i < threads; i++) pthread_join(churns[i], NULL);
    return 0;
}
