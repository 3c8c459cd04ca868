/* A thread with little stack: `small_stacks KIB WHAT`; WHAT is `memory` (an allocation and its free) or `graphs`
 * (captured, instantiated, launched, destroyed), the first of its kind in the process. */
#include "graph.h"
#include <sys/mman.h>

static Stream s;
static CUdeviceptr buffer;
static int graphs;

static void *work(void *unused) {
    OK(cuCtxSetCurrent(context));
    if (!graphs) {
        CUdeviceptr p;
        OK(cuMemAlloc_v2(&p, 4096));
        counted_alloc(DEVICE, 4096);
        OK(cuMemFree_v2(p));
        counted_free(DEVICE, 4096);
        return unused;
    }
    uint64_t n = WORDS;
    unsigned value = 7;
    void *params[] = {&buffer, &n, &value};
    Graph graph;
    Exec exec;
    OK(cuStreamBeginCapture_v2(s, 2));
    OK(cuLaunchKernel(fill_words, 1, 1, 1, 64, 1, 1, 0, s, params, NULL));
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    did.graphs_created = did.graphs_destroyed = did.execs_created = did.execs_destroyed = 1;
    did.graph_launches = did.captures = 1;
    return unused;
}

int main(int argc, char **argv) {
    size_t bytes = argc > 1 ? (size_t)atol(argv[1]) << 10 : 64 << 10;
    graphs = argc > 2 && !strcmp(argv[2], "graphs");
    begin();
    s = stream_new();
    OK(cuMemAlloc_v2(&buffer, WORDS * 4));
    counted_alloc(DEVICE, WORDS * 4);
    /* The page below the stack cannot be touched. */
    char *stack = mmap(NULL, bytes + 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    OK(mprotect(stack + 65536, bytes, PROT_READ | PROT_WRITE));
    pthread_attr_t attr;
    pthread_t thread;
    OK(pthread_attr_init(&attr));
    OK(pthread_attr_setstack(&attr, stack + 65536, bytes));
    OK(pthread_create(&thread, &attr, work, NULL));
    OK(pthread_join(thread, NULL));
    OK(cuMemFree_v2(buffer));
    counted_free(DEVICE, WORDS * 4);
    return report("small_stacks");
}
