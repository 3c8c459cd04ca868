/* A thread with little stack: `small_stacks KIB WHAT`; WHAT is `memory` (an allocation and its free) or `graphs`
 * (captured, instantiated, launched, destroyed), the first of its kind in the process. With a third argument the
 * main thread has so much and does all of it. */
#include "graph.h"
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>

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

/* Begins again as the same program on a main stack of so many bytes, whose place is no matter of chance. */
static int begin_again(size_t bytes, char **argv) {
    struct rlimit limit = {bytes, RLIM_INFINITY};
    argv[3] = "main";
    if (personality(ADDR_NO_RANDOMIZE) < 0 || setrlimit(RLIMIT_STACK, &limit)) return 2;
    execv("/proc/self/exe", argv);
    return 2;
}

int main(int argc, char **argv) {
    size_t bytes = argc > 1 ? (size_t)atol(argv[1]) << 10 : 64 << 10;
    if (argc > 3 && strcmp(argv[3], "main")) return begin_again(bytes, argv);
    graphs = argc > 2 && !strcmp(argv[2], "graphs");
    begin();
    s = stream_new();
    OK(cuMemAlloc_v2(&buffer, WORDS * 4));
    counted_alloc(DEVICE, WORDS * 4);
    if (argc > 3) {
        work(NULL);
        OK(cuMemFree_v2(buffer));
        counted_free(DEVICE, WORDS * 4);
        return report("small_stacks");
    }
    /* The least that a thread may have differs: 16 KiB on x86-64, 128 KiB on aarch64. */
    size_t least = (size_t)sysconf(_SC_THREAD_STACK_MIN);
    if (bytes < least) bytes = least;
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
