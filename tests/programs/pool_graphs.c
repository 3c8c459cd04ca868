/* Memory that is freed while a graph refers to it, and memory that none refers to any more: says how many of
 * the first there were. Nothing is launched after its memory is gone. */
#include "pool.h"

enum { BYTES = 4 * MIB };

/* A graph that writes the beginning, and the end, of some memory. */
static Graph captured(Stream s, CUdeviceptr p) {
    Graph graph;
    OK(cuStreamBeginCapture_v2(s, 2 /* relaxed */));
    OK(k_fill(&gpu, s, p, 1024, 1));
    OK(k_fill(&gpu, s, p + BYTES - 4096, 1024, 2));
    OK(cuStreamEndCapture(s, &graph));
    return graph;
}
static Exec instantiated(Graph graph) {
    Exec exec;
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

int main(void) {
    begin();
    Stream s = stream_new(1);
    /* Neighbours: only the one in the middle is in the graph. */
    CUdeviceptr around[3] = {get(BYTES), get(BYTES), get(BYTES)}, kept = get(BYTES), late = get(BYTES), async = get(BYTES);
    CUdeviceptr managed;
    OK(cuMemAllocManaged(&managed, BYTES, 1));
    counted_alloc(MANAGED, BYTES);
    CUdeviceptr in[] = {around[1], kept, managed, async};
    Graph graphs[4];
    Exec execs[4];
    for (int i = 0; i < 4; i++) {
        graphs[i] = captured(s, in[i]);
        execs[i] = instantiated(graphs[i]);
        OK(cuGraphLaunch(execs[i], s));
    }
    OK(cuStreamSynchronize(s));
    int in_graph = 0;
    give(around[0], BYTES);
    give(around[2], BYTES);
    give(around[1], BYTES);
    OK(cuMemFree_v2(managed));
    counted_free(MANAGED, BYTES);
    if (sim.free) sim.free(async), sim.freed(async, 0, 0);
    OK(cuMemFreeAsync(async, s));
    counted_free(DEVICE, BYTES);
    in_graph += 3;
    /* The exec is gone, its graph is not. */
    for (int i = 0; i < 4; i++) OK(cuGraphExecDestroy(execs[i]));
    give(kept, BYTES);
    in_graph += 1;
    /* Both are gone. */
    Graph graph = captured(s, late);
    Exec exec = instantiated(graph);
    OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    give(late, BYTES);
    for (int i = 0; i < 4; i++) OK(cuGraphDestroy(graphs[i]));
    OK(cuStreamDestroy_v2(s));
    OK(cuCtxSynchronize());
    give(gpu.counter, 8);
    char more[64];
    snprintf(more, sizeof more, ",\"in_graph\":%d", in_graph);
    return report_more("pool_graphs", more);
}
