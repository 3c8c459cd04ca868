/* One thread closes libraries while another looks symbols up: by name, and by the first calls of a library that
 * was loaded after those that go. Arguments: rounds, a library that is linked to the runtime, libraries to come and
 * go. */
#include "count.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { MOST = 8 };
/* What both threads have reached, counted up. */
static atomic_int step;
static int rounds;
static char **come_and_go;

static void at(int wanted) {
    while (step < wanted) sched_yield();
}

static void *closes(void *arg) {
    (void)arg;
    for (int i = 0; i < rounds; i++) {
        void *held[MOST];
        int n = 0;
        for (; n < MOST && come_and_go[n]; n++) held[n] = dlopen(come_and_go[n], RTLD_NOW | RTLD_LOCAL);
        step++;
        at(3 * i + 2);
        while (n-- > 0) if (held[n]) dlclose(held[n]);
        step++;
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t t;
    int failed = 0;
    (void)argc;
    rounds = atoi(argv[1]);
    come_and_go = argv + 3;
    pthread_create(&t, NULL, closes, NULL);
    for (int i = 0; i < rounds; i++) {
        at(3 * i + 1);
        void *lib = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
        int (*call)(void) = lib ? dlsym(lib, "call_the_runtime") : NULL;
        if (!call) return 2;
        step++;
        failed += call() != 0;
        failed += dlsym(lib, "cudaMalloc") == NULL;
        failed += dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != NULL;
        failed += dlsym(RTLD_DEFAULT, "cuNoSuchFunction") != NULL;
        at(3 * i + 3);
        dlclose(lib);
    }
    pthread_join(t, NULL);
    printf("%d failed\n", failed);
    return failed != 0;
}
