/* The ways out. `exits MODE` leaves in that way, its summary printed first; without
 * an argument each mode is run in a process of its own and its status is judged.
 *   static   a destructor of static storage frees device memory
 *   tls      a thread's destructor frees device memory
 *   late     calls from an exit handler older than the runtime (runs after it)
 *   _exit    no handlers at all, memory still held
 *   leak     return from main, memory still held
 *   abort    SIGABRT with memory held and work queued
 *   kill     SIGKILL, likewise
 *   thread   exit() from another thread while main works */
#include "rt.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 123456 };
static void *held;

__attribute__((destructor)) static void at_the_very_end(void) {
    if (held) fprintf(stderr, "exits: static: cudaFree gives %d\n", cudaFree(held));
}

static void late_handler(void) {
    void *p = NULL;
    size_t f, t = 0;
    int a = cudaMalloc(&p, 4096), b = cudaMemGetInfo(&f, &t), c = cudaFree(NULL);
    fprintf(stderr, "exits: late: cudaMalloc gives %d, cudaMemGetInfo %d, cudaFree %d\n", a, b, c);
    /* Success must be one. */
    if ((a == 0 && p == NULL) || (b == 0 && t == 0)) _exit(9);
}

/* The runtime's own state of the thread may be gone before: then main frees it. */
static void *left_by_thread;
static void free_of_thread(void *p) {
    int rc = cudaFree(p);
    if (rc == 0) counted_free(DEVICE, BYTES);
    else left_by_thread = p;
    fprintf(stderr, "exits: tls: cudaFree gives %d\n", rc);
}

static pthread_key_t key;
static void *tls_thread(void *unused) {
    (void)unused;
    pthread_setspecific(key, dev_alloc(BYTES));
    return NULL;
}

static void *exiting_thread(void *unused) {
    (void)unused;
    usleep(20000);
    exit(6);
}

static int leave(const char *mode) {
    if (!strcmp(mode, "late")) atexit(late_handler); /* before the first GPU call */
    kernels_load();
    void *p = dev_alloc(BYTES);
    OK(k_fill(p, BYTES / 4, 1, NULL));
    if (!strcmp(mode, "static")) {
        held = p;
        return report(mode);
    }
    if (!strcmp(mode, "tls")) {
        pthread_t t;
        pthread_key_create(&key, free_of_thread);
        if (pthread_create(&t, NULL, tls_thread, NULL)) return 2;
        pthread_join(t, NULL);
        if (left_by_thread) dev_free(left_by_thread, BYTES);
        dev_free(p, BYTES);
        return report(mode);
    }
    if (!strcmp(mode, "thread")) {
        pthread_t t;
        report(mode);
        if (pthread_create(&t, NULL, exiting_thread, NULL)) return 2;
        for (;;) { /* until the process is gone under us */
            void *q;
            if (cudaMalloc(&q, 4096) != 0 || cudaFree(q) != 0) pause();
        }
    }
    int rc = report(mode);
    if (!strcmp(mode, "_exit")) _exit(rc);
    if (!strcmp(mode, "abort") || !strcmp(mode, "kill")) {
        k_spin(200000000, NULL, NULL);
        if (!strcmp(mode, "abort")) abort();
        raise(SIGKILL);
    }
    return rc; /* leak, late */
}

int main(int argc, char **argv) {
    static const struct { const char *mode; int status; } all[] = {
        {"static", 0}, {"tls", 0}, {"late", 0}, {"_exit", 0}, {"leak", 0}, {"abort", 1000 + SIGABRT},
        {"kill", 1000 + SIGKILL}, {"thread", 6}};
    enum { MODES = sizeof all / sizeof *all };
    if (argc > 1) {
        for (int i = 0; i < MODES; i++)
            if (!strcmp(argv[1], all[i].mode)) return leave(argv[1]);
        fprintf(stderr, "exits: unknown mode %s\n", argv[1]);
        return 2;
    }
    for (int i = 0; i < MODES; i++) {
        pid_t pid = fork(); /* nothing here has used the GPU */
        if (pid == 0) {
            dup2(open("/dev/null", O_WRONLY), 1);
            execl("/proc/self/exe", "exits", all[i].mode, (char *)NULL);
            _exit(127);
        }
        int status = -1;
        waitpid(pid, &status, 0);
        int got = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
        /* The call in flight may go down with the driver. */
        bool in_flight = !strcmp(all[i].mode, "thread") && (got == 1000 + SIGSEGV || got == 1000 + SIGABRT);
        if (!in_flight && !EXPECT(got, all[i].status)) fprintf(stderr, "exits: that was mode %s\n", all[i].mode);
    }
    return report("exits");
}
