/* A pool as ggml's legacy one: blocks are kept when they are free, and one that asks for a little more each
 * time leaves the older ones behind. `pool_press MODE`:
 *   retry    when an allocation fails it waits, frees what it keeps and asks again
 *   abort    an allocation that fails ends the program (status 3)
 *   capture  it grows inside relaxed captures; one that fails ends the program
 *   graph    a graph that is still launched uses its older blocks; one that fails ends the program
 *   buffers  what grows is no scratch: it is asked for between computations, and used on and on
 * A second argument is how often it grows. */
#include "pool.h"

enum { WORDS = 256, KEPT = 256 };
static struct { CUdeviceptr p; size_t bytes; } kept[KEPT];
static int retries, failures;
static size_t live, peak;

__attribute__((noinline)) static CUdeviceptr ask(size_t bytes) {
    CUdeviceptr p = 0;
    CUresult rc = alloc_any(&p, bytes);
    if (rc && retries) {
        failures++;
        OK(cuCtxSynchronize());
        for (int i = 0; i < KEPT; i++)
            if (kept[i].p) {
                give(kept[i].p, kept[i].bytes);
                live -= kept[i].bytes;
                kept[i].p = 0;
            }
        rc = alloc_any(&p, bytes);
    }
    if (rc) {
        fprintf(stderr, "pool_press: %zu bytes: %d\n", bytes, rc);
        exit(3);
    }
    live += bytes;
    if (live > peak) peak = live;
    return p;
}
static CUdeviceptr take(size_t bytes, size_t *got) {
    for (int i = 0; i < KEPT; i++)
        if (kept[i].p && kept[i].bytes >= bytes) {
            CUdeviceptr p = kept[i].p;
            *got = kept[i].bytes;
            kept[i].p = 0;
            return p;
        }
    *got = (bytes + bytes / 20 + 255) / 256 * 256;
    return ask(*got);
}
static void put(CUdeviceptr p, size_t bytes) {
    for (int i = 0; i < KEPT; i++)
        if (!kept[i].p) {
            kept[i].p = p;
            kept[i].bytes = bytes;
            return;
        }
    give(p, bytes);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "retry";
    int capture = !strcmp(mode, "capture"), graph = !strcmp(mode, "graph"), buffers = !strcmp(mode, "buffers");
    int rounds = argc > 2 ? atoi(argv[2]) : 40;
    retries = !strcmp(mode, "retry");
    begin();
    Stream s = stream_new(1);
    size_t bytes = 4 * MIB;
    Graph g;
    Exec exec = NULL;
    for (int i = 0; i < rounds; i++) {
        size_t got, other;
        if (capture) OK(cuStreamBeginCapture_v2(s, 2));
        else if (!buffers) OK(k_spin(&gpu, s, 0));
        CUdeviceptr p = take(bytes, &got);
        OK(k_fill(&gpu, s, p, WORDS, (unsigned)i));
        CUdeviceptr q = take(bytes / 2, &other);
        OK(k_fill(&gpu, s, q, WORDS, ~(unsigned)i));
        if (capture) {
            OK(cuStreamEndCapture(s, &g));
            OK(cuGraphInstantiateWithFlags(&exec, g, 0));
            OK(cuGraphLaunch(exec, s));
        }
        EXPECT(wrong_words(&gpu, s, p, WORDS, (unsigned)i), 0);
        EXPECT(wrong_words(&gpu, s, q, WORDS, ~(unsigned)i), 0);
        if (graph && i == 3) {
            OK(cuStreamBeginCapture_v2(s, 2));
            OK(k_fill(&gpu, s, p, WORDS, 77));
            OK(cuStreamEndCapture(s, &g));
            OK(cuGraphInstantiateWithFlags(&exec, g, 0));
        }
        if (graph && exec) OK(cuGraphLaunch(exec, s));
        put(p, got);
        put(q, other);
        if (capture) {
            OK(cuGraphExecDestroy(exec));
            OK(cuGraphDestroy(g));
        }
        bytes += bytes / 16 / 4096 * 4096;
    }
    OK(cuStreamSynchronize(s));
    if (graph) {
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(g));
    }
    for (int i = 0; i < KEPT; i++)
        if (kept[i].p) give(kept[i].p, kept[i].bytes);
    fprintf(stderr, "peak %zu MiB, %d refused\n", peak / MIB, failures);
    return end("pool_press");
}
