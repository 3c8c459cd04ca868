// Memory of the device that is current, whichever way a program changes it: cudaSetDevice from one thread and
// from several, contexts pushed and popped. Prints what each allocation's device is; needs two GPUs.
#include <cuda.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdio.h>
static int wrong, asked;
static void at(int want, void *p, const char *how) {
    struct cudaPointerAttributes a;
    asked++;
    if (cudaPointerGetAttributes(&a, p) != cudaSuccess || a.device != want) {
        wrong++;
        printf("%s: on device %d, not %d\n", how, a.device, want);
    }
}
static void *turns(void *unused) {
    (void)unused;
    for (int i = 0; i < 200; i++) {
        int device = (i * 7 / 3) & 1;
        void *p = NULL, *q = NULL;
        CUdeviceptr r = 0;
        cudaSetDevice(device);
        if (cudaMalloc(&p, 1 << 20) || cudaMalloc(&q, 3 << 20) || cuMemAlloc(&r, 1 << 20)) { wrong++; break; }
        at(device, p, "cudaMalloc"); at(device, q, "cudaMalloc"); at(device, (void *)r, "cuMemAlloc");
        if (i % 3) cudaSetDevice(!device);
        cudaFree(p); cuMemFree(r); cudaFree(q);
        CUcontext other;
        cuDevicePrimaryCtxRetain(&other, !device);
        cuCtxPushCurrent(other);
        cuMemAlloc(&r, 1 << 20);
        at(!device, (void *)r, "pushed");
        cuMemFree(r);
        cuCtxPopCurrent(&other);
        cuDevicePrimaryCtxRelease(!device);
    }
    return NULL;
}
int main(void) {
    int n = 0;
    cudaGetDeviceCount(&n);
    if (n < 2) { printf("skip one device\n"); return 0; }
    cudaFree(0);
    void *p;
    // The first device alone is in use for a while: then there is the second one.
    for (int i = 0; i < 100; i++) { cudaMalloc(&p, 1 << 20); at(0, p, "first"); cudaFree(p); }
    cudaSetDevice(1);
    cudaMalloc(&p, 1 << 20); at(1, p, "second"); cudaFree(p);
    turns(NULL);
    pthread_t t[4];
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, turns, NULL);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    printf("%s %d allocations, %d on the wrong device\n", wrong ? "FAIL" : "ok", asked, wrong);
    return wrong != 0;
}
