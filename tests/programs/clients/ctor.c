/* The first GPU calls of the process are made in a constructor: of a library that it is linked with, or of one that
 * it opens, while the loader's lock is held. With `both`, another thread makes its first call meanwhile, and looks
 * symbols up. With `warm`, the runtime was used before: then a thread of the constructor's can call it, too. */
#include "count.h"
#include "cuda_min.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static atomic_int go;

static void *other(void *arg) {
    void *p;
    while (!go) {}
    if (cudaMalloc(&p, 777) || cudaFree(p)) return NULL;
    dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    return arg;
}

int main(int argc, char **argv) {
    pthread_t t;
    void *ok = &go, *lib = NULL;
    int both = argc > 2 && !strcmp(argv[2], "both");
    if (argc > 2 && !strcmp(argv[2], "warm")) {
        void *p;
        OK(cudaMalloc(&p, 4096));
        OK(cudaFree(p));
        counted_alloc(DEVICE, 4096);
        counted_free(DEVICE, 4096);
    }
    if (both) pthread_create(&t, NULL, other, ok);
    go = 1;
    if (argc > 1 && !(lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL))) return 2;
    counted_alloc(DEVICE, 12345);
    int *failed = dlsym(lib ? lib : RTLD_DEFAULT, "ctor_failed");
    int (*release)(void) = dlsym(lib ? lib : RTLD_DEFAULT, "release_what_the_constructor_made");
    EXPECT(failed ? *failed : -2, 0);
    EXPECT(release ? release() : -2, 0);
    counted_free(DEVICE, 12345);
    if (both) {
        pthread_join(t, &ok);
        EXPECT(ok != NULL, 1);
        counted_alloc(DEVICE, 777);
        counted_free(DEVICE, 777);
    }
    return report("ctor");
}
