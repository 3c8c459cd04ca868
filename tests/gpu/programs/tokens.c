/* Calls of the runtime that llama.cpp makes, and the time in each: preloaded before anything else, by llama_own.py.
 *
 * Each function that ggml's CUDA backend calls while it works is counted and timed from its entry to its return. At
 * SIGUSR2 all counts begin anew; at the next one, and at exit, one line of JSON goes to the file TOKENS_OUT. */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FUNCTIONS(X)                                                                                                    \
    X(cudaLaunchKernel, (const void *f, dim3 g, dim3 b, void **a, size_t m, cudaStream_t s), (f, g, b, a, m, s))         \
    X(cudaLaunchKernelExC, (const cudaLaunchConfig_t *c, const void *f, void **a), (c, f, a))                           \
    X(cudaGraphLaunch, (cudaGraphExec_t e, cudaStream_t s), (e, s))                                                     \
    X(cudaGraphInstantiate, (cudaGraphExec_t *e, cudaGraph_t g, unsigned long long f), (e, g, f))                       \
    X(cudaGraphExecUpdate, (cudaGraphExec_t e, cudaGraph_t g, cudaGraphExecUpdateResultInfo *i), (e, g, i))             \
    X(cudaGraphExecDestroy, (cudaGraphExec_t e), (e))                                                                   \
    X(cudaGraphDestroy, (cudaGraph_t g), (g))                                                                           \
    X(cudaStreamBeginCapture, (cudaStream_t s, enum cudaStreamCaptureMode m), (s, m))                                   \
    X(cudaStreamEndCapture, (cudaStream_t s, cudaGraph_t *g), (s, g))                                                   \
    X(cudaMemcpyAsync, (void *d, const void *f, size_t n, enum cudaMemcpyKind k, cudaStream_t s), (d, f, n, k, s))      \
    X(cudaMemcpy2DAsync, (void *d, size_t p, const void *f, size_t q, size_t w, size_t h, enum cudaMemcpyKind k,        \
                          cudaStream_t s), (d, p, f, q, w, h, k, s))                                                    \
    X(cudaMemsetAsync, (void *d, int v, size_t n, cudaStream_t s), (d, v, n, s))                                        \
    X(cudaEventRecord, (cudaEvent_t e, cudaStream_t s), (e, s))                                                         \
    X(cudaStreamWaitEvent, (cudaStream_t s, cudaEvent_t e, unsigned f), (s, e, f))                                      \
    X(cudaStreamSynchronize, (cudaStream_t s), (s))                                                                     \
    X(cudaMalloc, (void **p, size_t n), (p, n))                                                                         \
    X(cudaFree, (void *p), (p))

enum {
#define X(name, parameters, arguments) AT_##name,
    FUNCTIONS(X)
#undef X
    COUNT
};
static const char *const names[COUNT] = {
#define X(name, parameters, arguments) #name,
    FUNCTIONS(X)
#undef X
};
static _Atomic unsigned long long calls[COUNT], spent_ns[COUNT];

static unsigned long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

#define X(name, parameters, arguments)                                                    \
    cudaError_t name parameters {                                                         \
        static cudaError_t(*_Atomic real) parameters;                                     \
        if (!real) real = (cudaError_t(*) parameters)dlsym(RTLD_NEXT, #name);             \
        unsigned long long start = now_ns();                                              \
        cudaError_t status = real arguments;                                              \
        atomic_fetch_add_explicit(&spent_ns[AT_##name], now_ns() - start, memory_order_relaxed); \
        atomic_fetch_add_explicit(&calls[AT_##name], 1, memory_order_relaxed);            \
        return status;                                                                    \
    }
FUNCTIONS(X)
#undef X

static void write_out(void) {
    const char *path = getenv("TOKENS_OUT");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (file < 0) return;
    char line[8192];
    int length = snprintf(line, sizeof line, "{");
    for (int i = 0; i < COUNT; i++)
        length += snprintf(line + length, sizeof line - length, "%s\"%s\": [%llu, %llu]", i ? ", " : "", names[i],
                           (unsigned long long)calls[i], (unsigned long long)spent_ns[i]);
    length += snprintf(line + length, sizeof line - length, "}\n");
    if (write(file, line, length) != length) perror("tokens");
    close(file);
}
static atomic_int counting;
static void turn(int signal) {
    (void)signal;
    if (atomic_fetch_xor(&counting, 1)) write_out();
    else
        for (int i = 0; i < COUNT; i++) calls[i] = spent_ns[i] = 0;
}
__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {.sa_handler = turn, .sa_flags = SA_RESTART};
    sigaction(SIGUSR2, &action, NULL);
}
