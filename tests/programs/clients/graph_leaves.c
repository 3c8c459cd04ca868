/* Makes graphs that allocate and do not free, launches them and destroys them with their execs, a line on stdin at a time,
 * each of which is answered by one on stdout. `auto MIB`, `plain MIB`, `freeing MIB` (the graph frees), `never MIB` (not
 * launched), `outside MIB` (freed before the end), `running MIB` (destroyed while it runs, the graph before its exec);
 * `free`, `async` (of the last one left); `end` (of the context). Arguments: nothing. */
#include "count.h"
#include "cuda_min.h"
#include <string.h>

CUresult cuStreamCreate(void **, unsigned), cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
CUresult cuStreamSynchronize(void *), cuMemAllocAsync(CUdeviceptr *, size_t, void *), cuMemFreeAsync(CUdeviceptr, void *);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuGraphInstantiateWithFlags(void **, void *, unsigned long long), cuGraphLaunch(void *, void *);
CUresult cuGraphDestroy(void *), cuGraphExecDestroy(void *);
enum { MIB = 1 << 20, AUTO_FREE = 1 };

static void *stream;
static CUdeviceptr last;

__attribute__((noinline)) static void scratch(size_t bytes) { OK(cuMemAllocAsync(&last, bytes, stream)); __asm__ volatile(""); }

static void round_of(const char *what, size_t bytes) {
    void *graph, *exec;
    int is_auto = !strcmp(what, "auto"), is_running = !strcmp(what, "running");
    OK(cuStreamBeginCapture_v2(stream, 2));
    scratch(bytes);
    if (!strcmp(what, "freeing")) OK(cuMemFreeAsync(last, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, is_auto ? AUTO_FREE : 0));
    if (strcmp(what, "never")) OK(cuGraphLaunch(exec, stream));
    if (is_auto) OK(cuGraphLaunch(exec, stream));
    if (!strcmp(what, "outside")) OK(cuMemFreeAsync(last, stream));
    if (is_running) OK(cuGraphDestroy(graph));
    OK(cuGraphExecDestroy(exec));
    if (!is_running) OK(cuGraphDestroy(graph));
    OK(cuStreamSynchronize(stream));
}

static void begin(void) {
    CUcontext ctx;
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    OK(cuStreamCreate(&stream, 1));
}

int main(void) {
    char line[64], word[16];
    long mib = 0;
    OK(cuInit(0));
    begin();
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && sscanf(line, "%15s %ld", word, &mib) >= 1) {
        if (!strcmp(word, "free")) OK(cuMemFree_v2(last));
        else if (!strcmp(word, "async")) OK(cuMemFreeAsync(last, stream));
        else if (!strcmp(word, "end")) {
            OK(cuDevicePrimaryCtxReset_v2(0));
            begin();
        } else round_of(word, (size_t)mib * MIB);
        printf("%s done\n", word);
        fflush(stdout);
    }
    return did.failures != 0;
}
