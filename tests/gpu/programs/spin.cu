// Allocation beside a kernel that runs until the host ends it: what the driver does at once takes no wait
// of ours. waits.py runs this natively and preloaded.
//
//   spin alloc     frees memory, fills the card but for that, and allocates it again beside the kernel
//   spin hold      frees memory, starts the kernel, prints "ready", and goes on when a line comes in
//   spin devices   two threads, each on a GPU of its own, that both run out; one ends the other's kernel
//
// Prints one line of JSON. A watchdog ends the kernel after LONGEST and says so: the program always ends.
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB (size_t(1) << 20)
#define LONGEST 30.0
#define MUST(call)                                                              \
    do {                                                                        \
        cudaError_t status_ = (call);                                           \
        if (status_) {                                                          \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status_));    \
            _exit(1);                                                           \
        }                                                                       \
    } while (0)

static double seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

__global__ void spin(volatile int *end) {
    while (!*end) {}
}

// One kernel that runs until `end` is called.
struct Spin {
    volatile int *flag;
    cudaStream_t stream;
    pthread_t dog;
    volatile bool over = false, bitten = false;

    void begin() {
        void *host, *device;
        MUST(cudaHostAlloc(&host, 4096, cudaHostAllocMapped));
        MUST(cudaHostGetDevicePointer(&device, host, 0));
        flag = (volatile int *)host;
        *flag = 1;
        MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        spin<<<1, 1, 0, stream>>>((volatile int *)device);
        MUST(cudaStreamSynchronize(stream));
        *flag = 0;
        spin<<<1, 1, 0, stream>>>((volatile int *)device);
        MUST(cudaGetLastError());
        usleep(5000);
        pthread_create(&dog, 0, watch, this);
    }
    static void *watch(void *of) {
        Spin *its = (Spin *)of;
        for (double start = seconds(); !its->over; usleep(2000))
            if (seconds() - start > LONGEST) {
                its->bitten = true;
                *its->flag = 1;
                break;
            }
        return 0;
    }
    void end() {
        over = true;
        pthread_join(dog, 0);
        *flag = 1;
        MUST(cudaStreamSynchronize(stream));
    }
};

static const size_t KEPT = 16, BLOCK = 256 * MIB;

// Blocks that were used and freed: a pool may keep them.
static void free_some() {
    void *blocks[KEPT];
    for (auto &block : blocks) MUST(cudaMalloc(&block, BLOCK));
    for (auto &block : blocks) MUST(cudaMemset(block, 1, BLOCK));
    MUST(cudaDeviceSynchronize());
    for (auto &block : blocks) MUST(cudaFree(block));
}

// Takes what is free on the card but for `left` bytes.
static void *fill(size_t left) {
    size_t free, total;
    void *filler;
    MUST(cudaMemGetInfo(&free, &total));
    MUST(cudaMalloc(&filler, (free - left) / (2 * MIB) * (2 * MIB)));
    return filler;
}

struct Asked {
    cudaError_t status;
    double ms;
    void *at;
};

static Asked ask(size_t bytes) {
    Asked asked = {cudaSuccess, 0, 0};
    double start = seconds();
    asked.status = cudaMalloc(&asked.at, bytes);
    asked.ms = (seconds() - start) * 1e3;
    if (asked.status) cudaGetLastError();
    return asked;
}

static int alloc() {
    void *filler = fill(KEPT * BLOCK + 512 * MIB);
    free_some();
    Spin kernel;
    kernel.begin();
    // More than any kept block, and more than is free while those are kept.
    Asked fits = ask(KEPT * BLOCK - 256 * MIB), not_fits = ask(KEPT * BLOCK);
    kernel.end();
    printf("{\"statuses\": [%d, %d], \"ms\": [%.1f, %.1f], \"waited\": %s}\n", fits.status, not_fits.status, fits.ms,
           not_fits.ms, kernel.bitten ? "true" : "false");
    cudaFree(fits.at);
    cudaFree(filler);
    return 0;
}

static int hold() {
    free_some();
    Spin kernel;
    kernel.begin();
    printf("ready\n");
    fflush(stdout);
    char line[16];
    bool told = fgets(line, sizeof line, stdin) != 0;
    kernel.end();
    printf("{\"statuses\": [%d], \"waited\": %s}\n", told ? 0 : 1, kernel.bitten ? "true" : "false");
    return 0;
}

static Spin first_kernel;
static volatile int second_may = 0;

static void *second(void *) {
    MUST(cudaSetDevice(1));
    void *filler = fill(KEPT * BLOCK + 512 * MIB);
    free_some();
    while (!second_may) usleep(1000);
    static Asked both[2];
    both[0] = ask(KEPT * BLOCK - 256 * MIB);
    both[1] = ask(2 * KEPT * BLOCK);
    first_kernel.end();
    cudaFree(both[0].at);
    cudaFree(filler);
    return both;
}

static int devices() {
    int count = 0;
    MUST(cudaGetDeviceCount(&count));
    if (count < 2) return printf("{\"skip\": \"%d GPU\"}\n", count), 0;
    MUST(cudaSetDevice(0));
    pthread_t thread;
    pthread_create(&thread, 0, second, 0);
    void *filler = fill(KEPT * BLOCK + 512 * MIB);
    free_some();
    first_kernel.begin();
    second_may = 1;
    Asked fits = ask(KEPT * BLOCK - 256 * MIB);
    void *result;
    pthread_join(thread, &result);
    Asked *others = (Asked *)result;
    printf("{\"statuses\": [%d, %d, %d], \"ms\": [%.1f, %.1f, %.1f], \"waited\": %s}\n", fits.status, others[0].status,
           others[1].status, fits.ms, others[0].ms, others[1].ms, first_kernel.bitten ? "true" : "false");
    cudaFree(fits.at);
    cudaFree(filler);
    return 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IOLBF, 0);
    const char *what = argc > 1 ? argv[1] : "";
    return !strcmp(what, "alloc") ? alloc() : !strcmp(what, "hold") ? hold() : !strcmp(what, "devices") ? devices() : 2;
}
