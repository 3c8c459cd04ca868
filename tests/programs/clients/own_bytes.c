/* Instantiates graphs and keeps all of them, as programs do that never destroy an exec. What grows then is not the
 * program's heap. Arguments: how many graphs in a second, and `built` for graphs that are built node by node instead of
 * captured; `go` on stdin does so for so many seconds. */
#include "count.h"
#include "cuda_min.h"
#include <string.h>
#include <unistd.h>

typedef void *Graph, *Node, *Exec, *Stream;
typedef struct {
    CUdeviceptr dst;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
} Set;
CUresult cuStreamCreate(Stream *, unsigned), cuStreamBeginCapture_v2(Stream, int), cuStreamEndCapture(Stream, Graph *);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, Stream), cuStreamSynchronize(Stream);
CUresult cuGraphCreate(Graph *, unsigned);
CUresult cuGraphAddMemsetNode(Node *, Graph, const Node *, size_t, const Set *, CUcontext);
CUresult cuGraphInstantiateWithFlags(Exec *, Graph, uint64_t), cuGraphDestroy(Graph), cuGraphLaunch(Exec, Stream);

enum { NODES = 40 };
static CUcontext context;
static Stream stream;
static CUdeviceptr at;

static Graph captured(unsigned value) {
    Graph graph;
    OK(cuStreamBeginCapture_v2(stream, 2));
    for (unsigned node = 0; node < NODES; node++) OK(cuMemsetD32Async(at + node * 64, value, 16, stream));
    OK(cuStreamEndCapture(stream, &graph));
    return graph;
}

static Graph built(unsigned value) {
    Graph graph;
    Node before, node;
    OK(cuGraphCreate(&graph, 0));
    for (unsigned n = 0; n < NODES; n++, before = node) {
        Set set = {.dst = at + n * 64, .value = value, .element = 4, .width = 16, .height = 1};
        OK(cuGraphAddMemsetNode(&node, graph, n ? &before : NULL, n != 0, &set, context));
    }
    return graph;
}

int main(int argc, char **argv) {
    long each = argc > 1 ? atol(argv[1]) : 100, rounds;
    int builds = argc > 2 && !strcmp(argv[2], "built");
    unsigned value = 0;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAlloc_v2(&at, 1 << 20));
    char line[32];
    while (fgets(line, sizeof line, stdin) && sscanf(line, "go %ld", &rounds) == 1) {
        for (long round = 0; round < rounds * 10; round++, usleep(100000))
            for (long n = 0; n < each / 10; n++) {
                Graph graph = builds ? built(value++) : captured(value++);
                Exec exec;
                OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
                OK(cuGraphDestroy(graph));
            }
        printf("did %ld\n", rounds);
        fflush(stdout);
    }
    return 0;
}
