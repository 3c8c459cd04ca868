/* Instantiates graphs and keeps all of them, as programs do that never destroy an exec. What grows then is not the
 * program's heap. Argument: how many graphs in a second; `go` on stdin does so for so many seconds. */
#include "count.h"
#include "cuda_min.h"
#include <string.h>
#include <unistd.h>

typedef void *Graph, *Exec, *Stream;
CUresult cuStreamCreate(Stream *, unsigned), cuStreamBeginCapture_v2(Stream, int), cuStreamEndCapture(Stream, Graph *);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, Stream), cuStreamSynchronize(Stream);
CUresult cuGraphInstantiateWithFlags(Exec *, Graph, uint64_t), cuGraphDestroy(Graph), cuGraphLaunch(Exec, Stream);

int main(int argc, char **argv) {
    long each = argc > 1 ? atol(argv[1]) : 100, rounds;
    CUcontext context;
    Stream stream;
    CUdeviceptr at;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAlloc_v2(&at, 1 << 20));
    char line[32];
    while (fgets(line, sizeof line, stdin) && sscanf(line, "go %ld", &rounds) == 1) {
        for (long round = 0; round < rounds * 10; round++, usleep(100000))
            for (long n = 0; n < each / 10; n++) {
                Graph graph;
                Exec exec;
                OK(cuStreamBeginCapture_v2(stream, 2));
                for (unsigned node = 0; node < 40; node++) OK(cuMemsetD32Async(at + node * 64, node, 16, stream));
                OK(cuStreamEndCapture(stream, &graph));
                OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
                OK(cuGraphDestroy(graph));
            }
        printf("did %ld\n", rounds);
        fflush(stdout);
    }
    return 0;
}
