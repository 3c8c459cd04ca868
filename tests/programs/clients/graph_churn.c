/* Graphs that change from launch to launch, as ggml does it: captured anew, updated, and instantiated
 * again where the update was refused. `graph_churn MODE`:
 *   ggml     shapes of 5 to 44 nodes that come back, kernels of many modules and libraries
 *   known    destroyed and instantiated again, with what it had the last time but one
 *   packed   parameters given in one buffer and one by one, by turns
 *   refused  updates that the driver refuses, whether the exec is there or not
 *   running  destroyed while they run, behind a host function that waits for what comes after
 *   starved  nodes of an exec set and switched, where no real exec can be had
 *   homes    default streams of two contexts of one device
 *   late     handles that are launched late, and one that never is
 *   unload   modules that come and go beside handles of the same shape that stay
 *   threads  the same in threads, each with a module of its own
 *   context  other contexts come and go
 *   lives    threads, each in a context of its own that comes and goes with its graphs */
#include "graph.h"
CUresult cuGraphKernelNodeSetAttribute(Node, int, const void *);
CUresult cuLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
CUresult cuLibraryGetKernel(void **, void *, const char *), cuKernelGetFunction(CUfunction *, void *);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, size_t, Stream), cuCtxDestroy_v2(CUcontext);

enum { HOMES = 9, BUFFERS = 4 };
static CUfunction home[HOMES];
static CUdeviceptr buffer[BUFFERS];
static Stream s;

/* Half of the homes are modules, half are libraries, as one fat binary for each source file gives. */
static void homes(void) {
    for (int i = 0; i < HOMES; i++) {
        if (i % 2) {
            CUmodule m;
            OK(cuModuleLoadData(&m, image));
            OK(cuModuleGetFunction(&home[i], m, "gpumem_fill"));
        } else {
            void *library, *kernel;
            OK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
            OK(cuLibraryGetKernel(&kernel, library, "gpumem_fill"));
            OK(cuKernelGetFunction(&home[i], kernel));
        }
    }
}

static unsigned random_state = 1;
static unsigned below(unsigned n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 16) % n;
}

/* Shapes: how many nodes, and where copies and memsets stand among the kernels. */
static const struct shape { unsigned nodes, copy, set; } shapes[] = {{5, 0, 0}, {5, 2, 0}, {9, 0, 4}, {12, 5, 0}, {31, 7, 9}, {44, 11, 0}};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static unsigned left[BUFFERS];

/* A chain of that shape, with whatever kernels; what it will leave in the buffers. */
static void work(const struct shape *of) {
    for (unsigned i = 0; i < of->nodes; i++) {
        unsigned to = below(BUFFERS), from = below(BUFFERS), value = 1 + below(1000);
        uint64_t n = WORDS;
        if (of->copy && i % of->copy == of->copy - 1) {
            if (from == to) from = (from + 1) % BUFFERS;
            OK(cuMemcpyDtoDAsync_v2(buffer[to], buffer[from], WORDS * 4, s));
            left[to] = left[from];
        } else if (of->set && i % of->set == of->set - 1) {
            OK(cuMemsetD32Async(buffer[to], value, WORDS, s));
            left[to] = value;
        } else {
            OK(cuLaunchKernel(home[below(HOMES)], 1, 1, 1, 32, 1, 1, 0, s, (void *[]){&buffer[to], &n, &value}, NULL));
            left[to] = value;
        }
    }
}
static void check(void) {
    wait_for(s);
    for (int i = 0; i < BUFFERS; i++) EXPECT(word_of(buffer[i]), left[i]);
}
static void wiped(void) {
    wait_for(s);
    for (int i = 0; i < BUFFERS; i++) clear(buffer[i]);
}
static void cleared(void) {
    wiped();
    memset(left, 0, sizeof left);
}

struct key { Graph graph; Exec exec; };
/* One computation of ggml's for a key. */
static void compute(struct key *key, const struct shape *shape) {
    cleared();
    capture_begin(s);
    work(shape);
    if (key->graph) graph_end(key->graph);
    key->graph = capture_end(s);
    if (!key->exec) key->exec = exec_of(key->graph);
    UpdateInfo info;
    int rc = cuGraphExecUpdate_v2(key->exec, key->graph, &info);
    if (rc == 910) {
        did.exec_updates_failed++;
        exec_end(key->exec);
        key->exec = exec_of(key->graph);
        OK(cuGraphExecUpdate_v2(key->exec, key->graph, &info));
    } else EXPECT(rc, 0);
    did.exec_updates++;
    for (int times = 0; times < 2; times++) {
        launch(key->exec, s);
        check();
        wiped();
    }
}
static void ggml(void) {
    enum { KEYS = 3 };
    struct key keys[KEYS] = {0};
    unsigned long made = 0;
    for (int step = 0; step < 300; step++) {
        if (step == 100) made = simulator()("graph_instantiations");
        /* What the last computation of a key was comes back more often than not. */
        unsigned key = below(KEYS);
        compute(&keys[key], &shapes[below(5) ? key : below(SHAPES)]);
    }
    fprintf(stderr, "instantiations %lu\n", simulator()("graph_instantiations") - made);
    for (int i = 0; i < KEYS; i++) {
        exec_end(keys[i].exec);
        graph_end(keys[i].graph);
    }
}

static Graph captured(const struct shape *shape) {
    cleared();
    capture_begin(s);
    work(shape);
    return capture_end(s);
}
static void run(Exec e) {
    launch(e, s);
    check();
}
static void known(void) {
    Exec e = NULL;
    for (int step = 0; step < 40; step++) {
        Graph g = captured(&shapes[step % 4]);
        if (e) exec_end(e);
        if (step == 4) fprintf(stderr, "instantiations %lu\n", simulator()("graph_instantiations"));
        e = exec_of(g);
        graph_end(g);
        run(e);
    }
    fprintf(stderr, "instantiations %lu\n", simulator()("graph_instantiations"));
    exec_end(e);
}

static void fill_packed(CUdeviceptr p, unsigned value) {
    struct { CUdeviceptr p; uint64_t n; unsigned value; } all = {p, WORDS, value};
    size_t bytes = 20; /* without what the compiler adds at the end: the driver refuses more than it takes */
    OK(cuLaunchKernel(home[0], 1, 1, 1, 32, 1, 1, 0, s, NULL, (void *[]){(void *)1, &all, (void *)2, &bytes, NULL}));
}
static Graph maybe_packed(bool packed, unsigned value) {
    capture_begin(s);
    for (unsigned i = 0; i < BUFFERS; i++) {
        left[i] = value + i;
        if (packed) fill_packed(buffer[i], value + i);
        else fill(s, buffer[i], value + i);
    }
    return capture_end(s);
}
static void packed(void) {
    enum { EXECS = 3 };
    Exec e[EXECS];
    unsigned means[EXECS];
    for (unsigned i = 0; i < EXECS; i++) {
        Graph g = maybe_packed(i == 0, means[i] = 10 * i);
        e[i] = exec_of(g);
        graph_end(g);
    }
    for (unsigned step = 0; step < 60; step++) {
        unsigned i = below(EXECS);
        if (below(2)) {
            Graph g = maybe_packed(below(2), means[i] = 100 + step);
            OK(cuGraphExecUpdate_v2(e[i], g, NULL));
            did.exec_updates++;
            graph_end(g);
        }
        wiped();
        for (unsigned k = 0; k < BUFFERS; k++) left[k] = means[i] + k;
        run(e[i]);
    }
    for (int i = 0; i < EXECS; i++) exec_end(e[i]);
}

/* Instantiated long before they are launched, and some never are. */
static void late(void) {
    enum { EXECS = 6 };
    Exec e[EXECS];
    for (unsigned i = 0; i < EXECS; i++) {
        Graph g = maybe_packed(false, 10 * i);
        e[i] = exec_of(g);
        graph_end(g);
    }
    for (unsigned round = 0; round < 3; round++)
        for (unsigned i = EXECS; i-- > 0;) {
            wiped();
            for (unsigned k = 0; k < BUFFERS; k++) left[k] = 10 * i + k;
            run(e[i]);
        }
    for (int i = 0; i < EXECS; i++) exec_end(e[i]);
    fprintf(stderr, "early settings %lu\n", simulator()("graph_early_settings"));
    fprintf(stderr, "uploads %lu\n", simulator()("cuGraphUpload"));
    Exec never = pair_exec(s, buffer[0], 1, buffer[1], 2);
    unsigned long before = simulator()("cuGraphExecDestroy");
    exec_end(never);
    fprintf(stderr, "destroyed %lu\n", simulator()("cuGraphExecDestroy") - before);
}

static void refused(void) {
    enum { EXECS = 3 };
    Exec e[EXECS];
    unsigned means[EXECS][BUFFERS];
    for (int i = 0; i < EXECS; i++) {
        Graph g = captured(&shapes[i]);
        e[i] = exec_of(g);
        graph_end(g);
        memcpy(means[i], left, sizeof left);
    }
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < EXECS; i++)
            for (int k = 0; k < SHAPES; k++) {
                Graph g = captured(&shapes[k]);
                UpdateInfo info = {.result = -1, .node = &info, .from = &info};
                int rc = cuGraphExecUpdate_v2(e[i], g, &info);
                printf("%d by %d: %d, result %d, node %d, from %d\n", i, k, rc, info.result, info.node != NULL, info.from != NULL);
                if (rc) did.exec_updates_failed++;
                else did.exec_updates++;
                if (rc == 0) memcpy(means[i], left, sizeof left);
                graph_end(g);
                wiped();
                memcpy(left, means[i], sizeof left);
                run(e[i]);
            }
    for (int i = 0; i < EXECS; i++) exec_end(e[i]);
}

typedef struct { CUdeviceptr dst; size_t pitch; unsigned value, element; size_t width, height; } Set;
CUresult cuGraphAddMemsetNode(Node *, Graph, const Node *, size_t, const Set *, CUcontext);
CUresult cuGraphExecMemsetNodeSetParams(Exec, Node, const Set *, CUcontext);
CUresult cuGraphExecHostNodeSetParams(Exec, Node, const HostNode *);
static unsigned called;
static void call(void *what) { called += (unsigned)(intptr_t)what; }
static void starved(void) {
    Graph g = graph_new();
    Node fills[2], set, host, empty;
    Set values = {.dst = buffer[1], .value = 3, .element = 4, .width = WORDS, .height = 1};
    HostNode one = {call, (void *)1};
    fills[0] = add_fill(g, NULL, buffer[0], 1);
    fills[1] = add_fill(g, &fills[0], buffer[2], 2);
    OK(cuGraphAddMemsetNode(&set, g, &fills[1], 1, &values, context));
    OK(cuGraphAddHostNode(&host, g, &set, 1, &one));
    OK(cuGraphAddEmptyNode(&empty, g, &host, 1));
    Node together = add_fill(g, &empty, buffer[3], 4);
    uint64_t attribute[8] = {1};
    OK(cuGraphKernelNodeSetAttribute(together, 2, attribute));
    Exec first = exec_of(g), e = exec_of(g);
    unsigned on = 7;
    for (int round = 0; round < 2; round++) { /* in the first without an exec, where none can be had */
        KernelNode none = *fill_node(buffer[0], 5);
        none.grid[0] = 0;
        Set pairs = values;
        pairs.dst = buffer[3];
        pairs.value = 30 + round;
        HostNode ten = {call, (void *)(intptr_t)(10 + round)};
        printf("disabled %d", cuGraphNodeSetEnabled(e, fills[0], round));
        printf(", of a host node %d", cuGraphNodeSetEnabled(e, host, 0) != 0);
        printf(", is %d", cuGraphNodeGetEnabled(e, fills[0], &on));
        printf(" %u, empty %d", on, cuGraphNodeGetEnabled(e, empty, &on) != 0);
        printf("; fill %d", cuGraphExecKernelNodeSetParams_v2(e, fills[1], fill_node(buffer[2], 20 + round)));
        printf(", by nobody %d", cuGraphExecKernelNodeSetParams_v2(e, fills[0], &none) != 0);
        printf(", set %d", cuGraphExecMemsetNodeSetParams(e, set, &pairs, context));
        pairs.width = 0;
        printf(", to nothing %d", cuGraphExecMemsetNodeSetParams(e, set, &pairs, context) != 0);
        printf(", host %d", cuGraphExecHostNodeSetParams(e, host, &ten));
        printf(", to NULL %d", cuGraphExecKernelNodeSetParams_v2(e, fills[1], NULL));
        printf(" %d", cuGraphExecMemsetNodeSetParams(e, set, NULL, context));
        printf(" %d", cuGraphExecHostNodeSetParams(e, host, NULL));
        struct { CUdeviceptr p; uint64_t n; unsigned value; } in_one = {buffer[3], WORDS, 50};
        size_t bytes = 20;
        KernelNode block = *fill_node(buffer[3], 50);
        block.params = NULL;
        block.extra = (void *[]){(void *)1, &in_one, (void *)2, &bytes, NULL};
        printf(", a block for a cooperative one %d\n", cuGraphExecKernelNodeSetParams_v2(e, together, &block));
        wiped();
        called = 0;
        launch(e, s);
        wait_for(s);
        for (int i = 0; i < BUFFERS; i++) printf("%ld ", word_of(buffer[i]));
        printf("and %u\n", called);
    }
    exec_end(first);
    exec_end(e);
    graph_end(g);
}

/* The first context's default stream is busy; the other's is not. */
static void default_streams(void) {
    CUcontext other;
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuCtxSetCurrent(context));
    Stream t = stream_new();
    capture_begin(s);
    OK(cuLaunchHostFunc(s, event, (void *)'('));
    spin(s, 300000);
    OK(cuLaunchHostFunc(s, event, (void *)')'));
    Graph g = capture_end(s);
    Exec slow = exec_of(g);
    launch(slow, NULL);
    OK(cuCtxSetCurrent(other));
    CUfunction before = fill_words;
    CUmodule m;
    OK(cuModuleLoadData(&m, image));
    OK(cuModuleGetFunction(&fill_words, m, "gpumem_fill"));
    Stream u = stream_new();
    CUdeviceptr p = words_new();
    enum { EXECS = 8 };
    Exec e[EXECS];
    for (unsigned i = 0; i < EXECS; i++) { /* of a class each, until there is no room but that of the first */
        capture_begin(u);
        for (unsigned k = 0; k <= i; k++) fill(u, p, k);
        Graph longer = capture_end(u);
        e[i] = exec_of(longer);
        graph_end(longer);
        launch(e[i], NULL);
        OK(cuStreamSynchronize(NULL));
    }
    fill_words = before;
    OK(cuCtxSetCurrent(context));
    launch(slow, t); /* after its launch before, which runs */
    wait_for(t);
    OK(cuStreamSynchronize(NULL));
    printf("%s\n", events);
    EXPECT(strcmp(events, "()()"), 0);
    exec_end(slow);
    graph_end(g);
    for (unsigned i = 0; i < EXECS; i++) exec_end(e[i]);
}

static atomic_int open_now;
static void wait_until_open(void *nothing) {
    (void)nothing;
    while (!open_now) usleep(500);
}
/* Two kernels that depend on nothing: a graph with two last nodes is kept as a clone. */
static Exec two_sinks(CUdeviceptr p, CUdeviceptr q, unsigned value) {
    Graph g = graph_new();
    add_fill(g, NULL, p, value);
    add_fill(g, NULL, q, value);
    Exec e = exec_of(g);
    graph_end(g);
    return e;
}
static void running(void) {
    Stream t = stream_new();
    for (unsigned round = 0; round < 3; round++) {
        open_now = 0;
        Graph g = graph_new();
        Node node = add_fill(g, NULL, buffer[0], 1);
        add_fill(g, &node, buffer[0], 2);
        Exec all[] = {exec_of(g), two_sinks(buffer[1], buffer[2], 3 + round), pair_exec(s, buffer[3], 4, buffer[3], 5), NULL};
        OK(cuGraphExecKernelNodeSetParams_v2(all[0], node, fill_node(buffer[0], 9)));
        wiped();
        OK(cuLaunchHostFunc(s, wait_until_open, NULL));
        for (int i = 0; i < 3; i++) launch(all[i], s);
        unsigned long before = simulator()("cuGraphExecDestroy");
        for (int i = 0; i < 3; i++) exec_end(all[i]);
        fprintf(stderr, "destroyed %lu\n", simulator()("cuGraphExecDestroy") - before);
        /* These are not held up: on a device, instantiating may wait for what was destroyed and still runs. */
        for (unsigned i = 0; i < 3; i++) {
            all[i] = i == 1 ? two_sinks(buffer[1], buffer[2], 7) : pair_exec(s, buffer[3], 6, buffer[3], 7 + i);
            launch(all[i], t);
        }
        wait_for(t);
        open_now = 1;
        wait_for(s);
        EXPECT(word_of(buffer[0]), 2);
        EXPECT(word_of(buffer[1]), 3 + round);
        for (int i = 0; i < 3; i++) {
            launch(all[i], t);
            wait_for(t);
        }
        EXPECT(word_of(buffer[2]), 7);
        EXPECT(word_of(buffer[3]), 9);
        for (int i = 0; i < 3; i++) exec_end(all[i]);
        graph_end(g);
    }
    say_live_execs();
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    begin();
    homes();
    s = stream_new();
    for (int i = 0; i < BUFFERS; i++) buffer[i] = words_new();
    if (!strcmp(mode, "ggml")) ggml();
    else if (!strcmp(mode, "known")) known();
    else if (!strcmp(mode, "packed")) packed();
    else if (!strcmp(mode, "refused")) refused();
    else if (!strcmp(mode, "running")) running();
    else if (!strcmp(mode, "starved")) starved();
    else if (!strcmp(mode, "homes")) default_streams();
    else if (!strcmp(mode, "late")) late();
    else return 2;
    return report(mode);
}
