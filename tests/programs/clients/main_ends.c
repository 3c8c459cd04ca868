/* main ends by pthread_exit: the process goes on until its last thread ends, and then exits with status 0.
 * `main_ends WHO`: `thread` outlives main, or `main` is the last itself. */
#include "count.h"
#include "cuda_min.h"
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static void *work(void *main_last) {
    void *p;
    if (!main_last) usleep(200000);
    OK(cudaMalloc(&p, 6000));
    counted_alloc(DEVICE, 6000);
    OK(cudaFree(p));
    counted_free(DEVICE, 6000);
    return NULL;
}

/* Needs more of a stack than a helper thread has. */
static void at_exit(void) {
    volatile char room[1 << 20];
    for (size_t i = 0; i < sizeof room; i += 1024) room[i] = 1;
    report(room[1024] == 1 ? "main_ends" : "?");
}

int main(int argc, char **argv) {
    pthread_t t;
    bool main_last = argc > 1 && !strcmp(argv[1], "main");
    atexit(at_exit);
    OK(cudaFree(NULL));
    if (pthread_create(&t, NULL, work, main_last ? &t : NULL)) return 2;
    if (main_last) pthread_join(t, NULL);
    pthread_exit(NULL);
}
