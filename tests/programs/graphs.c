/* Graphs as programs use them: captured in each mode, built by hand, updated,
 * refused, re-instantiated, cloned, nested, changed node by node. Each launch is
 * checked through what it wrote. */
#include "rt.h"

enum { N = 4096 };
static uint32_t *a, *b;
static cudaStream_t s;

static void launch_and_check(cudaGraphExec_t e, const void *p, uint32_t want) {
    OK(cudaMemsetAsync((void *)p, 0xee, N * 4, s));
    graph_launch(e, s);
    EXPECT(mismatches_of(p, N, want, s), 0);
}

/* a = value; b = a * factor; `extra` more kernels at the end. */
static cudaGraph_t captured(int mode, uint32_t value, uint32_t factor, int extra) {
    OK(cudaStreamBeginCapture(s, mode));
    OK(k_fill(a, N, value, s));
    OK(k_scale(b, a, N, factor, s));
    for (int i = 0; i < extra; i++) OK(k_scale(b, b, N, 1, s));
    did.kernel_launches -= 2 + extra; /* recorded, not launched */
    return end_capture(s);
}

static void capture_modes(void) {
    for (int mode = cudaStreamCaptureModeGlobal; mode <= cudaStreamCaptureModeRelaxed; mode++) {
        cudaGraph_t g = captured(mode, 3 + mode, 5, 0);
        size_t nodes = 0;
        OK(cudaGraphGetNodes(g, NULL, &nodes));
        EXPECT(nodes, 2);
        cudaGraphExec_t e = instantiate(g);
        graph_destroy(g); /* the exec does not need its graph */
        launch_and_check(e, b, (3 + mode) * 5);
        launch_and_check(e, b, (3 + mode) * 5);
        exec_destroy(e);
    }
}

static void update_and_refusal(void) {
    cudaGraph_t g1 = captured(cudaStreamCaptureModeRelaxed, 1, 10, 0);
    cudaGraph_t g2 = captured(cudaStreamCaptureModeRelaxed, 2, 10, 0);
    cudaGraph_t other = captured(cudaStreamCaptureModeRelaxed, 4, 10, 3);
    cudaGraphExec_t e = instantiate(g1);
    EXPECT(exec_update(e, g1), 0); /* right after instantiating, as llama.cpp does */
    launch_and_check(e, b, 10);
    EXPECT(exec_update(e, g2), 0);
    launch_and_check(e, b, 20);
    EXPECT(exec_update(e, other), cudaErrorGraphExecUpdateFailure);
    EXPECT(cudaGetLastError(), cudaErrorGraphExecUpdateFailure);
    launch_and_check(e, b, 20); /* a refused exec runs on as before */
    exec_destroy(e);
    e = instantiate(other);
    launch_and_check(e, b, 40);
    exec_destroy(e);
    graph_destroy(g1);
    graph_destroy(g2);
    graph_destroy(other);
}

static struct cudaKernelNodeParams fill_params(void **args) {
    return (struct cudaKernelNodeParams){
        .func = rt.fill, .gridDim = one_d(blocks_for(N)), .blockDim = one_d(256), .kernelParams = args};
}

static void on_host(void *counter) { ++*(int *)counter; }

static void by_hand(void) {
    uint32_t value = 9;
    uint64_t n = N;
    void *pa = a;
    int calls = 0;
    cudaGraph_t g, clone;
    cudaGraphNode_t set, fill, copy, host, empty, in_clone;
    OK(cudaGraphCreate(&g, 0));
    did.graphs_created++;
    struct cudaMemsetParams ms = {.dst = b, .value = 0, .elementSize = 4, .width = N, .height = 1};
    OK(cudaGraphAddMemsetNode(&set, g, NULL, 0, &ms));
    struct cudaKernelNodeParams kp = fill_params((void *[]){&pa, &n, &value});
    OK(cudaGraphAddKernelNode(&fill, g, NULL, 0, &kp));
    OK(cudaGraphAddMemcpyNode1D(&copy, g, (cudaGraphNode_t[]){set, fill}, 2, b, a, N * 4, cudaMemcpyDeviceToDevice));
    struct cudaHostNodeParams hp = {on_host, &calls};
    OK(cudaGraphAddHostNode(&host, g, &copy, 1, &hp));
    OK(cudaGraphAddEmptyNode(&empty, g, &host, 1));
    cudaGraphExec_t e = instantiate(g);
    OK(cudaGraphUpload(e, s));
    launch_and_check(e, b, 9);
    EXPECT(calls, 1);

    /* Setters on the exec: its own graph stays as it was. */
    value = 77;
    kp = fill_params((void *[]){&pa, &n, &value});
    OK(cudaGraphExecKernelNodeSetParams(e, fill, &kp));
    launch_and_check(e, b, 77);
    unsigned enabled = 2;
    OK(cudaGraphNodeGetEnabled(e, copy, &enabled));
    EXPECT(enabled, 1);
    OK(cudaGraphNodeSetEnabled(e, copy, 0));
    OK(cudaGraphNodeGetEnabled(e, copy, &enabled));
    EXPECT(enabled, 0);
    launch_and_check(e, b, 0); /* the memset ran, the copy did not */
    EXPECT(exec_update(e, g), 0);
    launch_and_check(e, b, 0); /* stays disabled through an update */
    OK(cudaGraphNodeSetEnabled(e, copy, 1));
    launch_and_check(e, b, 9); /* and the update brought the graph's value back */

    /* Setters on the graph reach execs made afterwards only. */
    value = 55;
    kp = fill_params((void *[]){&pa, &n, &value});
    OK(cudaGraphKernelNodeSetParams(fill, &kp));
    launch_and_check(e, b, 9);
    exec_destroy(e);
    e = instantiate(g);
    launch_and_check(e, b, 55);
    exec_destroy(e);

    OK(cudaGraphClone(&clone, g));
    did.graphs_created++;
    OK(cudaGraphNodeFindInClone(&in_clone, fill, clone));
    graph_destroy(g);
    value = 56;
    kp = fill_params((void *[]){&pa, &n, &value});
    OK(cudaGraphKernelNodeSetParams(in_clone, &kp));
    e = instantiate(clone);
    launch_and_check(e, b, 56);

    /* A graph as one node of another, in a copy of its own. */
    cudaGraph_t parent;
    cudaGraphNode_t child, after;
    OK(cudaGraphCreate(&parent, 0));
    did.graphs_created++;
    OK(cudaGraphAddChildGraphNode(&child, parent, NULL, 0, clone));
    graph_destroy(clone);
    void *pb = b;
    value = 57;
    kp = fill_params((void *[]){&pb, &n, &value});
    OK(cudaGraphAddKernelNode(&after, parent, &child, 1, &kp));
    cudaGraphExec_t pe = instantiate(parent);
    OK(cudaMemsetAsync(a, 0, N * 4, s));
    launch_and_check(pe, b, 57);
    EXPECT(mismatches_of(a, N, 56, s), 0);
    exec_destroy(pe);
    graph_destroy(parent);
    exec_destroy(e);
    /* Every launch with the host node enabled called it: 9, 77, 0, 0, 9, 9, 55, 56, parent. */
    EXPECT(calls, 9);
}

static void many_execs_of_one_graph(void) {
    cudaGraph_t g = captured(cudaStreamCaptureModeRelaxed, 6, 7, 1);
    cudaGraphExec_t e[8];
    for (int i = 0; i < 8; i++) e[i] = instantiate(g);
    graph_destroy(g);
    for (int i = 0; i < 8; i++) launch_and_check(e[i], b, 42);
    /* Destroyed while it runs: safe, and what it was doing is done. */
    OK(cudaMemsetAsync(b, 0, N * 4, s));
    graph_launch(e[0], s);
    exec_destroy(e[0]);
    EXPECT(mismatches_of(b, N, 42, s), 0);
    for (int i = 1; i < 8; i++) exec_destroy(e[i]);
}

int main(void) {
    kernels_load();
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    a = dev_alloc(N * 4);
    b = dev_alloc(N * 4);
    capture_modes();
    update_and_refusal();
    by_hand();
    many_execs_of_one_graph();
    dev_free(b, N * 4);
    dev_free(a, N * 4);
    OK(cudaStreamDestroy(s));
    kernels_unload();
    return report("graphs");
}
