/* What comes and goes without end, and leaves the process as it was: `turnover WHAT N`, N of them.
 *   contexts   each with memory that lives, memory that was freed, a stream, and a graph that was launched
 *   threads    in waves, each of which allocates, launches a graph and frees, under a name of its own
 * Tells of the host memory after a tenth of them and in the end. For the simulator alone. */
#include "graph.h"
#include <sys/prctl.h>
CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice), cuCtxDestroy_v2(CUcontext);

enum { BLOCK = 64 << 10, WAVE = 40 };

/* Bytes of this process that no file stands behind. */
static unsigned long long host_memory(void) {
    char line[256];
    unsigned long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status) && sscanf(line, "RssAnon: %lu", &kib) != 1) {}
    if (status) fclose(status);
    return kib * 1024ull;
}

static CUdeviceptr block_new(void) {
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, BLOCK));
    counted_alloc(DEVICE, BLOCK);
    return p;
}
static void block_end(CUdeviceptr p) {
    OK(cuMemFree_v2(p));
    counted_free(DEVICE, BLOCK);
}
static Exec launched(Stream s, CUdeviceptr p) {
    capture_begin(s);
    fill(s, p, 7);
    Graph g = capture_end(s);
    Exec e = exec_of(g);
    graph_end(g);
    launch(e, s);
    wait_for(s);
    return e;
}

static void one_context(long i) {
    CUcontext own;
    OK(cuCtxCreate_v2(&own, 0, 0));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&fill_words, module, "gpumem_fill"));
    Stream s = stream_new();
    CUdeviceptr freed = block_new(), lives = block_new();
    Exec e = launched(s, lives);
    block_end(freed);
    /* Every other one takes all of it along. */
    if (i % 2) {
        exec_end(e);
        OK(cuStreamDestroy_v2(s));
        block_end(lives);
    } else {
        did.execs_destroyed++;
        counted_free(DEVICE, BLOCK);
    }
    OK(cuCtxDestroy_v2(own));
    OK(cuCtxSetCurrent(context));
}

static void *one_thread(void *number) {
    char name[16];
    snprintf(name, sizeof name, "turn %ld", (long)number);
    prctl(PR_SET_NAME, name);
    OK(cuCtxSetCurrent(context));
    CUdeviceptr p = block_new();
    OK(cuMemsetD32_v2(p, 3, 16));
    block_end(p);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int contexts = !strcmp(argv[1], "contexts");
    long n = atol(argv[2]);
    begin();
    unsigned long long before = 0;
    for (long i = 0; i < n;) {
        if (contexts) {
            one_context(i++);
        } else {
            pthread_t wave[WAVE];
            int threads = 0;
            for (; threads < WAVE && i < n; threads++, i++)
                if (pthread_create(&wave[threads], NULL, one_thread, (void *)i)) return 2;
            while (threads) pthread_join(wave[--threads], NULL);
        }
        if (!before && i >= n / 10) before = host_memory();
    }
    fprintf(stderr, "host %llu\nhost %llu\n", before, host_memory());
    return report("turnover");
}
