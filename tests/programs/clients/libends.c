/* Called by a Python program on its first thread: allocates, as any long call does, without the GIL, while another thread
 * ends the interpreter. What the interpreter frees gets other contents at once, or is no longer mapped. */
#include "cuda_min.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile int ended;

static int call(const char *name) {
    int (*function)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, name);
    return function ? function() : -1;
}

/* Takes memory that was freed, and fills it with what leads nowhere. */
static void spray(void) {
    for (int round = 0; round < 40; round++)
        for (size_t bytes = 32; bytes < 3000; bytes += 16) {
            char *memory = malloc(bytes);
            if (memory)
                memset(memory, 0x41, bytes);
        }
    for (int i = 0; i < 200; i++)
        mmap(NULL, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    usleep(50000);
}

static void *end(void *unused) {
    call("PyGILState_Ensure");
    call("Py_FinalizeEx");
    spray();
    ended = 1;
    return unused;
}

static long pairs;

static void pair(void) {
    void *p;
    if (cudaMalloc(&p, 4096) || cudaFree(p))
        _exit(9);
    pairs++;
}

void allocate_while_another_ends(void) {
    pthread_t thread;
    for (int i = 0; i < 100; i++)
        pair();
    pthread_create(&thread, NULL, end, NULL);
    for (time_t begin = time(NULL); !ended; pair())
        if (time(NULL) - begin > 30) {
            /* 3.11.7 never comes back from it. */
            printf("never ended\n");
            fflush(stdout);
            _exit(1);
        }
    for (int i = 0; i < 2000; i++)
        pair();
    printf("%s\n", pairs >= 2100 ? "done" : "too few");
    fflush(stdout);
    _exit(0);
}
