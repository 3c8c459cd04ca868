/* Opens the shim as any library, and calls it by the names that it exports, in two threads. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static int (*allocate)(void **, size_t), (*release)(void *);

static void *pairs(void *failed) {
    for (int i = 0; i < 100; i++) {
        void *p = NULL;
        *(int *)failed |= allocate(&p, 4096) || !p || release(p);
    }
    return NULL;
}

int main(int argc, char **argv) {
    void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_GLOBAL);
    void *shim = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!runtime || !shim) {
        puts(dlerror());
        return 2;
    }
    allocate = (int (*)(void **, size_t))dlsym(shim, "cudaMalloc");
    release = (int (*)(void *))dlsym(shim, "cudaFree");
    int failed[2] = {0, 0};
    pthread_t thread;
    pthread_create(&thread, NULL, pairs, &failed[0]);
    pairs(&failed[1]);
    pthread_join(thread, NULL);
    puts(failed[0] || failed[1] ? "failed" : "done");
    return 0;
}
