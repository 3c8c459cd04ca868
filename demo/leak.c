/* A server that never frees what it remembers of a request: weights at the start, a cache that has sixteen buffers after
 * sixteen requests, scratch that is freed, and one block more for each request.
 *
 *     leak [blocks | graphs]...        serves until stdin ends; keeps a block of each request, or a graph, or both (blocks)
 *     leak device                      names the GPU, or says why there is none and ends with 1
 *
 * It opens the driver by itself, so that a C compiler alone builds it. */
#include <dlfcn.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WEIGHTS = 64 << 20, ENTRY = 1 << 20, KEPT = 64 << 10, CACHE = 16, NODES = 40 };
#define NOINLINE __attribute__((noinline))
#define OK(call) ((call) ? (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #call), exit(1)) : (void)0)

typedef uint64_t Pointer;
typedef void *Context, *Stream, *Graph, *Exec;
#define DRIVER(name, ...) static int (*name)(__VA_ARGS__)
DRIVER(cuInit, unsigned);
DRIVER(cuDeviceGetCount, int *);
DRIVER(cuDeviceGetName, char *, int, int);
DRIVER(cuDevicePrimaryCtxRetain, Context *, int);
DRIVER(cuCtxSetCurrent, Context);
DRIVER(cuMemAlloc_v2, Pointer *, size_t);
DRIVER(cuMemFree_v2, Pointer);
DRIVER(cuStreamCreate, Stream *, unsigned);
DRIVER(cuStreamSynchronize, Stream);
DRIVER(cuStreamBeginCapture_v2, Stream, int);
DRIVER(cuStreamEndCapture, Stream, Graph *);
DRIVER(cuMemsetD32Async, Pointer, unsigned, size_t, Stream);
DRIVER(cuGraphInstantiateWithFlags, Exec *, Graph, unsigned long long);
DRIVER(cuGraphDestroy, Graph);
DRIVER(cuGraphLaunch, Exec, Stream);

static void open_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define FIND(name) OK(!(*(void **)&name = dlsym(driver, #name)))
    FIND(cuInit); FIND(cuDeviceGetCount); FIND(cuDeviceGetName); FIND(cuDevicePrimaryCtxRetain); FIND(cuCtxSetCurrent);
    FIND(cuMemAlloc_v2); FIND(cuMemFree_v2);
    FIND(cuStreamCreate); FIND(cuStreamSynchronize); FIND(cuStreamBeginCapture_v2); FIND(cuStreamEndCapture);
    FIND(cuMemsetD32Async); FIND(cuGraphInstantiateWithFlags); FIND(cuGraphDestroy); FIND(cuGraphLaunch);
}

NOINLINE static Pointer block(size_t bytes) {
    Pointer p;
    OK(cuMemAlloc_v2(&p, bytes));
    return p;
}
NOINLINE static Pointer load_weights(void) { Pointer p = block(WEIGHTS); return p; }
NOINLINE static Pointer fill_cache(void) { Pointer p = block(ENTRY); return p; }
NOINLINE static Pointer remember(void) { Pointer p = block(KEPT); return p; }
NOINLINE static Pointer scratch(void) { Pointer p = block(ENTRY); return p; }

NOINLINE static Exec remember_graph(Stream s, Pointer p) {
    Graph g;
    Exec e;
    OK(cuStreamBeginCapture_v2(s, 2));
    for (unsigned node = 0; node < NODES; node++) OK(cuMemsetD32Async(p + 4 * node, node, 1, s));
    OK(cuStreamEndCapture(s, &g));
    OK(cuGraphInstantiateWithFlags(&e, g, 0));
    OK(cuGraphDestroy(g));
    return e;
}

static int name_device(void) {
    int devices = 0, status = cuInit(0);
    char name[128];
    if (!status) status = cuDeviceGetCount(&devices);
    if (!status && devices) status = cuDeviceGetName(name, sizeof name, 0);
    if (status || !devices) {
        fprintf(stderr, "libcuda.so.1 finds no device: status %d\n", status);
        return 1;
    }
    puts(name);
    return 0;
}

static bool among(const char *word, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], word)) return true;
    return false;
}

int main(int argc, char **argv) {
    Context context;
    Stream s;
    Pointer weights, cache[CACHE];
    int cached = 0;
    bool graphs = among("graphs", argc, argv), blocks = !graphs || among("blocks", argc, argv);
    open_driver();
    if (among("device", argc, argv)) return name_device();
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&s, 1));
    weights = load_weights();
    for (long request = 0;; request++) {
        Pointer p = scratch();
        if (cached < CACHE) cache[cached++] = fill_cache();
        if (graphs) OK(cuGraphLaunch(remember_graph(s, p), s));
        if (blocks) remember();
        OK(cuStreamSynchronize(s));
        OK(cuMemFree_v2(p));
        if (request == 1) {
            puts("serving");
            fflush(stdout);
        }
        struct pollfd in = {0, POLLIN, 0};
        if (poll(&in, 1, 5) > 0) break;
    }
    (void)weights, (void)cache;
    return 0;
}
