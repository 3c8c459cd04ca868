/* Linked to the driver: graph functions that have no hook of their own, of few and of
 * many arguments, and what they answer. */
#define _GNU_SOURCE
#include "count.h"
#include "cuda_min.h"
#include <dlfcn.h>
#include <string.h>

typedef void *CUgraph, *CUgraphNode, *CUstream;
typedef struct {
    CUdeviceptr dst;
    size_t pitch;
    unsigned value, elementSize;
    size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;
CUresult cuGraphCreate(CUgraph *, unsigned);
CUresult cuGraphClone(CUgraph *, CUgraph);
CUresult cuGraphDestroy(CUgraph);
CUresult cuGraphAddMemsetNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMSET_NODE_PARAMS *, CUcontext);
CUresult cuGraphAddEmptyNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t);
CUresult cuGraphAddDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);
CUresult cuGraphRemoveDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);
CUresult cuGraphGetEdges(CUgraph, CUgraphNode *, CUgraphNode *, size_t *);
CUresult cuGraphGetRootNodes(CUgraph, CUgraphNode *, size_t *);
CUresult cuGraphNodeFindInClone(CUgraphNode *, CUgraphNode, CUgraph);
CUresult cuGraphNodeGetDependencies(CUgraphNode, CUgraphNode *, size_t *);
CUresult cuGraphDestroyNode(CUgraphNode);
CUresult cuGraphDebugDotPrint(CUgraph, const char *, unsigned);

CUresult cuStreamCreate(CUstream *, unsigned);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamBeginCapture_v2(CUstream, int);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUstream);
CUresult cuGraphInstantiateWithFlags(void **, CUgraph, uint64_t);
CUresult cuGraphLaunch(void *, CUstream);
CUresult cuGraphExecDestroy(void *);

/* A graph that was captured and instantiated, so that its handle and the exec's may be
 * other than the driver's: asked, changed, and what the exec still does. */
static void captured(CUdeviceptr p) {
    CUstream s;
    CUgraph g, clone;
    CUgraphNode nodes[4], to[4], more, found;
    void *exec;
    size_t n = 4;
    unsigned word = 0;
    OK(cuStreamCreate(&s, 1));
    OK(cuStreamBeginCapture_v2(s, 0));
    OK(cuMemsetD32Async(p, 5, 1024, s));
    OK(cuMemsetD32Async(p, 6, 512, s));
    OK(cuStreamEndCapture(s, &g));
    OK(cuGraphInstantiateWithFlags(&exec, g, 0));
    OK(cuGraphLaunch(exec, s));
    OK(cuGraphGetRootNodes(g, nodes, &n));
    EXPECT(n, 1);
    n = 4;
    OK(cuGraphGetEdges(g, nodes, to, &n));
    EXPECT(n, 1);
    OK(cuGraphAddEmptyNode(&more, g, to, 1));
    n = 4;
    OK(cuGraphGetEdges(g, nodes, to, &n));
    EXPECT(n, 2);
    OK(cuGraphClone(&clone, g));
    OK(cuGraphNodeFindInClone(&found, more, clone));
    EXPECT(cuGraphDebugDotPrint(g, "/dev/null", 0), 0);
    OK(cuGraphDestroy(clone));
    OK(cuGraphDestroy(g));
    OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH_v2(&word, p, 4));
    EXPECT(word, 6);
    OK(cuGraphExecDestroy(exec));
    OK(cuStreamDestroy_v2(s));
    did.captures++;
    did.graphs_created += 2;
    did.graphs_destroyed += 2;
    did.execs_created++;
    did.execs_destroyed++;
    did.graph_launches += 2;
}

int main(void) {
    CUcontext ctx;
    CUgraph g, clone;
    CUgraphNode a, b, set, found, nodes[4], to[4];
    size_t n = 4;
    Dl_info at = {0};
    if (!dladdr((void *)cuGraphGetEdges, &at)) return 2;
    fprintf(stderr, "%s\n", strrchr(at.dli_fname, '/') + 1);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 4096));
    counted_alloc(DEVICE, 4096);
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddEmptyNode(&a, g, NULL, 0));
    OK(cuGraphAddEmptyNode(&b, g, NULL, 0));
    CUDA_MEMSET_NODE_PARAMS ms = {.dst = p, .elementSize = 4, .value = 7, .width = 1024, .height = 1};
    OK(cuGraphAddMemsetNode(&set, g, &b, 1, &ms, ctx)); /* six arguments */
    OK(cuGraphAddDependencies(g, &a, &b, 1));
    OK(cuGraphGetEdges(g, nodes, to, &n));
    EXPECT(n, 2);
    n = 4;
    OK(cuGraphGetRootNodes(g, nodes, &n));
    EXPECT(n == 1 && nodes[0] == a, 1);
    OK(cuGraphClone(&clone, g));
    OK(cuGraphNodeFindInClone(&found, set, clone));
    EXPECT(found && found != set, 1);
    n = 4;
    OK(cuGraphNodeGetDependencies(set, nodes, &n));
    EXPECT(n == 1 && nodes[0] == b, 1);
    OK(cuGraphRemoveDependencies(g, &a, &b, 1));
    OK(cuGraphDestroyNode(a));
    EXPECT(cuGraphGetEdges(NULL, NULL, NULL, &n) != 0, 1);
    EXPECT(cuGraphAddEmptyNode(&a, NULL, NULL, 0) != 0, 1);
    OK(cuGraphDestroy(clone));
    OK(cuGraphDestroy(g));
    did.graphs_created = did.graphs_destroyed = 2;
    captured(p);
    OK(cuMemFree_v2(p));
    counted_free(DEVICE, 4096);
    return report("passed");
}
