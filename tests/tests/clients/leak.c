/* A server that never frees what it remembers of a request: weights at the start, a
 * cache of sixteen buffers, scratch that is freed, and one block more for each
 * request. It serves requests until stdin ends. With an argument it keeps a graph of
 * each request instead. */
#include "graph.h"
#include <poll.h>

enum { WEIGHTS = 64 << 20, ENTRY = 1 << 20, KEPT = 64 << 10, CACHE = 16 };
#define NOINLINE __attribute__((noinline))

NOINLINE static CUdeviceptr block(size_t bytes) {
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, bytes));
    return p;
}
NOINLINE static CUdeviceptr load_weights(void) { CUdeviceptr p = block(WEIGHTS); return p; }
NOINLINE static CUdeviceptr fill_cache(void) { CUdeviceptr p = block(ENTRY); return p; }
NOINLINE static CUdeviceptr remember(void) { CUdeviceptr p = block(KEPT); return p; }
NOINLINE static CUdeviceptr scratch(void) { CUdeviceptr p = block(ENTRY); return p; }

NOINLINE static Exec remember_graph(Stream s, CUdeviceptr p) {
    capture_begin(s);
    fill(s, p, 7);
    Graph g = capture_end(s);
    Exec e;
    OK(cuGraphInstantiateWithFlags(&e, g, 0));
    graph_end(g);
    return e;
}

int main(int argc, char **argv) {
    (void)argv;
    begin();
    Stream s = stream_new();
    CUdeviceptr weights = load_weights(), cache[CACHE];
    for (long request = 0;; request++) {
        CUdeviceptr p = scratch();
        if (request < CACHE) cache[request] = fill_cache();
        if (argc > 1) launch(remember_graph(s, p), s);
        else remember();
        wait_for(s);
        OK(cuMemFree_v2(p));
        if (request == CACHE) {
            printf("serving\n");
            fflush(stdout);
        }
        struct pollfd in = {0, POLLIN, 0};
        if (poll(&in, 1, 5) > 0) break;
    }
    (void)weights, (void)cache;
    return 0;
}
