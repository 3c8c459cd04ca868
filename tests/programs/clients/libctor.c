/* A library whose constructor makes GPU calls, as a static device_vector does: by itself, or where CTOR says so by a
 * thread that it waits for. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

int cudaMalloc(void **p, size_t bytes);
int cudaFree(void *p);

static void *held;
int ctor_failed = -1;

static void *makes(void *arg) {
    ctor_failed = cudaMalloc(&held, 12345);
    return arg;
}

__attribute__((constructor)) static void constructor(void) {
    pthread_t t;
    if (!getenv("CTOR")) makes(NULL);
    else if (!pthread_create(&t, NULL, makes, NULL)) pthread_join(t, NULL);
}

int release_what_the_constructor_made(void) { return cudaFree(held); }
