/* What the programs about allocation share: the kernels, streams, and what the simulator is told and asked.
 * On a real driver it is neither told nor asked anything. */
#pragma once
#define _GNU_SOURCE
#include "count.h"
#include "cuda_min.h"
#include "sim.h"
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct CUstream_st *Stream;
typedef struct CUgraph_st *Graph;
typedef struct CUgraphExec_st *Exec;
CUresult cuStreamCreate(Stream *, unsigned), cuStreamDestroy_v2(Stream), cuStreamSynchronize(Stream), cuStreamQuery(Stream);
CUresult cuLaunchHostFunc(Stream, void (*)(void *), void *), cuCtxFromGreenCtx(CUcontext *, void *);
CUresult cuGreenCtxCreate(void **, void *, CUdevice, unsigned), cuGreenCtxDestroy(void *);
CUresult cuStreamBeginCapture_v2(Stream, int), cuStreamEndCapture(Stream, Graph *), cuThreadExchangeStreamCaptureMode(int *);
CUresult cuGraphInstantiateWithFlags(Exec *, Graph, uint64_t), cuGraphDestroy(Graph), cuGraphLaunch(Exec, Stream);
CUresult cuGraphExecDestroy(Exec), cuMemsetD32Async(CUdeviceptr, unsigned, size_t, Stream);
CUresult cuMemcpyDtoHAsync_v2(void *, CUdeviceptr, size_t, Stream), cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuPointerGetAttribute(void *, int, CUdeviceptr), cuPointerGetAttributes(unsigned, int *, void **, CUdeviceptr);
CUresult cuPointerSetAttribute(const void *, int, CUdeviceptr), cuIpcGetMemHandle(cudaIpcMemHandle_t *, CUdeviceptr);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, Stream), cuMemFreeAsync(CUdeviceptr, Stream);
CUresult cuCtxEnablePeerAccess(CUcontext, unsigned), cuCtxDisablePeerAccess(CUcontext);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice), cuMemHostRegister_v2(void *, size_t, unsigned), cuMemHostUnregister(void *);
enum { MEMORY_TYPE = 2, SYNC_MEMOPS = 6, BUFFER_ID = 7, RANGE_START = 11, RANGE_SIZE = 12, MAPPED = 13 };
enum { KIB = 1 << 10, MIB = 1 << 20 };

extern const char gpumem_ptx[];

/* A context with the kernels in it. */
typedef struct { CUcontext context; CUfunction fill, verify, spin; CUdeviceptr counter; } Gpu;
static Gpu gpu;

static struct {
    uint64_t (*stat)(const char *);
    void (*alloc)(CUdeviceptr, uint64_t), (*free)(CUdeviceptr), (*freed)(CUdeviceptr, unsigned, int);
    int strict; /* frees have the barrier of cuMemFree: not with GPUMEM_FREE=deferred */
    int noted;  /* and no work runs that the program did not give: not with GPUMEM_POOL_FILL */
} sim;

static inline void simulator_open(void) {
    const char *free = getenv("GPUMEM_FREE");
    sim.strict = !getenv("LD_PRELOAD") || !free || strcmp(free, "deferred");
    sim.noted = sim.strict && !getenv("GPUMEM_POOL_FILL");
    sim.stat = simulator();
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!sim.stat || !driver) return;
    *(void **)&sim.alloc = dlsym(driver, "sim_note_alloc");
    *(void **)&sim.free = dlsym(driver, "sim_note_free");
    *(void **)&sim.freed = dlsym(driver, "sim_note_freed");
}
/* What the simulator says; 0 from a real driver. */
static inline uint64_t stat_of(const char *name) { return sim.stat ? sim.stat(name) : 0; }

static inline CUresult alloc_any(CUdeviceptr *p, size_t bytes) {
    CUresult rc = cuMemAlloc_v2(p, bytes);
    if (rc == 0) {
        counted_alloc(DEVICE, bytes);
        if (sim.alloc) sim.alloc(*p, bytes);
    }
    return rc;
}
static inline CUresult free_any(CUdeviceptr p, size_t bytes) {
    if (sim.free) sim.free(p);
    CUresult rc = cuMemFree_v2(p);
    if (sim.freed) sim.freed(p, (unsigned)rc, sim.noted);
    if (rc == 0) counted_free(DEVICE, bytes);
    return rc;
}
static inline CUdeviceptr get(size_t bytes) {
    CUdeviceptr p = 0;
    OK(alloc_any(&p, bytes));
    return p;
}
static inline void give(CUdeviceptr p, size_t bytes) { OK(free_any(p, bytes)); }

static inline int k_fill(Gpu *g, Stream s, CUdeviceptr p, uint64_t words, uint32_t value) {
    return cuLaunchKernel(g->fill, 4, 1, 1, 64, 1, 1, 0, s, (void *[]){&p, &words, &value}, NULL);
}
/* Work of a stream that lasts until the program says so, or for ten seconds. */
static atomic_int released;
static void until_released(void *unused) {
    (void)unused;
    for (int ms = 0; !released && ms < 10000; ms++) usleep(1000);
}
static inline void hold(Stream s) {
    released = 0;
    OK(cuLaunchHostFunc(s, until_released, NULL));
}

static inline int k_spin(Gpu *g, Stream s, uint64_t ms) {
    uint64_t ns = ms * 1000000;
    CUdeviceptr done = 0;
    return cuLaunchKernel(g->spin, 1, 1, 1, 1, 1, 1, 0, s, (void *[]){&ns, &done}, NULL);
}
/* How many of the words are not `value`. */
static inline uint64_t wrong_words(Gpu *g, Stream s, CUdeviceptr p, uint64_t words, uint32_t value) {
    uint64_t wrong = 1;
    OK(cuMemsetD32Async(g->counter, 0, 2, s));
    OK(cuLaunchKernel(g->verify, 4, 1, 1, 64, 1, 1, 0, s, (void *[]){&p, &words, &value, &g->counter}, NULL));
    OK(cuMemcpyDtoHAsync_v2(&wrong, g->counter, sizeof wrong, s));
    OK(cuStreamSynchronize(s));
    return wrong;
}
/* The kernels, in the current context; each has run once. */
static inline Gpu fitted(CUcontext context) {
    Gpu g = {.context = context};
    CUmodule module;
    OK(cuModuleLoadData(&module, gpumem_ptx));
    OK(cuModuleGetFunction(&g.fill, module, "gpumem_fill"));
    OK(cuModuleGetFunction(&g.verify, module, "gpumem_verify"));
    OK(cuModuleGetFunction(&g.spin, module, "gpumem_spin"));
    g.counter = get(8);
    OK(k_fill(&g, NULL, g.counter, 0, 0));
    OK(k_spin(&g, NULL, 0));
    wrong_words(&g, NULL, g.counter, 0, 0);
    return g;
}
static inline void begin(void) {
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    simulator_open();
    gpu = fitted(context);
}
static inline int end(const char *name) {
    OK(cuCtxSynchronize());
    give(gpu.counter, 8);
    return report(name);
}
static inline Stream stream_new(unsigned flags) {
    Stream s;
    OK(cuStreamCreate(&s, flags));
    return s;
}
static inline void nap(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

/* Runs on a thread of its own, which has no current context. */
static inline void *on_thread(void *(*f)(void *), void *arg) {
    pthread_t t;
    void *result = NULL;
    if (pthread_create(&t, NULL, f, arg)) exit(2);
    pthread_join(t, &result);
    return result;
}
/* A line of the program's answers: the same natively. */
#define SAY(...) (printf(__VA_ARGS__), putchar('\n'))
