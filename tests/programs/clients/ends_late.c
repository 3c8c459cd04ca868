/* Threads that go on allocating while the process ends. A handler that runs after the driver has ended, and before the
 * preload ends, looks whether the control socket is still there. From then on a system call that may wait, or gives the
 * processor away, kills the process. */
#include "cuda_min.h"
#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int sockets(void) {
    const char *name = getenv("GPUMEM_DIR");
    DIR *dir = name ? opendir(name) : NULL;
    int found = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        found += strstr(entry->d_name, ".sock") != NULL;
    if (dir)
        closedir(dir);
    return found;
}

#define KILLS(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

static int forbid_waits(void) {
    struct sock_filter calls[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        KILLS(SYS_membarrier),
        KILLS(SYS_sched_yield),
        KILLS(SYS_nanosleep),
        KILLS(SYS_clock_nanosleep),
        KILLS(SYS_unlinkat),
#ifdef SYS_unlink
        KILLS(SYS_unlink),
#endif
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof calls / sizeof *calls, calls};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

static void late(void) {
    void *p;
    printf("error %d, %d sockets\n", cudaMalloc(&p, 4096), sockets());
    fflush(stdout);
    if (forbid_waits())
        _exit(5);
}

static void *run(void *unused) {
    for (;;) {
        void *p;
        if (!cudaMalloc(&p, 4096))
            cudaFree(p);
    }
    return unused;
}

int main(void) {
    void *p;
    atexit(late);
    if (cudaMalloc(&p, 1000))
        return 3;
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, NULL))
            return 4;
    }
    /* Until the control thread listens. */
    for (int i = 0; i < 2000 && getenv("GPUMEM_DIR") && !sockets(); i++)
        usleep(1000);
    return 0;
}
