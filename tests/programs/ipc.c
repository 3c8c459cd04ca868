/* Two processes and one device buffer: the parent exports what cudaMalloc gave it,
 * the child opens it, changes it with a kernel, closes it; the parent checks. */
#include "rt.h"
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 1 << 18, ROUNDS = 3 };

static void must(ssize_t got, size_t want, const char *what) {
    if (got != (ssize_t)want) {
        fprintf(stderr, "ipc: %s: %zd of %zu bytes\n", what, got, want);
        exit(2);
    }
}

/* The child: opens each handle it reads, multiplies, answers one byte. */
static int child(int in, int out) {
    kernels_load();
    for (int i = 0; i < ROUNDS; i++) {
        cudaIpcMemHandle_t h;
        void *p = NULL, *again = NULL;
        char done = 1;
        must(read(in, &h, sizeof h), sizeof h, "handle");
        OK(cudaIpcOpenMemHandle(&p, h, 1 /* lazy peer access */));
        /* It is open until it was closed as often. */
        OK(cudaIpcOpenMemHandle(&again, h, 1));
        EXPECT(again == p, 1);
        OK(cudaIpcCloseMemHandle(again));
        EXPECT(mismatches_of(p, N, 7u + (unsigned)i, NULL), 0);
        OK(k_scale(p, p, N, 10, NULL));
        OK(cudaDeviceSynchronize());
        OK(cudaIpcCloseMemHandle(p));
        must(write(out, &done, 1), 1, "answer");
    }
    kernels_unload();
    return did.failures ? 1 : 0;
}

int main(void) {
    int to[2], from[2];
    if (pipe(to) || pipe(from)) return 2;
    pid_t pid = fork(); /* before any GPU call: a child may use CUDA then */
    if (pid == 0) {
        close(to[1]);
        close(from[0]);
        exit(child(to[0], from[1]));
    }
    close(to[0]);
    close(from[1]);
    kernels_load();
    for (int i = 0; i < ROUNDS; i++) {
        cudaIpcMemHandle_t h, again, inside;
        char done = 0;
        uint32_t *p = dev_alloc(N * 4);
        OK(k_fill(p, N, 7u + (unsigned)i, NULL));
        OK(cudaDeviceSynchronize());
        OK(cudaIpcGetMemHandle(&h, p));
        OK(cudaIpcGetMemHandle(&again, p));
        EXPECT(memcmp(&h, &again, sizeof h), 0);
        OK(cudaIpcGetMemHandle(&inside, p + N / 2));
        EXPECT(memcmp(&h, &inside, sizeof h), 0);
        must(write(to[1], &h, sizeof h), sizeof h, "handle");
        must(read(from[0], &done, 1), 1, "answer");
        EXPECT(mismatches_of(p, N, 10 * (7u + (unsigned)i), NULL), 0);
        dev_free(p, N * 4);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, 1);
    kernels_unload();
    return report("ipc");
}
