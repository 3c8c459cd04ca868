/* errno after allocations and frees that succeed, while threads come, free and end. Whoever sets it to 0
 * before a call expects 0 after it.
 * Arguments: nothing: one thread at a time; "together": four, and signals end their waits for each other. */
#include "count.h"
#include "cuda_min.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>

enum { THREADS = 300, BLOCKS = 8, TOGETHER = 4 };

static void *work(void *unused) {
    void *p[BLOCKS];
    (void)unused;
    for (size_t i = 0; i < BLOCKS; i++) {
        errno = 0;
        OK(cudaMalloc(&p[i], 1000 * (i + 1)));
        EXPECT(errno, 0);
        counted_alloc(DEVICE, 1000 * (i + 1));
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        errno = 0;
        OK(cudaFree(p[i]));
        EXPECT(errno, 0);
        counted_free(DEVICE, 1000 * (i + 1));
    }
    return NULL;
}

static void came(int signal) { (void)signal; }

/* A signal every 200 us, which comes to a thread that does not block it. */
static void disturb(void) {
    struct sigaction action = {.sa_handler = came};
    struct itimerval often = {{0, 200}, {0, 200}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
}

int main(int argc, char **argv) {
    int together = argc > 1 && !strcmp(argv[1], "together") ? TOGETHER : 1;
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    if (together > 1) disturb();
    for (int i = 0; i < THREADS; i += together) {
        pthread_t t[TOGETHER];
        for (int k = 0; k < together; k++)
            if (pthread_create(&t[k], NULL, work, NULL)) return 2;
        /* This thread waits outside of CUDA: the others are to be disturbed. */
        pthread_sigmask(SIG_BLOCK, &alarm, NULL);
        for (int k = 0; k < together; k++) pthread_join(t[k], NULL);
        pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    }
    return report("errno");
}
