/* Whose memory cudaMalloc gives where the runtime need not be asked: pairs on one device, then on another, in
 * threads that chose none, after contexts were pushed, after a reset. Prints what each is, for natively and
 * preloaded to be compared. */
#include "count.h"
#include "cuda_min.h"
#include "sim.h"
#include <pthread.h>

enum { ORDINAL = 9 };
/* It is linked to the runtime alone. */
static CUresult (*ask)(void *, int, CUdeviceptr), (*retain)(CUcontext *, int), (*push)(CUcontext), (*pop)(CUcontext *), (*give_up)(int);
static void driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&ask = dlsym(library, "cuPointerGetAttribute");
    *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&push = dlsym(library, "cuCtxPushCurrent_v2");
    *(void **)&pop = dlsym(library, "cuCtxPopCurrent_v2");
    *(void **)&give_up = dlsym(library, "cuDevicePrimaryCtxRelease_v2");
}

static void pairs(const char *where, int count) {
    int device = -1, wrong = 0;
    for (int i = 0; i < count; i++) {
        void *p = NULL, *q = NULL;
        size_t bytes = (size_t)(1 + i % 3) << 20;
        OK(cudaMalloc(&p, bytes));
        counted_alloc(DEVICE, bytes);
        OK(cudaMalloc(&q, bytes));
        counted_alloc(DEVICE, bytes);
        int of_p = -1, of_q = -1;
        OK(ask(&of_p, ORDINAL, (CUdeviceptr)p));
        OK(ask(&of_q, ORDINAL, (CUdeviceptr)q));
        if (i == 0) device = of_p;
        wrong += of_p != device || of_q != device || p == q;
        OK(cudaFree(p));
        counted_free(DEVICE, bytes);
        OK(cudaFree(q));
        counted_free(DEVICE, bytes);
    }
    printf("%s: device %d, %d wrong\n", where, device, wrong);
}
static void *thread(void *device) {
    if (device) OK(cudaSetDevice(*(int *)device));
    pairs(device ? "thread with a device" : "thread without", 20);
    return NULL;
}
static void on_thread(int *device) {
    pthread_t t;
    if (pthread_create(&t, NULL, thread, device)) exit(2);
    pthread_join(t, NULL);
}

int main(void) {
    int n = 0, one = 1;
    CUcontext other = NULL;
    void *p = NULL, *q = NULL;
    OK(cudaGetDeviceCount(&n));
    driver();
    pairs("first", 40);
    /* The simulated runtime asks which context is current in each call that reaches it. The control thread asks too, once
     * a second, so the least of several rounds counts. */
    uint64_t (*stat)(const char *) = simulator();
    uint64_t least = UINT64_MAX;
    for (int round = 0; round < 5; round++) {
        uint64_t before = stat ? stat("cuCtxGetCurrent") : 0;
        for (int i = 0; i < 50; i++) {
            OK(cudaMalloc(&p, 1 << 20));
            counted_alloc(DEVICE, 1 << 20);
            OK(cudaFree(p));
            counted_free(DEVICE, 1 << 20);
        }
        uint64_t asked = stat ? stat("cuCtxGetCurrent") - before : 0;
        if (asked < least) least = asked;
    }
    if (stat) fprintf(stderr, "runtime asked %llu times\n", (unsigned long long)least);
    /* What fails, fails as before, and what is asked for nothing gets nothing. */
    printf("nothing %d, null %d, freed twice", cudaMalloc(&p, 0), cudaFree(NULL));
    OK(cudaMalloc(&p, 1 << 20));
    counted_alloc(DEVICE, 1 << 20);
    q = p;
    OK(cudaFree(p));
    counted_free(DEVICE, 1 << 20);
    printf(" %d, then %d and %d\n", cudaFree(q), cudaGetLastError(), cudaGetLastError());
    on_thread(NULL);
    if (n > 1) {
        OK(cudaSetDevice(1));
        pairs("second", 40);
        on_thread(NULL);
        on_thread(&one);
        OK(cudaSetDevice(0));
        pairs("first again", 40);
        OK(retain(&other, 1));
        OK(push(other));
        pairs("pushed", 10);
        OK(pop(&other));
        OK(give_up(1));
        pairs("popped", 10);
    }
    OK(cudaDeviceReset());
    pairs("after a reset", 40);
    return report("runtime");
}
