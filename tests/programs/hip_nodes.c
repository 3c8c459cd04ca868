/* A graph with every kind of node, instantiated in each of HIP's three ways,
 * set, disabled, cloned, launched; captures on the thread's own default stream
 * by the _spt functions. With the argument "keep" one exec of each way and the
 * graph live to the end, for others to look at. Needs a device that takes the
 * kernels of kernels/gpumem.ptx, which only the simulated one does. */
#include "count.h"
#include "hip_min.h"
#include <string.h>

extern const char gpumem_ptx[];
enum { N = 4096 };
static unsigned *a, *b;
static hipFunction_t fill;
static int host_calls;

static void on_host(void *p) { ++*(int *)p; }
static void made(hipGraph_t g) { did.graphs_created += g != NULL; }
static void destroyed(hipGraph_t g) {
    OK(hipGraphDestroy(g));
    did.graphs_destroyed++;
}
static void launch(hipGraphExec_t e, hipStream_t s) {
    OK(hipGraphLaunch(e, s));
    did.graph_launches++;
    OK(hipStreamSynchronize(s));
}
static unsigned word(const unsigned *from, int at) {
    unsigned v = 0;
    OK(hipMemcpy(&v, from + at, sizeof v, hipMemcpyDeviceToHost));
    return v;
}

static hipKernelNodeParams filling(unsigned *value, unsigned long *n) {
    static void *args[3];
    args[0] = &a, args[1] = n, args[2] = value;
    return (hipKernelNodeParams){.blockDim = {256, 1, 1}, .func = fill, .gridDim = {N / 256, 1, 1}, .kernelParams = args};
}

/* kernel -> memcpy -> memset -> host -> child(2 memsets) -> empty -> record, wait, alloc -> free */
static hipGraph_t build(hipEvent_t ev, hipGraphNode_t *kernel) {
    static unsigned value = 7;
    static unsigned long n = N;
    hipGraph_t g, child;
    hipGraphNode_t x, y;
    OK(hipGraphCreate(&g, 0));
    made(g);
    OK(hipGraphCreate(&child, 0));
    made(child);
    hipMemsetParams ms = {.dst = b, .elementSize = 4, .height = 1, .pitch = 16, .value = 9, .width = 2};
    OK(hipGraphAddMemsetNode(&x, child, NULL, 0, &ms));
    OK(hipGraphAddMemsetNode(&y, child, &x, 1, &ms));
    hipKernelNodeParams k = filling(&value, &n);
    OK(hipGraphAddKernelNode(kernel, g, NULL, 0, &k));
    OK(hipGraphAddMemcpyNode1D(&x, g, kernel, 1, b, a, N * 4, hipMemcpyDeviceToDevice));
    ms.value = 8, ms.width = 1;
    OK(hipGraphAddMemsetNode(&y, g, &x, 1, &ms));
    OK(hipGraphAddHostNode(&x, g, &y, 1, &(hipHostNodeParams){on_host, &host_calls}));
    OK(hipGraphAddChildGraphNode(&y, g, &x, 1, child));
    OK(hipGraphAddEmptyNode(&x, g, &y, 1));
    OK(hipGraphAddEventRecordNode(&y, g, &x, 1, ev));
    OK(hipGraphAddEventWaitNode(&x, g, &y, 1, ev));
    destroyed(child);
    return g;
}

static hipGraphExec_t by_log(hipGraph_t g) {
    hipGraphExec_t e;
    hipGraphNode_t bad;
    char log[32];
    OK(hipGraphInstantiate(&e, g, &bad, log, sizeof log));
    did.execs_created++;
    return e;
}
static hipGraphExec_t by_flags(hipGraph_t g) {
    hipGraphExec_t e;
    OK(hipGraphInstantiateWithFlags(&e, g, hipGraphInstantiateFlagUseNodePriority));
    did.execs_created++;
    return e;
}
static hipGraphExec_t by_params(hipGraph_t g) {
    hipGraphExec_t e;
    hipGraphInstantiateParams p = {.errNode_out = (void *)0x55, .flags = hipGraphInstantiateFlagUseNodePriority, .result_out = 77};
    OK(hipGraphInstantiateWithParams(&e, g, &p));
    EXPECT(p.result_out, 0);
    did.execs_created++;
    return e;
}
static void exec_destroy(hipGraphExec_t e) {
    OK(hipGraphExecDestroy(e));
    did.execs_destroyed++;
}

/* Allocation and free as nodes: the memory is the graph's. */
static void memory_nodes(hipStream_t s) {
    hipGraph_t g;
    hipGraphNode_t x, y;
    hipMemAllocNodeParams p = {.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = N};
    OK(hipGraphCreate(&g, 0));
    made(g);
    OK(hipGraphAddMemAllocNode(&x, g, NULL, 0, &p));
    OK(hipGraphAddMemFreeNode(&y, g, &x, 1, p.dptr));
    hipGraphExec_t e = by_flags(g);
    launch(e, s);
    exec_destroy(e);
    destroyed(g);
}

/* The thread's own default stream, by the functions that mean it. */
static void own_default_stream(void) {
    hipGraph_t g;
    OK(hipStreamBeginCapture_spt(NULL, hipStreamCaptureModeRelaxed));
    OK(hipMemsetAsync_spt(a, 0x11, N, NULL));
    OK(hipStreamEndCapture_spt(NULL, &g));
    did.captures++;
    made(g);
    hipGraphExec_t e = by_log(g);
    OK(hipGraphLaunch_spt(e, NULL));
    did.graph_launches++;
    OK(hipStreamSynchronize_spt(NULL));
    EXPECT(word(a, 0), 0x11111111);
    exec_destroy(e);
    destroyed(g);
}

static void into_a_graph(hipStream_t s) {
    hipGraph_t g, same;
    OK(hipGraphCreate(&g, 0));
    made(g);
    OK(hipStreamBeginCaptureToGraph(s, g, NULL, NULL, 0, hipStreamCaptureModeRelaxed));
    OK(hipMemsetAsync(a, 3, N, s));
    OK(hipStreamEndCapture(s, &same));
    did.captures++;
    EXPECT(same == g, 1);
    destroyed(g);
}

int main(int argc, char **argv) {
    int keep = argc > 1 && !strcmp(argv[1], "keep");
    hipStream_t s;
    hipEvent_t ev;
    hipModule_t module;
    hipGraphNode_t kernel;
    OK(hipStreamCreateWithFlags(&s, hipStreamNonBlocking));
    OK(hipEventCreate(&ev));
    OK(hipModuleLoadData(&module, gpumem_ptx));
    OK(hipModuleGetFunction(&fill, module, "gpumem_fill"));
    OK(hipMalloc((void **)&a, N * 4));
    OK(hipMalloc((void **)&b, N * 4));
    counted_alloc(DEVICE, N * 4);
    counted_alloc(DEVICE, N * 4);

    hipGraph_t g = build(ev, &kernel), copy;
    hipGraphExec_t e[3] = {by_log(g), by_flags(g), by_params(g)};
    for (int i = 0; i < 3; i++) {
        launch(e[i], s);
        EXPECT(word(b, N - 1), 7);
        EXPECT(word(b, 0), 9);
    }
    EXPECT(host_calls, 3);

    unsigned other = 12;
    unsigned long n = N;
    hipKernelNodeParams k = filling(&other, &n);
    OK(hipGraphExecKernelNodeSetParams(e[0], kernel, &k));
    launch(e[0], s);
    EXPECT(word(b, N - 1), 12);
    OK(hipMemset(a, 0, N * 4));
    OK(hipDeviceSynchronize()); /* s does not wait for the default stream */
    OK(hipGraphNodeSetEnabled(e[0], kernel, 0));
    launch(e[0], s);
    EXPECT(word(b, N - 1), 0);

    OK(hipGraphClone(&copy, g));
    made(copy);
    destroyed(copy);
    memory_nodes(s);
    own_default_stream();
    into_a_graph(s);
    if (keep) return report("hip_nodes");

    for (int i = 0; i < 3; i++) exec_destroy(e[i]);
    destroyed(g);
    OK(hipFree(a));
    OK(hipFree(b));
    counted_free(DEVICE, N * 4);
    counted_free(DEVICE, N * 4);
    OK(hipModuleUnload(module));
    OK(hipEventDestroy(ev));
    OK(hipStreamDestroy(s));
    return report("hip_nodes");
}
