/* Makes its context beside another thread, as the driver's own cuInit starts one. With `fork`, a child does, and starts the
 * thread once the driver is initialised. */
#include "count.h"
#include "cuda_min.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void *rests(void *unused) {
    for (;;) pause();
    return unused;
}

int main(int argc, char **argv) {
    (void)argv;
    CUcontext ctx;
    CUdeviceptr block;
    pthread_t thread;
    pid_t child = argc > 1 ? fork() : 0;
    if (child) {
        int status;
        return waitpid(child, &status, 0) != child || status;
    }
    if (argc > 1) OK(cuInit(0));
    OK(pthread_create(&thread, NULL, rests, NULL));
    if (argc == 1) OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    OK(cuMemAlloc_v2(&block, 1 << 16));
    return (int)cuMemFree_v2(block);
}
