/* A program that goes on when a graph call is refused: it says so and tries once more, as often as the
 * cache's own calls may be the ones that fail (SIM_FAULT). Whatever was refused, a launch that was
 * accepted leaves what its exec means, and all ends. */
#include "graph.h"

typedef struct {
    size_t src_x, src_y, src_z, src_lod; int src_type; const void *src_host; CUdeviceptr src; CUarray src_array;
    void *reserved0; size_t src_pitch, src_height;
    size_t dst_x, dst_y, dst_z, dst_lod; int dst_type; void *dst_host; CUdeviceptr dst; CUarray dst_array;
    void *reserved1; size_t dst_pitch, dst_height;
    size_t width, height, depth;
} Copy;
typedef struct { CUdeviceptr dst; size_t pitch; unsigned value, element; size_t width, height; } Set;
CUresult cuGraphAddMemcpyNode(Node *, Graph, const Node *, size_t, const Copy *, CUcontext);
CUresult cuGraphAddMemsetNode(Node *, Graph, const Node *, size_t, const Set *, CUcontext);
CUresult cuGraphExecMemcpyNodeSetParams(Exec, Node, const Copy *, CUcontext);
CUresult cuGraphExecMemsetNodeSetParams(Exec, Node, const Set *, CUcontext);
CUresult cuGraphExecHostNodeSetParams(Exec, Node, const HostNode *);
CUresult cuGraphClone(Graph *, Graph);

enum { TIMES = 4 };
/* What is refused is said, and tried again: only one call is made to fail. */
#define CALL(call) \
    do { \
        int tries_ = 0, rc_; \
        while ((rc_ = (int)(call)) != 0 && ++tries_ < TIMES) refused(#call, rc_); \
        if (rc_) { fprintf(stderr, "%s = %d for good\n", #call, rc_); exit(3); } \
    } while (0)
static void refused(const char *call, int rc) { printf("refused %.*s = %d\n", (int)strcspn(call, "("), call, rc); }

static Stream one, two;
static CUdeviceptr a, b, c;
static unsigned seen[64]; /* how often host functions ran, by their number */
static void ran(void *number) { __atomic_add_fetch(&seen[(intptr_t)number], 1, __ATOMIC_RELAXED); }

static Exec make(Graph g) {
    Exec e = NULL;
    CALL(cuGraphInstantiateWithFlags(&e, g, 0));
    did.execs_created++;
    return e;
}
static void end(Exec e) {
    CALL(cuGraphExecDestroy(e));
    did.execs_destroyed++;
}
static void drop(Graph g) {
    CALL(cuGraphDestroy(g));
    did.graphs_destroyed++;
}
static void run(Exec e, Stream s) {
    CALL(cuGraphLaunch(e, s));
    did.graph_launches++;
}
static int update(Exec e, Graph g) {
    UpdateInfo info = {0};
    int rc = 0;
    for (int tries = 0; tries < TIMES; tries++) {
        rc = cuGraphExecUpdate_v2(e, g, &info);
        if (rc == 0) did.exec_updates++;
        else did.exec_updates_failed++;
        if (rc == 0 || (rc == 910 && info.result != 1)) return rc;
        refused("cuGraphExecUpdate_v2", rc);
    }
    exit(3);
}

/* Nodes of every kind that can be held: b filled, a set, a copied to c, a host function, an empty node. */
struct all { Graph g; Exec e; Node fill, set, copy, host, empty; };
static Copy copy_of(CUdeviceptr to, CUdeviceptr from) {
    return (Copy){.src_type = 2, .src = from, .src_pitch = WORDS * 4, .src_height = 1, .dst_type = 2, .dst = to,
                  .dst_pitch = WORDS * 4, .dst_height = 1, .width = WORDS * 4, .height = 1, .depth = 1};
}
static Set set_of(CUdeviceptr p, unsigned value) { return (Set){.dst = p, .value = value, .element = 4, .width = WORDS, .height = 1}; }
static struct all all_kinds(unsigned value) {
    struct all of = {0};
    CALL(cuGraphCreate(&of.g, 0));
    did.graphs_created++;
    CALL(cuGraphAddKernelNode_v2(&of.fill, of.g, NULL, 0, fill_node(b, 100 + value)));
    Set set = set_of(a, 200 + value);
    CALL(cuGraphAddMemsetNode(&of.set, of.g, &of.fill, 1, &set, context));
    Copy copy = copy_of(c, a);
    CALL(cuGraphAddMemcpyNode(&of.copy, of.g, &of.set, 1, &copy, context));
    HostNode host = {ran, (void *)(intptr_t)value};
    CALL(cuGraphAddHostNode(&of.host, of.g, (Node[]){of.copy, of.fill}, 2, &host));
    CALL(cuGraphAddEmptyNode(&of.empty, of.g, &of.host, 1));
    of.e = make(of.g);
    return of;
}
static void check_all(struct all *of, unsigned value, bool fills) {
    unsigned before = seen[value];
    clear(a), clear(b), clear(c);
    run(of->e, one);
    wait_for(one);
    EXPECT(word_of(b), fills ? 100 + value : 0);
    EXPECT(word_of(c), 200 + value);
    EXPECT(seen[value], before + 1);
}
static void kinds(void) {
    enum { EXECS = 4 };
    struct all of[EXECS];
    for (unsigned i = 0; i < EXECS; i++) of[i] = all_kinds(i);
    for (int round = 0; round < 2; round++)
        for (unsigned i = 0; i < EXECS; i++) check_all(&of[i], i, true);
    CALL(cuGraphNodeSetEnabled(of[1].e, of[1].fill, 0));
    for (unsigned i = 0; i < EXECS; i++) check_all(&of[i], i, i != 1);
    /* Each node of one is set to what another means. */
    Set set = set_of(a, 210);
    Copy copy = copy_of(c, a);
    HostNode host = {ran, (void *)(intptr_t)10};
    CALL(cuGraphExecKernelNodeSetParams_v2(of[2].e, of[2].fill, fill_node(b, 110)));
    CALL(cuGraphExecMemsetNodeSetParams(of[2].e, of[2].set, &set, context));
    CALL(cuGraphExecMemcpyNodeSetParams(of[2].e, of[2].copy, &copy, context));
    CALL(cuGraphExecHostNodeSetParams(of[2].e, of[2].host, &host));
    for (unsigned i = 0; i < EXECS; i++) check_all(&of[i], i == 2 ? 10 : i, i != 1);
    EXPECT(update(of[3].e, of[0].g), 0);
    check_all(&of[3], 0, true);
    check_all(&of[2], 10, true);
    for (int i = 0; i < EXECS; i++) {
        end(of[i].e);
        drop(of[i].g);
    }
}

static void check(Exec e, Stream s, unsigned value) {
    clear(a), clear(b);
    run(e, s);
    wait_for(s);
    EXPECT(word_of(a), value);
    EXPECT(word_of(b), value + 1);
}
/* Captured, updated, refused, cloned, destroyed and made again; launched behind what runs. */
static void captured(void) {
    enum { EXECS = 4 };
    Exec e[EXECS];
    Graph g[EXECS], longer, other, clone;
    for (unsigned i = 0; i < EXECS; i++) e[i] = make(g[i] = pair_graph(one, a, 10 * i, b, 10 * i + 1));
    capture_begin(one);
    for (unsigned i = 0; i < 3; i++) fill(one, a, i);
    longer = capture_end(one);
    capture_begin(one);
    fill(one, a, 7);
    OK(cuMemsetD32Async(b, 8, WORDS, one));
    other = capture_end(one);
    for (int round = 0; round < 2; round++)
        for (unsigned i = 0; i < EXECS; i++) check(e[i], round ? two : one, 10 * i);
    EXPECT(update(e[0], g[1]), 0);
    EXPECT(update(e[1], longer), 910);
    EXPECT(update(e[1], other), 910);
    check(e[0], one, 10);
    check(e[1], one, 10);
    CALL(cuGraphClone(&clone, g[2]));
    did.graphs_created++;
    end(e[3]);
    e[3] = make(clone);
    check(e[3], two, 20);
    drop(clone);
    for (int round = 0; round < 3; round++) { /* on two streams, with execs going over while they run */
        spin(one, 2000);
        run(e[0], one);
        run(e[1], one);
        run(e[2], one);
        run(e[0], two);
        run(e[3], two);
        wait_for(one);
        wait_for(two);
        for (unsigned i = 0; i < EXECS; i++) check(e[i], two, i == 3 ? 20 : i == 0 ? 10 : 10 * i);
    }
    /* From a thread that has no context, and beside a capture. */
    OK(cuCtxSetCurrent(NULL));
    for (int i = 0; i < EXECS; i++) run(e[i], one);
    OK(cuCtxSetCurrent(context));
    wait_for(one);
    CALL(cuGraphUpload(e[1], one));
    capture_begin(two);
    for (int i = 0; i < EXECS; i++) run(e[i], one);
    Exec beside = make(g[2]);
    run(beside, one);
    end(beside);
    drop(capture_end(two));
    wait_for(one);
    for (unsigned i = 0; i < EXECS; i++) check(e[i], two, i == 3 ? 20 : i == 0 ? 10 : 10 * i);
    Exec l = make(longer);
    clear(a);
    run(l, one);
    wait_for(one);
    EXPECT(word_of(a), 2);
    end(l);
    for (int i = 0; i < EXECS; i++) {
        drop(g[i]);
        check(e[i], one, i == 3 ? 20 : i == 0 ? 10 : 10 * (unsigned)i);
        end(e[i]);
    }
    drop(longer);
    drop(other);
}

/* A graph inside a graph. */
static void nested(void) {
    Exec e[3];
    for (unsigned i = 0; i < 3; i++) {
        Graph inner = pair_graph(one, a, 50 + i, b, 51 + i), outer;
        Node node;
        CALL(cuGraphCreate(&outer, 0));
        did.graphs_created++;
        CALL(cuGraphAddChildGraphNode(&node, outer, NULL, 0, inner));
        drop(inner);
        e[i] = make(outer);
        drop(outer);
    }
    for (int round = 0; round < 2; round++)
        for (unsigned i = 0; i < 3; i++) check(e[i], one, 50 + i);
    for (int i = 0; i < 3; i++) end(e[i]);
}

/* Arguments: what the simulated driver is asked about itself at the end, for stderr. */
int main(int argc, char **argv) {
    begin();
    one = stream_new();
    two = stream_new();
    a = words_new();
    b = words_new();
    c = words_new();
    kinds();
    captured();
    nested();
    for (int i = 1; i < argc; i++) fprintf(stderr, "%s %lu\n", argv[i], simulator()(argv[i]));
    return report("refused");
}
