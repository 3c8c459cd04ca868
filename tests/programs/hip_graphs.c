/* Graphs through HIP: captured, instantiated by the five-argument call and by
 * flags, updated, refused, built by hand, set node by node, destroyed. Memset and
 * copy nodes only: a kernel would need a code object for one architecture. */
#include "count.h"
#include "hip_min.h"
#include <string.h>

enum { N = 50000 };
static unsigned char *a, *b, host[N];
static hipStream_t s;

static hipGraph_t captured(int mode, int value, int copies) {
    hipGraph_t g = NULL;
    OK(hipStreamBeginCapture(s, mode));
    OK(hipMemsetAsync(a, value, N, s));
    for (int i = 0; i < copies; i++) OK(hipMemcpyAsync(b, a, N, hipMemcpyDeviceToDevice, s));
    OK(hipStreamEndCapture(s, &g));
    did.captures++;
    did.graphs_created++;
    return g;
}
static void graph_destroy(hipGraph_t g) {
    OK(hipGraphDestroy(g));
    did.graphs_destroyed++;
}
static hipGraphExec_t instantiate(hipGraph_t g, int by_flags) {
    hipGraphExec_t e = NULL;
    hipGraphNode_t error = NULL;
    char log[64];
    OK(by_flags ? hipGraphInstantiateWithFlags(&e, g, 0) : hipGraphInstantiate(&e, g, &error, log, sizeof log));
    did.execs_created++;
    return e;
}
static void exec_destroy(hipGraphExec_t e) {
    OK(hipGraphExecDestroy(e));
    did.execs_destroyed++;
}
static void launch_and_check(hipGraphExec_t e, int want) {
    int wrong = 0;
    OK(hipMemsetAsync(b, 0xee, N, s));
    OK(hipGraphLaunch(e, s));
    did.graph_launches++;
    OK(hipStreamSynchronize(s));
    OK(hipMemcpy(host, b, N, hipMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) wrong += host[i] != (unsigned char)want;
    EXPECT(wrong, 0);
}
static int update(hipGraphExec_t e, hipGraph_t g) {
    hipGraphNode_t node = NULL;
    int result = -1, rc = hipGraphExecUpdate(e, g, &node, &result);
    if (rc == 0) did.exec_updates++;
    else did.exec_updates_failed++;
    EXPECT((rc == 0) == (result == 0), 1);
    return rc;
}

int main(void) {
    int count = 0;
    if (hipGetDeviceCount(&count) != 0 || count == 0) return report_more("hip_graphs", ",\"device\":false");
    OK(hipStreamCreateWithFlags(&s, hipStreamNonBlocking));
    OK(hipMalloc((void **)&a, N));
    counted_alloc(DEVICE, N);
    OK(hipMalloc((void **)&b, N));
    counted_alloc(DEVICE, N);

    for (int mode = hipStreamCaptureModeGlobal; mode <= hipStreamCaptureModeRelaxed; mode++) {
        hipGraph_t g = captured(mode, 10 + mode, 1);
        hipGraphExec_t e = instantiate(g, mode == hipStreamCaptureModeRelaxed);
        graph_destroy(g);
        launch_and_check(e, 10 + mode);
        launch_and_check(e, 10 + mode);
        exec_destroy(e);
    }

    hipGraph_t g1 = captured(hipStreamCaptureModeRelaxed, 21, 1), g2 = captured(hipStreamCaptureModeRelaxed, 22, 1);
    hipGraph_t longer = captured(hipStreamCaptureModeRelaxed, 23, 4);
    hipGraphExec_t e = instantiate(g1, 0);
    EXPECT(update(e, g1), 0);
    launch_and_check(e, 21);
    EXPECT(update(e, g2), 0);
    launch_and_check(e, 22);
    EXPECT(update(e, longer), hipErrorGraphExecUpdateFailure);
    (void)hipGetLastError();
    launch_and_check(e, 22);
    exec_destroy(e);
    e = instantiate(longer, 0);
    launch_and_check(e, 23);
    exec_destroy(e);
    graph_destroy(longer);
    graph_destroy(g2);
    graph_destroy(g1);

    hipGraph_t g;
    hipGraphNode_t set, copy;
    size_t nodes = 0;
    OK(hipGraphCreate(&g, 0));
    did.graphs_created++;
    hipMemsetParams ms = {.dst = a, .elementSize = 1, .height = 1, .pitch = N, .value = 31, .width = N};
    OK(hipGraphAddMemsetNode(&set, g, NULL, 0, &ms));
    OK(hipGraphAddMemcpyNode1D(&copy, g, &set, 1, b, a, N, hipMemcpyDeviceToDevice));
    OK(hipGraphGetNodes(g, NULL, &nodes));
    EXPECT(nodes, 2);
    e = instantiate(g, 1);
    launch_and_check(e, 31);
    ms.value = 32;
    OK(hipGraphExecMemsetNodeSetParams(e, set, &ms));
    launch_and_check(e, 32);
    exec_destroy(e);
    e = instantiate(g, 1);
    launch_and_check(e, 31); /* the graph itself was not changed */
    exec_destroy(e);
    graph_destroy(g);

    OK(hipFree(b));
    counted_free(DEVICE, N);
    OK(hipFree(a));
    counted_free(DEVICE, N);
    OK(hipStreamDestroy(s));
    return report_more("hip_graphs", ",\"device\":true");
}
