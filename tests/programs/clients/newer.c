/* What a driver newer than the tables has (tests/sim/cuda/src/newer.rs): functions that get an exec, a pooled block and
 * a graph, nodes of a kind that nobody knows, attributes that nobody knows; and beside them what everybody knows.
 * Prints what came of it; the simulator's counts must be what they are natively. */
#include "graph.h"

typedef struct { unsigned id, pad, value[16]; } Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    Stream stream;
    const Attribute *attributes;
    unsigned len;
} Config;
typedef struct { unsigned kind, pad[3]; uint64_t body[30]; } AnyNode;

CUresult cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
CUresult cuLaunchKernelEx(const Config *, CUfunction, void **, void **);
CUresult cuGraphAddNode_v2(Node *, Graph, const Node *, const void *, size_t, AnyNode *);
CUresult cuGraphKernelNodeSetAttribute(Node, int, const unsigned *);
CUresult cuGraphKernelNodeCopyAttributes(Node, Node);
CUresult cuStreamSetAttribute(Stream, int, const unsigned *);
CUresult cuGraphClone(Graph *, Graph);

static void *get(const char *name) {
    void *f = NULL;
    OK(cuGetProcAddress_v2(name, &f, 13090, 0, NULL));
    return f;
}
/* A fill that is launched with an attribute. */
static void fill_with(Stream s, unsigned id, CUdeviceptr p, unsigned value) {
    uint64_t n = WORDS;
    const Attribute attribute = {.id = id, .value = {1}};
    const Config config = {{1, 1, 1}, {32, 1, 1}, 0, s, &attribute, 1};
    OK(cuLaunchKernelEx(&config, fill_words, (void *[]){&p, &n, &value}, NULL));
}
enum { MANY = 12 };
static Stream s;
static CUdeviceptr a, b;

/* Launches a graph twice by a fresh exec, and the exec once more after others; what the buffers hold. */
static void run(const char *what, Graph g) {
    Exec e = exec_of(g), others[MANY];
    launch(e, s);
    for (unsigned i = 0; i < MANY; i++) {
        others[i] = pair_exec(s, a, 100 + i, b, 200 + i);
        launch(others[i], s);
    }
    launch(e, s);
    wait_for(s);
    printf("%s %ld %ld\n", what, word_of(a), word_of(b));
    for (unsigned i = 0; i < MANY; i++) exec_end(others[i]);
    exec_end(e);
}

static void functions(void) {
    CUresult (*count)(Exec, size_t *) = get("cuGraphExecGetNodeCount");
    CUresult (*run_on)(Stream, Exec) = get("cuStreamRun");
    CUresult (*alloc_near)(CUdeviceptr *, size_t, CUdeviceptr) = get("cuMemAllocNear");
    printf("found %d\n", count && run_on && alloc_near);
    if (!count || !run_on || !alloc_near) return;
    Exec e = pair_exec(s, a, 1, b, 2), f = pair_exec(s, a, 3, b, 4);
    size_t nodes = 0;
    OK(count(e, &nodes));
    OK(run_on(s, e));
    OK(run_on(s, f));
    OK(run_on(s, e));
    wait_for(s);
    printf("ran %zu %ld %ld\n", nodes, word_of(a), word_of(b));
    exec_end(e);
    launch(f, s);
    wait_for(s);
    printf("then %ld %ld\n", word_of(a), word_of(b));
    exec_end(f);
    /* Near a block that may be a pool's; the block is usable and freed as before. */
    CUdeviceptr block = words_new(), near = 0;
    OK(alloc_near(&near, WORDS * 4, block));
    fill(s, near, 7);
    fill(s, block, 8);
    wait_for(s);
    printf("near %ld %ld\n", word_of(near), word_of(block));
    OK(cuMemFree_v2(near));
    OK(cuMemFree_v2(block));
    counted_free(DEVICE, WORDS * 4);
}

static void nodes(void) {
    Graph child = pair_graph(s, a, 5, b, 6), g = graph_new();
    Node first = add_fill(g, NULL, a, 9), node;
    /* It counts up by three when it runs, looks at a graph and tells how many nodes that has. */
    AnyNode params = {.kind = 30, .body = {3, (uint64_t)(uintptr_t)child}};
    OK(cuGraphAddNode_v2(&node, g, &first, NULL, 1, &params));
    printf("node %d %lu\n", params.body[1] == (uint64_t)(uintptr_t)child, (unsigned long)params.body[2]);
    run("kind", g);
    graph_end(g);
    graph_end(child);
}

static void attributes(void) {
    /* To a launch that is captured, to one that is not, to a node, by a copy, in a clone, by the stream. */
    capture_begin(s);
    fill_with(s, 40, a, 11);
    fill(s, b, 12);
    Graph g = capture_end(s), clone;
    run("launch", g);
    OK(cuGraphClone(&clone, g));
    did.graphs_created++;
    run("clone", clone);
    graph_end(g);
    graph_end(clone);
    fill_with(s, 41, a, 13);
    g = graph_new();
    Node first = add_fill(g, NULL, a, 14), second = add_fill(g, &first, b, 15);
    const unsigned value[16] = {1};
    OK(cuGraphKernelNodeSetAttribute(first, 41, value));
    run("node", g);
    Graph h = graph_new();
    Node third = add_fill(h, NULL, a, 16);
    add_fill(h, &third, b, 17);
    OK(cuGraphKernelNodeCopyAttributes(third, first));
    run("copy", h);
    graph_end(h);
    graph_end(g);
    (void)second;
}

/* An edge of a type that nobody knows, and an exec with a flag that nobody knows. */
static void edges_and_flags(void) {
    Graph g = graph_new();
    Node first = add_fill(g, NULL, a, 18), second;
    const unsigned char edge[8] = {0, 0, 7};
    AnyNode params = {.kind = 0};
    memcpy(params.body, fill_node(b, 19), sizeof(KernelNode));
    OK(cuGraphAddNode_v2(&second, g, &first, edge, 1, &params));
    run("edge", g);
    graph_end(g);
    g = pair_graph(s, a, 21, b, 22);
    Exec e;
    OK(cuGraphInstantiateWithFlags(&e, g, 64));
    did.execs_created++;
    launch(e, s);
    wait_for(s);
    printf("flag %ld %ld\n", word_of(a), word_of(b));
    exec_end(e);
    graph_end(g);
}

/* Graphs of what is known are bounded as ever. */
static void known(void) {
    Exec all[MANY];
    for (unsigned i = 0; i < MANY; i++) all[i] = pair_exec(s, a, 20 + i, b, 40 + i);
    for (unsigned i = 0; i < MANY; i++) launch(all[i], s);
    launch(all[0], s);
    wait_for(s);
    printf("known %ld %ld\n", word_of(a), word_of(b));
    say_live_execs();
    for (unsigned i = 0; i < MANY; i++) exec_end(all[i]);
    for (int i = 0; i < MANY; i++) {
        CUdeviceptr p = words_new();
        OK(cuMemFree_v2(p));
        counted_free(DEVICE, WORDS * 4);
    }
}

int main(int argc, char **argv) {
    const char *parts = argc > 1 ? argv[1] : "fnak";
    begin();
    s = stream_new();
    a = words_new();
    b = words_new();
    for (const char *part = parts; *part; part++) {
        if (*part == 'f') functions();
        if (*part == 'n') nodes();
        if (*part == 'a') attributes();
        if (*part == 'e') edges_and_flags();
        if (*part == 'k') known();
    }
    uint64_t (*stat)(const char *) = simulator();
    printf("counted %lu %lu\n", (unsigned long)stat("newer_nodes"), (unsigned long)stat("newer_attributes"));
    return report("newer");
}
