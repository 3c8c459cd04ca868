/* Children in every way a process gets one, before and after CUDA is in use. A
 * forked child of a process that uses CUDA cannot use it (the driver says 3,
 * not initialised), must end cleanly, and must not disturb what its parent holds.
 * A child that executes a program can use CUDA again. */
#define _GNU_SOURCE
#include "rt.h"
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
enum { N = 10000 };

static int status_of(pid_t pid) {
    int status = -1;
    if (pid <= 0 || waitpid(pid, &status, 0) != pid) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Some work; 0 when its result is right. */
static int small_work(void) {
    static uint32_t host[N];
    void *p;
    if (cudaMalloc(&p, sizeof host) || cudaMemset(p, 3, sizeof host)) return 1;
    if (cudaMemcpy(host, p, sizeof host, cudaMemcpyDeviceToHost) || cudaFree(p)) return 1;
    return host[N - 1] == 0x03030303u ? 0 : 1;
}

/* In a child whose parent uses CUDA: refused, and no crash on the way out. */
static int refused(void) {
    void *p = (void *)1;
    return cudaMalloc(&p, 4096) != 0 && cudaFree(NULL) != 0 ? 7 : 1;
}

/* A bare clone runs no fork handlers, so nobody promises what the driver would say
 * in it: this child only ends. */
static int clone_child(void *unused) {
    (void)unused;
    _exit(7);
}

static pid_t spawn_self(void) {
    pid_t pid = -1;
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    char *args[] = {"fork", "worker", NULL};
    if (posix_spawn(&pid, "/proc/self/exe", &files, NULL, args, environ)) pid = -1;
    posix_spawn_file_actions_destroy(&files);
    return pid;
}

static pid_t vfork_exec(void) {
    pid_t pid = vfork();
    if (pid == 0) {
        execl("/proc/self/exe", "fork", "worker", (char *)NULL);
        _exit(127);
    }
    return pid;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "worker")) return small_work();

    /* Before the first GPU call: the child is a GPU program of its own. */
    pid_t pid = fork();
    if (pid == 0) exit(small_work());
    EXPECT(status_of(pid), 0);
    EXPECT(status_of(spawn_self()), 0);

    kernels_load();
    uint32_t *p = dev_alloc(N * 4);
    OK(k_fill(p, N, 99, NULL));
    OK(cudaDeviceSynchronize());

    pid = fork();
    if (pid == 0) _exit(refused());
    EXPECT(status_of(pid), 7);
    pid = fork();
    if (pid == 0) exit(refused()); /* with exit handlers and destructors */
    EXPECT(status_of(pid), 7);
    pid = fork(); /* a child that does nothing at all */
    if (pid == 0) exit(5);
    EXPECT(status_of(pid), 5);
    pid = fork(); /* a grandchild */
    if (pid == 0) {
        pid_t inner = fork();
        if (inner == 0) _exit(refused());
        _exit(status_of(inner));
    }
    EXPECT(status_of(pid), 7);

    static char stack[1 << 18] __attribute__((aligned(16)));
    EXPECT(status_of(clone(clone_child, stack + sizeof stack, SIGCHLD, NULL)), 7);

    EXPECT(status_of(vfork_exec()), 0);
    EXPECT(status_of(spawn_self()), 0);
    pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "fork", "worker", (char *)NULL);
        _exit(127);
    }
    EXPECT(status_of(pid), 0);
    EXPECT(system("true"), 0);

    /* The parent's memory is as it was. */
    EXPECT(mismatches_of(p, N, 99, NULL), 0);
    dev_free(p, N * 4);
    kernels_unload();
    return report("fork");
}
