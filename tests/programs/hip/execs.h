/* What execs.c and handles.c share: many small graphs, and whether they did what they are for. Each
 * mode checks that; the numbers that it prints are the runtime's own. */
#pragma once
#include "count.h"
#include "hip_min.h"
#include "sim.h"
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

hipError_t hipSetDevice(int);
hipError_t hipGetDevice(int *);
hipError_t hipDeviceReset(void);
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned);
hipError_t hipEventRecord(hipEvent_t, hipStream_t);
hipError_t hipLaunchHostFunc(hipStream_t, void (*)(void *), void *);
hipError_t hipGraphUpload(hipGraphExec_t, hipStream_t);
hipError_t hipGraphExecGetFlags(hipGraphExec_t, unsigned long long *);
hipError_t hipGraphNodeGetEnabled(hipGraphExec_t, hipGraphNode_t, unsigned *);
hipError_t hipGraphExecHostNodeSetParams(hipGraphExec_t, hipGraphNode_t, const hipHostNodeParams *);

hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, hipStream_t, void **);
hipError_t hipLaunchCooperativeKernel(const void *, dim3, dim3, void **, unsigned, hipStream_t);
hipError_t hipExtLaunchKernel(const void *, dim3, dim3, void **, size_t, hipStream_t, hipEvent_t, hipEvent_t, int);
hipError_t hipExtModuleLaunchKernel(hipFunction_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, size_t, hipStream_t, void **, void **, hipEvent_t, hipEvent_t, uint32_t);
hipError_t hipLaunchKernelExC(const void *, const void *, void **);
typedef struct { size_t x, y, z; } hipPos;
typedef struct {
    hipArray_t srcArray;
    hipPos srcPos;
    hipPitchedPtr srcPtr;
    hipArray_t dstArray;
    hipPos dstPos;
    hipPitchedPtr dstPtr;
    hipExtent extent;
    int kind;
} hipMemcpy3DParms;
hipError_t hipGraphAddMemcpyNode(hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t, const hipMemcpy3DParms *);
hipError_t hipGraphChildGraphNodeGetGraph(hipGraphNode_t, hipGraph_t *);
hipError_t hipGraphAddBatchMemOpNode(hipGraphNode_t *, hipGraph_t, const hipGraphNode_t *, size_t, const void *);
hipError_t hipUserObjectCreate(void **, void *, void (*)(void *), unsigned, unsigned);
hipError_t hipGraphRetainUserObject(hipGraph_t, void *, unsigned, unsigned);

enum { MAX = 64, WORDS = 32 };
/* A graph sets every word of its block to its number, and copies them behind that. */
typedef struct {
    unsigned *block;
    hipGraph_t graph;
    hipGraphNode_t set;
    hipGraphExec_t exec;
    unsigned number;
} one;
static one all[MAX];
static hipStream_t s1, s2;
static uint64_t (*stat_of)(const char *);

/* With FILLS it sets these, too: the execs of graphs with copies go to no other handle. */
static inline hipGraph_t graph_of(unsigned *block, unsigned number, hipGraphNode_t *set) {
    hipGraph_t g;
    hipGraphNode_t second;
    hipMemsetParams p = {.dst = block, .elementSize = 4, .height = 1, .pitch = WORDS * 4, .value = number, .width = WORDS};
    OK(hipGraphCreate(&g, 0));
    did.graphs_created++;
    OK(hipGraphAddMemsetNode(set, g, NULL, 0, &p));
    if (getenv("FILLS")) {
        p.dst = block + WORDS;
        OK(hipGraphAddMemsetNode(&second, g, set, 1, &p));
        return g;
    }
    OK(hipGraphAddMemcpyNode1D(&second, g, set, 1, block + WORDS, block, WORDS * 4, hipMemcpyDeviceToDevice));
    return g;
}
static inline void graph_gone(one *o) {
    OK(hipGraphDestroy(o->graph));
    did.graphs_destroyed++;
    o->graph = NULL;
}
static inline void make(one *o, unsigned number) {
    o->number = number;
    OK(hipMalloc((void **)&o->block, WORDS * 8));
    counted_alloc(DEVICE, WORDS * 8);
    o->graph = graph_of(o->block, number, &o->set);
    OK(hipGraphInstantiate(&o->exec, o->graph, NULL, NULL, 0));
    did.execs_created++;
}
static inline void launch(one *o, hipStream_t s) {
    OK(hipGraphLaunch(o->exec, s));
    EXPECT(hipGetLastError(), 0); /* "not ready" to a question that the program did not ask */
    did.graph_launches++;
}
static inline void holds(one *o, unsigned number) {
    unsigned host[2 * WORDS];
    int wrong = 0;
    OK(hipMemcpy(host, o->block, sizeof host, hipMemcpyDeviceToHost));
    for (int i = 0; i < 2 * WORDS; i++) wrong += host[i] != number;
    EXPECT(wrong, 0);
}
static inline void launch_and_check(one *o, hipStream_t s) {
    OK(hipMemset(o->block, 0xee, WORDS * 8));
    OK(hipDeviceSynchronize());
    launch(o, s);
    OK(hipStreamSynchronize(s));
    holds(o, o->number);
}
static inline void end(one *o) {
    OK(hipGraphExecDestroy(o->exec));
    did.execs_destroyed++;
    if (o->graph) graph_gone(o);
    OK(hipFree(o->block));
    counted_free(DEVICE, WORDS * 8);
}
static inline uint64_t live(void) { return stat_of("live_execs"); }
static inline void say_live(const char *when) { printf("{\"%s\":%lu}\n", when, (unsigned long)live()); }

static inline void until(void *flag) {
    while (!atomic_load((atomic_int *)flag)) usleep(100);
}

typedef struct {
    const char *name;
    void (*run)(void);
} mode;
/* Runs the mode of this name; what main returns. */
static inline int run(const char *program, int argc, char **argv, const mode *modes, size_t n) {
    OK(hipStreamCreateWithFlags(&s1, hipStreamNonBlocking));
    OK(hipStreamCreateWithFlags(&s2, hipStreamNonBlocking));
    stat_of = simulator();
    for (size_t i = 0; i < n; i++)
        if (argc > 1 && !strcmp(argv[1], modes[i].name)) {
            modes[i].run();
            return report(program);
        }
    return 2;
}
