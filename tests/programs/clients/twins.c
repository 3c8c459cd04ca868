/* The functions whose default stream is the thread's own, by their names and by
 * cuGetProcAddress with flag 2: what they allocate, capture and launch. */
#define _GNU_SOURCE
#include "count.h"
#include "cuda_min.h"
#include <dlfcn.h>
#include <string.h>

enum { BYTES = 54321 };
static void *lib;
static CUresult (*get)(const char *, void **, int, uint64_t, int *);

static void *by_name(const char *name) {
    void *f = dlsym(lib, name);
    if (!f) exit(2);
    return f;
}

/* "cuGraphLaunch_ptsz" is "cuGraphLaunch" for threads with a default stream of their own. */
static void *by_flag(const char *name) {
    char base[64];
    void *f = NULL;
    size_t len = strcspn(name, "_");
    memcpy(base, name, len);
    base[len] = 0;
    OK(get(base, &f, 12030, 2, NULL));
    return f;
}

static void round_of(void *(*find)(const char *)) {
    CUresult (*alloc)(CUdeviceptr *, size_t, void *) = find("cuMemAllocAsync_ptsz");
    CUresult (*from_pool)(CUdeviceptr *, size_t, void *, void *) = find("cuMemAllocFromPoolAsync_ptsz");
    CUresult (*release)(CUdeviceptr, void *) = find("cuMemFreeAsync_ptsz");
    CUresult (*set)(CUdeviceptr, unsigned char, size_t, void *) = find("cuMemsetD8Async_ptsz");
    CUresult (*begin)(void *, int) = find("cuStreamBeginCapture_v2_ptsz");
    CUresult (*end)(void *, void **) = find("cuStreamEndCapture_ptsz");
    CUresult (*begin_to)(void *, void *, void *, void *, size_t, int) = find("cuStreamBeginCaptureToGraph_ptsz");
    CUresult (*with_params)(void **, void *, void *) = find("cuGraphInstantiateWithParams_ptsz");
    CUresult (*launch)(void *, void *) = find("cuGraphLaunch_ptsz");
    CUresult (*wait)(void *) = find("cuStreamSynchronize_ptsz");
    CUresult (*pool_of)(void **, int) = by_name("cuDeviceGetDefaultMemPool");
    CUresult (*create)(void **, unsigned) = by_name("cuGraphCreate");
    CUresult (*destroy)(void *) = by_name("cuGraphDestroy"), (*destroy_exec)(void *) = by_name("cuGraphExecDestroy");
    CUdeviceptr p, q;
    void *pool, *graph, *exec;
    OK(pool_of(&pool, 0));
    OK(alloc(&p, BYTES, NULL));
    counted_alloc(ASYNC, BYTES);
    OK(from_pool(&q, 2 * BYTES, pool, NULL));
    counted_alloc(ASYNC, 2 * BYTES);

    OK(begin(NULL, 2));
    OK(set(p, 1, BYTES, NULL));
    OK(end(NULL, &graph));
    did.captures++;
    did.graphs_created++;
    struct { uint64_t flags; void *stream, *node; int result; } params = {0};
    OK(with_params(&exec, graph, &params));
    did.execs_created++;
    for (int i = 0; i < 3; i++) OK(launch(exec, NULL));
    did.graph_launches += 3;
    OK(wait(NULL));
    OK(destroy_exec(exec));
    OK(destroy(graph));
    did.execs_destroyed++;
    did.graphs_destroyed++;

    void *same;
    OK(create(&graph, 0));
    OK(begin_to(NULL, graph, NULL, NULL, 0, 2));
    OK(set(q, 1, BYTES, NULL));
    OK(end(NULL, &same));
    EXPECT(same == graph, 1);
    OK(destroy(graph));
    did.captures++;
    did.graphs_created++;
    did.graphs_destroyed++;

    OK(release(q, NULL));
    OK(release(p, NULL));
    counted_free(ASYNC, 2 * BYTES);
    counted_free(ASYNC, BYTES);
    OK(wait(NULL));
}

int main(void) {
    lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib) return 2;
    get = by_name("cuGetProcAddress_v2");
    CUresult (*init)(unsigned) = by_name("cuInit"), (*set)(CUcontext) = by_name("cuCtxSetCurrent");
    CUresult (*retain)(CUcontext *, CUdevice) = by_name("cuDevicePrimaryCtxRetain");
    CUcontext ctx;
    OK(init(0));
    OK(retain(&ctx, 0));
    OK(set(ctx));
    round_of(by_name);
    round_of(by_flag);
    return report("twins");
}
