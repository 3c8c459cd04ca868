/* Two processes and one allocation. The parent exports blocks that were used, freed and given out
 * before; the child, a program of its own, opens, reads and writes them. When the parent has freed one, what
 * it allocates next is not what the child still sees. CHILD_PRELOAD is the child's LD_PRELOAD, if it is set;
 * empty: none. */
#include "pool.h"
#include <signal.h>
#include <sys/wait.h>

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, cudaIpcMemHandle_t, unsigned), cuIpcCloseMemHandle(CUdeviceptr);
enum { WORDS = 4096, ROUNDS = 4 };
static const size_t sizes[ROUNDS] = {MIB, 3 * MIB + 1000, 16 * KIB, 2 * MIB};

static void must(ssize_t got, size_t want) {
    if (got != (ssize_t)want) exit(2);
}

static int child(int in, int out) {
    begin();
    char word = 1;
    for (int i = 0; i < ROUNDS; i++) {
        cudaIpcMemHandle_t h;
        CUdeviceptr p = 0;
        must(read(in, &h, sizeof h), sizeof h);
        OK(cuIpcOpenMemHandle_v2(&p, h, 1));
        EXPECT(wrong_words(&gpu, NULL, p, WORDS, 7u + (unsigned)i), 0);
        OK(k_fill(&gpu, NULL, p, WORDS, 100u + (unsigned)i));
        OK(cuCtxSynchronize());
        /* What was opened is not the program's to free. */
        EXPECT(cuMemFree_v2(p), 1);
        OK(cuIpcCloseMemHandle(p));
        EXPECT(cuMemFree_v2(p), 1);
        must(write(out, &word, 1), 1);
        CUdeviceptr own = get(sizes[i]);
        give(own, sizes[i]);
    }
    give(gpu.counter, 8);
    return did.failures ? 1 : 0;
}

int main(int argc, char **argv) {
    if (argc > 2) return child(atoi(argv[1]), atoi(argv[2]));
    int to[2], from[2];
    /* Whichever process ends first, the other ends by its status. */
    signal(SIGPIPE, SIG_IGN);
    if (pipe(to) || pipe(from)) return 2;
    pid_t pid = fork();
    if (pid == 0) {
        /* A parent that ends early closes the last other end: the child's read ends, too. */
        close(to[1]);
        close(from[0]);
        const char *preload = getenv("CHILD_PRELOAD");
        char in[12], out[12];
        if (preload && *preload) setenv("LD_PRELOAD", preload, 1);
        else if (preload) unsetenv("LD_PRELOAD");
        snprintf(in, sizeof in, "%d", to[0]);
        snprintf(out, sizeof out, "%d", from[1]);
        execl("/proc/self/exe", "pool_ipc", in, out, (char *)NULL);
        _exit(9);
    }
    close(to[0]);
    close(from[1]);
    begin();
    for (int i = 0; i < ROUNDS; i++) {
        size_t bytes = sizes[i];
        char word;
        give(get(bytes), bytes);
        CUdeviceptr p = get(bytes);
        cudaIpcMemHandle_t h, inside;
        OK(k_fill(&gpu, NULL, p, WORDS, 7u + (unsigned)i));
        OK(cuCtxSynchronize());
        OK(cuIpcGetMemHandle(&h, p));
        /* A handle of memory that was freed is refused. */
        CUdeviceptr gone = get(bytes);
        give(gone, bytes);
        SAY("handle of freed memory %d", cuIpcGetMemHandle(&inside, gone));
        must(write(to[1], &h, sizeof h), sizeof h);
        must(read(from[0], &word, 1), 1);
        EXPECT(wrong_words(&gpu, NULL, p, WORDS, 100u + (unsigned)i), 0);
        uint64_t frees = stat_of("cuMemFree_v2");
        give(p, bytes);
        /* Exported memory really goes: others may still see it. */
        if (sim.stat) EXPECT(stat_of("cuMemFree_v2") - frees >= 1, 1);
        EXPECT(cuMemFree_v2(p), 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT(WIFEXITED(status) ? WEXITSTATUS(status) : 1000, 0);
    return end("pool_ipc");
}
