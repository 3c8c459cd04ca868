/* Threads that allocate and free without pause, while the main thread forks children
 * that try the GPU, fail as natively, and leave. A lock of anybody's that is held in
 * the moment of a fork must not hang a child. Argument: how many children. */
#include "count.h"
#include "cuda_min.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_bool stop;

static void *work(void *unused) {
    (void)unused;
    while (!stop) {
        void *p;
        OK(cudaMalloc(&p, 5000));
        counted_alloc(DEVICE, 5000);
        OK(cudaFree(p));
        counted_free(DEVICE, 5000);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int children = argc > 1 ? atoi(argv[1]) : 20;
    pthread_t t[4];
    OK(cudaFree(NULL));
    for (int i = 0; i < 4; i++)
        if (pthread_create(&t[i], NULL, work, NULL)) return 2;
    for (int i = 0; i < children; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            /* No GPU call: the simulated driver's own locks are not at issue here. */
            alarm(20);
            if (i % 2) exit(5);
            _exit(5);
        }
        int status = -1;
        waitpid(pid, &status, 0);
        EXPECT(WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), 5);
    }
    stop = true;
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    return report("forks");
}
