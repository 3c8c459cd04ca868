/* What the graph clients share: two kernels, captured and hand-built graphs, and a log that host
 * functions write, by which order is judged. For the simulator alone, which knows kernels by name. */
#pragma once
#define _GNU_SOURCE
#include "count.h"
#include "cuda_min.h"
#include "sim.h"
#include <pthread.h>
#include <string.h>
#include <unistd.h>

typedef void *Graph, *Exec, *Node, *Stream;
typedef struct {
    CUfunction func;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    void *kern;
    CUcontext ctx;
} KernelNode;
typedef struct { void (*f)(void *); void *data; } HostNode;
typedef struct { int result; Node node, from; } UpdateInfo;

CUresult cuStreamCreate(Stream *, unsigned), cuStreamDestroy_v2(Stream), cuStreamSynchronize(Stream), cuStreamQuery(Stream);
CUresult cuStreamBeginCapture_v2(Stream, int), cuStreamEndCapture(Stream, Graph *);
CUresult cuLaunchHostFunc(Stream, void (*)(void *), void *);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, Stream);
CUresult cuGraphCreate(Graph *, unsigned), cuGraphDestroy(Graph), cuGraphGetNodes(Graph, Node *, size_t *);
CUresult cuGraphAddKernelNode_v2(Node *, Graph, const Node *, size_t, const KernelNode *);
CUresult cuGraphAddHostNode(Node *, Graph, const Node *, size_t, const HostNode *);
CUresult cuGraphAddEmptyNode(Node *, Graph, const Node *, size_t);
CUresult cuGraphAddChildGraphNode(Node *, Graph, const Node *, size_t, Graph);
CUresult cuGraphChildGraphNodeGetGraph(Node, Graph *);
CUresult cuGraphKernelNodeSetParams_v2(Node, const KernelNode *);
CUresult cuGraphInstantiateWithFlags(Exec *, Graph, uint64_t), cuGraphExecDestroy(Exec), cuGraphLaunch(Exec, Stream);
CUresult cuGraphUpload(Exec, Stream), cuGraphExecUpdate_v2(Exec, Graph, UpdateInfo *);
CUresult cuGraphExecKernelNodeSetParams_v2(Exec, Node, const KernelNode *);
CUresult cuGraphNodeSetEnabled(Exec, Node, unsigned), cuGraphNodeGetEnabled(Exec, Node, unsigned *);

enum { WORDS = 64 };
static const char image[] = ".version 6.3\n.target sm_90\n.address_size 64\n"
                            ".visible .entry gpumem_fill(.param .u64 p, .param .u64 n, .param .u32 v) { ret; }\n"
                            ".visible .entry gpumem_spin(.param .u64 ns, .param .u64 done) { ret; }\n"
                            ".visible .entry cluster_size(.param .u64 p) { ret; }\n";
static CUcontext context;
static CUmodule module;
static CUfunction fill_words, spin_for;

static inline void begin(void) {
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&fill_words, module, "gpumem_fill"));
    OK(cuModuleGetFunction(&spin_for, module, "gpumem_spin"));
}
static inline Stream stream_new(void) {
    Stream s;
    OK(cuStreamCreate(&s, 1));
    return s;
}
/* Streams here do not wait for the one that this runs on. */
static inline void clear(CUdeviceptr p) {
    OK(cuMemsetD32_v2(p, 0, WORDS));
    OK(cuStreamSynchronize(NULL));
}
static inline CUdeviceptr words_new(void) {
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, WORDS * 4));
    counted_alloc(DEVICE, WORDS * 4);
    clear(p);
    return p;
}
/* The word that all of a buffer is, -1 if they differ. */
static inline long word_of(CUdeviceptr p) {
    unsigned w[WORDS];
    OK(cuMemcpyDtoH_v2(w, p, sizeof w));
    for (int i = 1; i < WORDS; i++)
        if (w[i] != w[0]) return -1;
    return w[0];
}
static inline void fill(Stream s, CUdeviceptr p, unsigned value) {
    uint64_t n = WORDS;
    OK(cuLaunchKernel(fill_words, 1, 1, 1, 32, 1, 1, 0, s, (void *[]){&p, &n, &value}, NULL));
}
/* Keeps a stream busy. */
static inline void spin(Stream s, unsigned us) {
    uint64_t ns = us * 1000ull;
    CUdeviceptr done = 0;
    OK(cuLaunchKernel(spin_for, 1, 1, 1, 1, 1, 1, 0, s, (void *[]){&ns, &done}, NULL));
}
static inline void capture_begin(Stream s) { OK(cuStreamBeginCapture_v2(s, 2)); }
static inline Graph capture_end(Stream s) {
    Graph g;
    OK(cuStreamEndCapture(s, &g));
    did.captures++;
    did.graphs_created++;
    return g;
}
static inline Exec exec_of(Graph g) {
    Exec e;
    OK(cuGraphInstantiateWithFlags(&e, g, 0));
    did.execs_created++;
    return e;
}
static inline void graph_end(Graph g) {
    OK(cuGraphDestroy(g));
    did.graphs_destroyed++;
}
static inline void exec_end(Exec e) {
    OK(cuGraphExecDestroy(e));
    did.execs_destroyed++;
}
static inline void launch(Exec e, Stream s) {
    OK(cuGraphLaunch(e, s));
    did.graph_launches++;
}
static inline void wait_for(Stream s) { OK(cuStreamSynchronize(s)); }

/* A captured graph that fills two buffers, one after the other. */
static inline Graph pair_graph(Stream s, CUdeviceptr a, unsigned in_a, CUdeviceptr b, unsigned in_b) {
    capture_begin(s);
    fill(s, a, in_a);
    fill(s, b, in_b);
    return capture_end(s);
}
/* The same, instantiated, without its graph. */
static inline Exec pair_exec(Stream s, CUdeviceptr a, unsigned in_a, CUdeviceptr b, unsigned in_b) {
    Graph g = pair_graph(s, a, in_a, b, in_b);
    Exec e = exec_of(g);
    graph_end(g);
    return e;
}
/* A fill as a kernel node's parameters: good until the next call. */
static inline KernelNode *fill_node(CUdeviceptr p, unsigned value) {
    static __thread struct { CUdeviceptr p; uint64_t n; unsigned value; void *params[3]; KernelNode node; } of;
    of.p = p;
    of.n = WORDS;
    of.value = value;
    of.params[0] = &of.p;
    of.params[1] = &of.n;
    of.params[2] = &of.value;
    of.node = (KernelNode){.func = fill_words, .grid = {1, 1, 1}, .block = {32, 1, 1}, .params = of.params};
    return &of.node;
}
static inline Graph graph_new(void) {
    Graph g;
    OK(cuGraphCreate(&g, 0));
    did.graphs_created++;
    return g;
}
static inline Node add_fill(Graph g, const Node *after, CUdeviceptr p, unsigned value) {
    Node n;
    OK(cuGraphAddKernelNode_v2(&n, g, after, after != NULL, fill_node(p, value)));
    return n;
}

/* What host functions were called, in order. */
static char events[4096];
static pthread_mutex_t events_lock = PTHREAD_MUTEX_INITIALIZER;
static inline void event(void *letter) {
    pthread_mutex_lock(&events_lock);
    size_t n = strlen(events);
    if (n + 1 < sizeof events) events[n] = (char)(intptr_t)letter;
    pthread_mutex_unlock(&events_lock);
}
/* Real execs that the simulated driver has now, to stderr: with the cache fewer than natively. */
static inline void say_live_execs(void) { fprintf(stderr, "live_execs %lu\n", simulator()("live_execs")); }

/* What a client does, by the name of its mode. */
struct mode { const char *name; void (*run)(void); };
/* Runs one and reports; the status for main, 2 where there is no such mode. */
static inline int run_mode(const struct mode *modes, size_t count, const char *name) {
    for (size_t i = 0; name && i < count; i++)
        if (!strcmp(name, modes[i].name)) {
            modes[i].run();
            return report(name);
        }
    return 2;
}
