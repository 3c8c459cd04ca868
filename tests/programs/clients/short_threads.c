/* Threads that allocate once and end, one after another, and four at a time: what the process has in memory stays. In
 * each thread a destructor allocates and frees in every round that the C library gives it.
 *
 *   short_threads NUMBER      prints how many KiB more the process has after so many threads than after a tenth of them */
#include "cuda_min.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_key_t key;

static void *pair(void) {
    void *p;
    if (cudaMalloc(&p, 4096) || cudaFree(p))
        _exit(1);
    return p;
}

static void again(void *rounds) {
    pair();
    if (--*(int *)rounds > 0)
        pthread_setspecific(key, rounds);
    else
        free(rounds);
}

static void *run(void *unused) {
    int *rounds = malloc(sizeof *rounds);
    *rounds = 4;
    pthread_setspecific(key, rounds);
    pair();
    return unused;
}

static long resident(void) {
    long all, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &all, &resident) != 2)
        _exit(2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void threads(int number) {
    for (int made = 0; made < number; made += 5) {
        pthread_t four[4];
        for (int i = 0; i < 4; i++)
            if (pthread_create(&four[i], NULL, run, NULL))
                _exit(3);
        for (int i = 0; i < 4; i++)
            pthread_join(four[i], NULL);
        if (pthread_create(&four[0], NULL, run, NULL))
            _exit(3);
        pthread_join(four[0], NULL);
    }
}

int main(int argc, char **argv) {
    int number = argc > 1 ? atoi(argv[1]) : 1000;
    pthread_key_create(&key, again);
    threads(number / 10);
    long before = resident();
    threads(number - number / 10);
    printf("%ld\n", resident() - before);
    return 0;
}
