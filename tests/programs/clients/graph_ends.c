/* Contexts and streams end where other threads, or handles of other contexts, have to do with them.
 * `graph_ends MODE`:
 *   frees      memory of one context is freed while others on its device come and go
 *   looks      graphs that branch share an exec, while contexts come and go
 *   elsewhere  handles of one context were launched on a stream of another, which goes
 *   foreign    handles take turns on a stream of another context, which goes
 *   outlived   contexts go before their handles, which nobody ends
 *   captured   streams are destroyed after their execs, while something captures
 *   threads    execs were launched on the default streams of threads that ended
 *   primary    cuCtxDestroy of a primary context, which is refused
 *   broken     one context is broken, another ends
 *   outside    a graph that is not shared has a host function, which waits for what comes after */
#include "graph.h"
CUresult cuCtxDestroy_v2(CUcontext), cuMemsetD32Async(CUdeviceptr, unsigned, size_t, Stream);
CUresult cuEventCreate(void **, unsigned), cuGraphAddEventRecordNode(Node *, Graph, const Node *, size_t, void *);
CUresult cuGraphLaunch_ptsz(Exec, Stream), cuStreamSynchronize_ptsz(Stream);

static CUdeviceptr a, b;
static Stream s;
static atomic_int over;

static Graph chain(unsigned nodes, unsigned value) {
    capture_begin(s);
    for (unsigned i = 0; i < nodes; i++) fill(s, a, value);
    return capture_end(s);
}

static void come_and_go(int works) {
    CUcontext own;
    CUdeviceptr p;
    OK(cuCtxCreate_v2(&own, 0, 0));
    Stream on = stream_new();
    if (works) {
        OK(cuMemAlloc_v2(&p, 4096));
        OK(cuMemsetD32Async(p, 1, 64, on));
        wait_for(on);
    }
    OK(cuCtxDestroy_v2(own));
}
/* So many that work, or as long as the other thread. */
static void *many(void *works) {
    for (int i = 0; works ? i < 200 : !over; i++) come_and_go(works != NULL);
    over = 1;
    return NULL;
}

static void frees(void) {
    pthread_t other;
    if (pthread_create(&other, NULL, many, &s)) exit(2);
    while (!over) {
        CUdeviceptr p;
        OK(cuMemAlloc_v2(&p, 1 << 20));
        fill(s, p, 1);
        OK(cuMemFree_v2(p));
    }
    pthread_join(other, NULL);
}

static void looks(void) {
    enum { EACH = 4 };
    Exec e[EACH];
    for (unsigned i = 0; i < EACH; i++) {
        Graph g = graph_new();
        Node two[2] = {add_fill(g, NULL, a, 1 + i), add_fill(g, NULL, b, 1 + i)}, last;
        OK(cuGraphAddKernelNode_v2(&last, g, two, 2, fill_node(a, 1 + i)));
        for (unsigned k = 0; k < i; k++) last = add_fill(g, &last, a, 1 + i);
        e[i] = exec_of(g);
        graph_end(g);
    }
    pthread_t other;
    if (pthread_create(&other, NULL, many, NULL)) exit(2);
    for (int round = 0; round < 150; round++)
        for (unsigned i = 0; i < EACH; i++) {
            launch(e[i], s);
            wait_for(s);
            EXPECT(word_of(a), 1 + i);
        }
    over = 1;
    pthread_join(other, NULL);
    for (unsigned i = 0; i < EACH; i++) exec_end(e[i]);
}

static void elsewhere(void) {
    enum { EACH = 10 };
    CUcontext other;
    OK(cuCtxCreate_v2(&other, 0, 0));
    Stream there = stream_new();
    OK(cuCtxSetCurrent(context));
    Exec e[2 * EACH];
    for (unsigned i = 0; i < EACH; i++) {
        Graph g = chain(1 + i, 1 + i);
        e[i] = exec_of(g);
        graph_end(g);
        launch(e[i], there);
    }
    OK(cuCtxSetCurrent(other));
    wait_for(there);
    OK(cuCtxDestroy_v2(other));
    OK(cuCtxSetCurrent(context));
    for (unsigned i = EACH; i < 2 * EACH; i++) {
        Graph g = chain(1 + i, 1 + i);
        e[i] = exec_of(g);
        graph_end(g);
        launch(e[i], s);
        wait_for(s);
        EXPECT(word_of(a), 1 + i);
    }
    for (unsigned i = 0; i < 2 * EACH; i++) exec_end(e[i]);
}

/* The next launch of each waits for the last one, by an event that has to be there still. */
static void foreign(void) {
    for (int destroyed = 0; destroyed < 2; destroyed++) {
        Exec one = pair_exec(s, a, 1, a, 2), two = pair_exec(s, a, 3, a, 4);
        CUcontext other;
        CUmodule there;
        OK(cuCtxCreate_v2(&other, 0, 0));
        Stream on = stream_new();
        OK(cuModuleLoadData(&there, image));
        OK(cuModuleGetFunction(&spin_for, there, "gpumem_spin"));
        spin(on, 20000);
        launch(one, on);
        launch(two, on);
        launch(one, on);
        wait_for(on);
        if (destroyed) OK(cuStreamDestroy_v2(on));
        OK(cuCtxDestroy_v2(other));
        OK(cuCtxSetCurrent(context));
        for (int round = 0; round < 2; round++) {
            launch(two, s);
            wait_for(s);
            EXPECT(word_of(a), 4);
            launch(one, s);
            wait_for(s);
            EXPECT(word_of(a), 2);
        }
        exec_end(one);
        exec_end(two);
    }
}

static void outlived(void) {
    CUfunction ours = fill_words;
    for (unsigned i = 0; i < 8; i++) {
        CUcontext own;
        CUmodule there;
        CUdeviceptr p;
        OK(cuCtxCreate_v2(&own, 0, 0));
        OK(cuModuleLoadData(&there, image));
        OK(cuModuleGetFunction(&fill_words, there, "gpumem_fill"));
        OK(cuMemAlloc_v2(&p, WORDS * 4));
        Stream on = stream_new();
        for (unsigned k = 0; k < 3; k++) {
            Exec e = pair_exec(on, p, i, p, k);
            launch(e, on);
            wait_for(on);
        }
        OK(cuCtxDestroy_v2(own));
        OK(cuCtxSetCurrent(context));
    }
    fill_words = ours;
}

static void captured(void) {
    enum { EACH = 40 };
    Graph g[EACH];
    for (unsigned i = 0; i < EACH; i++) g[i] = chain(1 + i, 1);
    Stream captures = stream_new();
    capture_begin(captures);
    for (unsigned i = 0; i < EACH; i++) {
        Stream own = stream_new();
        Exec e = exec_of(g[i]);
        launch(e, own);
        wait_for(own);
        exec_end(e);
        graph_end(g[i]);
        OK(cuStreamDestroy_v2(own));
    }
    graph_end(capture_end(captures));
    for (int i = 0; i < 3; i++) wait_for(s);
    say_live_execs();
}

static void *in_thread(void *graph) {
    OK(cuCtxSetCurrent(context));
    Exec e = exec_of(graph);
    OK(cuGraphLaunch_ptsz(e, NULL));
    did.graph_launches++;
    OK(cuStreamSynchronize_ptsz(NULL));
    exec_end(e);
    return NULL;
}
static void threads(void) {
    for (unsigned i = 0; i < 40; i++) {
        pthread_t other;
        Graph g = chain(3, 1 + i);
        if (pthread_create(&other, NULL, in_thread, g)) exit(2);
        pthread_join(other, NULL);
        EXPECT(word_of(a), 1 + i);
        graph_end(g);
    }
    wait_for(s);
    say_live_execs();
}

static void primary(void) {
    CUdeviceptr p;
    Graph g = pair_graph(s, a, 1, a, 2);
    Exec e = exec_of(g);
    launch(e, s);
    OK(cuMemAlloc_v2(&p, 1 << 20));
    EXPECT(cuCtxDestroy_v2(context) != 0, 1);
    launch(e, s);
    Exec f = exec_of(g);
    launch(f, s);
    wait_for(s);
    EXPECT(word_of(a), 2);
    OK(cuMemFree_v2(p));
    exec_end(e);
    exec_end(f);
    graph_end(g);
}

static void broken(void) {
    CUcontext other;
    CUdeviceptr p;
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc_v2(&p, 1 << 20));
    OK(cuMemFree_v2(p));
    Graph g = pair_graph(s, a, 1, a, 2);
    Exec e = exec_of(g), f;
    fill(s, 0x1000, 1);
    EXPECT(cuStreamSynchronize(s), 700);
    OK(cuCtxDestroy_v2(other));
    EXPECT(cuGraphInstantiateWithFlags(&f, g, 0), 700);
    EXPECT(cuMemAlloc_v2(&p, 1 << 20), 700);
    EXPECT(cuGraphLaunch(e, s), 700);
}

static atomic_int may_go;
static void hold(void *nothing) {
    (void)nothing;
    while (!may_go) usleep(100);
}
static void outside(void) {
    void *mark;
    Stream held = stream_new();
    OK(cuEventCreate(&mark, 0));
    Graph waits = graph_new(), two = chain(2, 1), three = chain(3, 2);
    HostNode host = {hold, 0};
    Node first, last;
    OK(cuGraphAddHostNode(&first, waits, NULL, 0, &host));
    OK(cuGraphAddEventRecordNode(&last, waits, &first, 1, mark));
    Exec w = exec_of(waits), e = exec_of(two), f = exec_of(three);
    launch(e, s);
    wait_for(s);
    launch(w, held);
    unsigned long before = simulator()("cuGraphExecDestroy");
    for (int i = 0; i < 3; i++) {
        launch(f, s);
        launch(e, s);
        wait_for(s);
    }
    fprintf(stderr, "destroyed %lu\n", simulator()("cuGraphExecDestroy") - before);
    may_go = 1;
    wait_for(held);
    exec_end(w), exec_end(e), exec_end(f);
    graph_end(waits), graph_end(two), graph_end(three);
}

int main(int argc, char **argv) {
    (void)argc;
    static const struct mode modes[] = {
        {"frees", frees}, {"looks", looks}, {"elsewhere", elsewhere}, {"foreign", foreign},
        {"outlived", outlived}, {"captured", captured},
        {"threads", threads}, {"primary", primary}, {"broken", broken}, {"outside", outside},
    };
    begin();
    a = words_new();
    b = words_new();
    s = stream_new();
    return run_mode(modes, sizeof modes / sizeof *modes, argv[1]);
}
