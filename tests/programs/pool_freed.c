/* Graphs whose memory is freed, and is launched, updated, destroyed or left alone then: each argument is one of these,
 * one after another. With `early` everything happens before gpumem has read a graph. What is launched after its memory
 * was freed is undefined natively: it is run under the preload. */
#include "pool.h"

typedef void *Node;
typedef struct {
    CUdeviceptr dst;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
} Set;
CUresult cuGraphGetNodes(Graph, Node *, size_t *), cuGraphNodeSetEnabled(Exec, Node, unsigned);
CUresult cuGraphExecMemsetNodeSetParams(Exec, Node, const Set *, CUcontext);
CUresult cuGraphExecUpdate_v2(Exec, Graph, cudaGraphExecUpdateResultInfo *);

enum { BYTES = 4 * MIB, LESS = BYTES - 4096 };

/* `at_once`: not even a clock goes on between a graph and what comes next. */
static int early, at_once;
/* Until gpumem has read the graphs that there are, or has seen what became of them since. */
static void later(void) { nap(2500); }
static void read_by_now(void) {
    if (!early) later();
}
static void clock_goes_on(void) { nap(60); }

static Graph captured(Stream s, CUdeviceptr p) {
    Graph graph;
    OK(cuStreamBeginCapture_v2(s, 2 /* relaxed */));
    OK(k_fill(&gpu, s, p, 1024, 1));
    OK(cuStreamEndCapture(s, &graph));
    return graph;
}
typedef struct {
    Stream s;
    Exec exec;
} Made;

static Exec instantiated(Stream s, CUdeviceptr p) {
    Exec exec;
    Graph graph = captured(s, p);
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    return exec;
}
static void launched(Made *made) {
    OK(cuGraphLaunch(made->exec, made->s));
    OK(cuStreamSynchronize(made->s));
}
/* A graph on this memory, which was launched. */
static Made made_of(CUdeviceptr p) {
    Made made = {.s = stream_new(1)};
    made.exec = instantiated(made.s, p);
    launched(&made);
    if (early && !at_once) clock_goes_on();
    return made;
}
static void ended(Made *made) {
    later();
    OK(cuGraphExecDestroy(made->exec));
    OK(cuStreamDestroy_v2(made->s));
}
/* The address is another allocation's when the graph is launched. */
static void other_size(void) {
    CUdeviceptr p = 0;
    Made made;
    for (int i = 0; i < 2; i++) {
        CUdeviceptr q = get(i ? LESS : BYTES); /* the same call site */
        if (i) {
            EXPECT(q == p, 1);
            clock_goes_on();
            launched(&made);
            launched(&made);
            ended(&made);
            give(q, LESS);
        } else {
            p = q;
            made = made_of(p);
            read_by_now();
            give(p, BYTES);
        }
    }
}
static void other_site(void) {
    CUdeviceptr p = get(BYTES);
    Made made = made_of(p);
    read_by_now();
    give(p, BYTES);
    CUdeviceptr q = get(BYTES);
    EXPECT(q == p, 1);
    clock_goes_on();
    launched(&made);
    ended(&made);
    give(q, BYTES);
}
/* The launch comes when gpumem knows who has the memory. */
static void late_launch(void) {
    CUdeviceptr p = get(BYTES);
    Made made = made_of(p);
    give(p, BYTES);
    CUdeviceptr q = get(BYTES);
    EXPECT(q == p, 1);
    later();
    launched(&made);
    ended(&made);
    give(q, BYTES);
}
/* The address is nobody's. */
static void nobodys(void) {
    CUdeviceptr p = get(BYTES);
    Made made = made_of(p);
    read_by_now();
    give(p, BYTES);
    later(), later();
    launched(&made);
    ended(&made);
}

/* The same call site asks for the same again. */
static void same_again(void) {
    CUdeviceptr p = 0;
    Made made;
    for (int i = 0; i < 2; i++) {
        CUdeviceptr q = get(BYTES);
        if (i) {
            EXPECT(q == p, 1);
            clock_goes_on();
            launched(&made);
            ended(&made);
        } else {
            p = q;
            made = made_of(p);
            read_by_now();
        }
        give(q, BYTES);
    }
}
/* In each step, and mostly it is freed while gpumem looks. */
static void each_step(void) {
    CUdeviceptr p = 0;
    Made made;
    for (int step = 0; step < 400; step++) {
        CUdeviceptr q = get(BYTES);
        if (step) {
            EXPECT(q == p, 1);
        } else {
            made = made_of(p = q);
            read_by_now();
        }
        launched(&made);
        give(q, BYTES);
        nap(20);
    }
    ended(&made);
}
static void updated(void) {
    CUdeviceptr p = get(BYTES), other = get(2 * BYTES);
    Made made = made_of(p);
    read_by_now();
    give(p, BYTES);
    CUdeviceptr q = get(BYTES);
    EXPECT(q == p, 1);
    clock_goes_on();
    Graph graph = captured(made.s, other);
    cudaGraphExecUpdateResultInfo info;
    OK(cuGraphExecUpdate_v2(made.exec, graph, &info));
    OK(cuGraphDestroy(graph));
    launched(&made);
    later();
    launched(&made);
    ended(&made);
    give(q, BYTES);
    give(other, 2 * BYTES);
}
/* The only node of an exec no longer refers to the memory, or is switched off. */
static void changed(const Set *set) {
    CUdeviceptr p = get(BYTES);
    Made made = {.s = stream_new(1)};
    Graph graph;
    Node node;
    size_t nodes = 1;
    OK(cuStreamBeginCapture_v2(made.s, 2));
    OK(cuMemsetD32Async(p, 1, 1024, made.s));
    OK(cuStreamEndCapture(made.s, &graph));
    OK(cuGraphGetNodes(graph, &node, &nodes));
    OK(cuGraphInstantiateWithFlags(&made.exec, graph, 0));
    launched(&made);
    read_by_now();
    if (set) OK(cuGraphExecMemsetNodeSetParams(made.exec, node, set, gpu.context));
    else OK(cuGraphNodeSetEnabled(made.exec, node, 0));
    launched(&made);
    later();
    give(p, BYTES);
    CUdeviceptr q = get(BYTES);
    EXPECT(q == p, 1);
    clock_goes_on();
    launched(&made);
    ended(&made);
    OK(cuGraphDestroy(graph));
    give(q, BYTES);
}
static void node_set(void) {
    CUdeviceptr other = get(2 * BYTES);
    changed(&(Set){.dst = other, .value = 2, .element = 4, .width = 1024, .height = 1});
    give(other, 2 * BYTES);
}
static void node_off(void) { changed(NULL); }
static void destroyed(void) {
    CUdeviceptr p = get(BYTES);
    Made made = made_of(p);
    read_by_now();
    give(p, BYTES);
    OK(cuGraphExecDestroy(made.exec));
    CUdeviceptr q = get(BYTES);
    EXPECT(q == p, 1);
    clock_goes_on();
    /* The handle that was destroyed may be another exec's now. */
    made.exec = instantiated(made.s, q);
    launched(&made);
    later();
    launched(&made);
    ended(&made);
    give(q, BYTES);
}
static void not_launched(void) {
    CUdeviceptr p = get(BYTES);
    Made made = made_of(p);
    read_by_now();
    give(p, BYTES);
    CUdeviceptr q = get(BYTES);
    EXPECT(q == p, 1);
    later();
    ended(&made);
    give(q, BYTES);
}
static void launched_before(void) {
    CUdeviceptr p = get(BYTES);
    Made made = made_of(p);
    read_by_now();
    launched(&made);
    give(p, BYTES);
    CUdeviceptr q = get(BYTES);
    EXPECT(q == p, 1);
    ended(&made);
    give(q, BYTES);
}
/* Graphs come and go, each with its own memory. */
static void churn(void) {
    for (int step = 0; step < 400; step++) {
        Made made[4];
        CUdeviceptr p[4];
        for (int i = 0; i < 4; i++) made[i] = made_of(p[i] = get(BYTES >> i));
        for (int i = 0; i < 4; i++) {
            launched(&made[i]);
            OK(cuGraphExecDestroy(made[i].exec));
            OK(cuStreamDestroy_v2(made[i].s));
            give(p[i], BYTES >> i);
        }
        nap(10);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"other_size", other_size}, {"other_site", other_site}, {"late_launch", late_launch}, {"nobodys", nobodys}, {"same_again", same_again},
    {"each_step", each_step}, {"updated", updated}, {"node_set", node_set}, {"node_off", node_off}, {"destroyed", destroyed}, {"not_launched", not_launched},
    {"launched_before", launched_before}, {"churn", churn},
};
enum { CASES = sizeof cases / sizeof *cases };

int main(int argc, char **argv) {
    begin();
    for (int i = 1; i < argc; i++) {
        early |= !strcmp(argv[i], "early"), at_once |= !strcmp(argv[i], "at_once");
        for (size_t at = 0; at < CASES; at++)
            if (!strcmp(argv[i], cases[at].name)) cases[at].run();
    }
    return end("pool_freed");
}
