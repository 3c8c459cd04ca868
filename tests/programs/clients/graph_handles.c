/* What one exec's handle does that another's must not show. `graph_handles MODE`:
 *   disabled  nodes switched off in one handle; another of the class has all of them
 *   update    updates within a class and across classes
 *   recycled  destroyed and instantiated again and again
 *   idle      a handle is launched long after another of its class
 *   behind    more handles than execs, of different grids, while the device is at other work
 *   alike     the same, of one grid
 *   rested    as behind, but the device rests between launches
 *   beside    threads with streams of their own do so for long, and end and make handles meanwhile
 *   pauses    handles of two classes by turns, with long pauses in between
 *   memory    instantiated while there is memory, launched when there is none
 *   nodes     execs with switched off nodes, launched while another of their class runs
 *   unknown   an exec is given to a function that takes graphs */
#include "graph.h"
CUresult cuGraphDebugDotPrint(Graph, const char *, unsigned);
CUresult cuGraphExecGetFlags(Exec, uint64_t *);

static CUdeviceptr a, b;
static Stream s;

/* Launches on cleared buffers; both words of what it left. */
static long left_by(Exec e) {
    clear(a);
    clear(b);
    launch(e, s);
    wait_for(s);
    return word_of(a) * 1000 + word_of(b);
}

static void disabled(void) {
    Graph g = graph_new(), h = graph_new();
    Node n[2], m;
    n[0] = add_fill(g, NULL, a, 1);
    n[1] = add_fill(g, &n[0], b, 2);
    m = add_fill(h, NULL, a, 3);
    add_fill(h, &m, b, 4);
    Exec e = exec_of(g), f = exec_of(h);
    unsigned on = 7;
    EXPECT(left_by(e), 1002);
    OK(cuGraphNodeSetEnabled(e, n[1], 0));
    EXPECT(left_by(e), 1000);
    EXPECT(left_by(f), 3004); /* on the same exec, if there is one alone */
    EXPECT(left_by(e), 1000);
    OK(cuGraphNodeGetEnabled(e, n[1], &on));
    EXPECT(on, 0);
    exec_end(e);
    EXPECT(left_by(f), 3004);
    for (int i = 0; i < 3; i++) {
        e = exec_of(g); /* may have the exec that had a node switched off */
        OK(cuGraphNodeGetEnabled(e, n[1], &on));
        EXPECT(on, 1);
        EXPECT(left_by(e), 1002);
        OK(cuGraphNodeSetEnabled(e, n[0], 0));
        EXPECT(left_by(e), 2);
        OK(cuGraphExecKernelNodeSetParams_v2(e, n[1], fill_node(b, 9)));
        EXPECT(left_by(e), 9);
        EXPECT(left_by(f), 3004);
        EXPECT(left_by(e), 9);
        OK(cuGraphNodeSetEnabled(e, n[0], 1));
        EXPECT(left_by(e), 1009);
        OK(cuGraphNodeSetEnabled(e, n[0], 0));
        exec_end(e);
    }
    exec_end(f);
    graph_end(g);
    graph_end(h);
}

static int updated(Exec e, Graph g) {
    UpdateInfo info = {.result = -1};
    int rc = cuGraphExecUpdate_v2(e, g, &info);
    if (rc == 0) did.exec_updates++;
    else did.exec_updates_failed++;
    printf("update: %d, result %d, node %d, from %d\n", rc, info.result, info.node != NULL, info.from != NULL);
    return rc;
}
static void update(void) {
    Graph two = pair_graph(s, a, 1, b, 2), other = pair_graph(s, a, 3, b, 4);
    capture_begin(s);
    for (unsigned i = 0; i < 3; i++) fill(s, a, 5 + i);
    Graph three = capture_end(s);
    capture_begin(s);
    fill(s, a, 8);
    OK(cuMemsetD32Async(b, 9, WORDS, s));
    Graph kinds = capture_end(s);
    Exec e = exec_of(two), f = exec_of(other), t = exec_of(three);
    EXPECT(left_by(e), 1002);
    EXPECT(updated(e, three), 910);
    EXPECT(left_by(e), 1002);
    EXPECT(updated(e, kinds), 910);
    EXPECT(left_by(e), 1002);
    EXPECT(left_by(f), 3004);
    EXPECT(updated(t, two), 910);
    EXPECT(left_by(t), 7000);
    EXPECT(updated(e, other), 0);
    EXPECT(left_by(e), 3004);
    EXPECT(updated(f, two), 0);
    EXPECT(left_by(f), 1002);
    EXPECT(left_by(e), 3004);
    /* A kernel that takes no memory stands where a fill stood: other kernels are other classes to
     * nobody but the driver, which lets it pass. */
    capture_begin(s);
    fill(s, a, 6);
    spin(s, 1);
    Graph spins = capture_end(s);
    EXPECT(updated(e, spins), 0);
    EXPECT(left_by(e), 6000);
    EXPECT(left_by(f), 1002);
    EXPECT(updated(e, two), 0);
    EXPECT(left_by(e), 1002);
    Graph all[] = {two, other, three, kinds, spins};
    for (int i = 0; i < 5; i++) graph_end(all[i]);
    exec_end(e);
    exec_end(f);
    exec_end(t);
}

static void recycled(void) {
    for (unsigned i = 0; i < 30; i++) {
        Exec e = pair_exec(s, a, i, b, 2 * i), f = pair_exec(s, b, i, a, 3 * i);
        EXPECT(left_by(e), 1000 * i + 2 * i);
        if (i % 3) EXPECT(left_by(f), 3000 * i + i);
        exec_end(e);
        exec_end(f);
    }
    say_live_execs();
}

static void idle(void) {
    Exec e = pair_exec(s, a, 1, b, 2), f = pair_exec(s, a, 3, b, 4);
    EXPECT(left_by(e), 1002);
    usleep(80000);
    EXPECT(left_by(f), 3004);
    usleep(80000);
    EXPECT(left_by(e), 1002);
    say_live_execs();
    exec_end(e);
    exec_end(f);
}

static void pauses(void) {
    enum { EACH = 4, ROUNDS = 4 };
    Exec two[EACH], one[EACH];
    for (unsigned i = 0; i < EACH; i++) {
        two[i] = pair_exec(s, a, 1 + i, b, 2);
        capture_begin(s);
        fill(s, a, 5 + i);
        Graph g = capture_end(s);
        one[i] = exec_of(g);
        graph_end(g);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < EACH; i++) EXPECT(left_by(two[i]), 1000 * (1 + i) + 2);
        for (unsigned i = 0; i < EACH; i++) EXPECT(left_by(one[i]), 1000 * (5 + i));
        usleep(250000);
    }
    for (unsigned i = 0; i < EACH; i++) exec_end(two[i]), exec_end(one[i]);
}

/* Two fills by so many blocks. */
static Exec wide_exec(Stream on, CUdeviceptr p, CUdeviceptr q, unsigned value, unsigned blocks) {
    capture_begin(on);
    for (unsigned k = 0; k < 2; k++) {
        uint64_t n = WORDS;
        OK(cuLaunchKernel(fill_words, blocks, 1, 1, 32, 1, 1, 0, on, (void *[]){k ? &q : &p, &n, &value}, NULL));
    }
    Graph g = capture_end(on);
    Exec e = exec_of(g);
    graph_end(g);
    return e;
}

static void more_than(unsigned most, int differ, int busy) {
    enum { EXECS = 9 };
    Exec e[EXECS];
    for (unsigned i = 0; i < EXECS; i++) e[i] = wide_exec(s, a, b, 1 + i, differ ? 1 + i : 1);
    for (int round = 0; round < 2; round++) /* by the second, near the bound, launches leave events */
        for (unsigned i = 0; i < most; i++) EXPECT(left_by(e[i]), 1001 * (1 + i));
    EXPECT(left_by(e[most]), 1001 * (1 + most)); /* on an exec of another */
    if (busy) spin(s, 900000);
    for (unsigned i = most; i < EXECS; i++) {
        launch(e[i], s);
        if (!busy) wait_for(s);
        if (i == most && busy) usleep(250000); /* since when it has not been over */
    }
    wait_for(s);
    EXPECT(word_of(b), EXECS);
    for (int i = EXECS - 1; i >= 0; i--) EXPECT(left_by(e[i]), 1001 * (1 + i));
    for (int i = 0; i < EXECS; i++) exec_end(e[i]);
}
static void behind(void) { more_than(4, 1, 1); }
static void alike(void) { more_than(4, 0, 1); }
static void rested(void) { more_than(4, 1, 0); }

static void *takes_turns(void *seed) {
    enum { EXECS = 6, TURNS = 400 };
    OK(cuCtxSetCurrent(context));
    Stream mine = stream_new();
    CUdeviceptr p = words_new(), q = words_new();
    unsigned random = *(unsigned *)seed, behind = 0, value[EXECS];
    Exec e[EXECS];
    for (unsigned i = 0; i < EXECS; i++) e[i] = wide_exec(mine, p, q, value[i] = 1 + i, 1 + i);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        unsigned i = (random = random * 1664525u + 1013904223u) >> 16;
        if (behind) {
            usleep(2000);
            behind--;
        } else if (i % 24 == 0) {
            spin(mine, 20000);
            behind = 10;
        }
        unsigned k = i / 8 % EXECS;
        launch(e[k], mine);
        if (!behind && i % 5 == 0) {
            wait_for(mine);
            EXPECT(word_of(p), value[k]);
            EXPECT(word_of(q), value[k]);
        }
        if (i % 17) continue;
        exec_end(e[k]);
        e[k] = wide_exec(mine, p, q, value[k] = turn, 1 + turn % 7);
    }
    wait_for(mine);
    for (unsigned i = 0; i < EXECS; i++) exec_end(e[i]);
    return NULL;
}
static void beside(void) {
    enum { THREADS = 3 };
    pthread_t thread[THREADS];
    unsigned seed[THREADS];
    for (unsigned i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, takes_turns, (seed[i] = 17 * i, &seed[i]));
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
}

static void memory(void) {
    enum { EXECS = 4, NODES = 900 };
    Exec e[EXECS];
    for (unsigned i = 0; i < EXECS; i++) {
        capture_begin(s);
        for (unsigned k = 0; k < NODES; k++) fill(s, k % 2 ? a : b, 10 * i + k % 2);
        Graph g = capture_end(s);
        e[i] = exec_of(g);
        graph_end(g);
    }
    /* All memory that is left, with nothing left for an exec. */
    CUdeviceptr p;
    for (size_t bytes = 64 << 20; bytes >= 4096; bytes /= 2)
        while (cuMemAlloc_v2(&p, bytes) == 0) {}
    for (int round = 0; round < 3; round++)
        for (unsigned i = 0; i < EXECS; i++) EXPECT(left_by(e[i]), 1000 * (10 * i + 1) + 10 * i);
    for (int i = 0; i < EXECS; i++) exec_end(e[i]);
}

static void nothing(void *unused) { (void)unused; }
/* Two fills, a host function, a fill. */
static Graph four_nodes(CUdeviceptr p, CUdeviceptr q, unsigned value, HostNode host, Node *last) {
    Graph g = graph_new();
    Node n[3];
    n[0] = add_fill(g, NULL, p, 10 + value);
    n[1] = add_fill(g, &n[0], q, 20 + value);
    OK(cuGraphAddHostNode(&n[2], g, &n[1], 1, &host));
    *last = add_fill(g, &n[2], p, 30 + value);
    return g;
}
static void nodes(void) {
    enum { EXECS = 6 };
    Exec e[EXECS];
    Graph g[EXECS], busy_graph;
    Node last[EXECS], unused;
    Stream other = stream_new();
    Exec busy = exec_of(busy_graph = four_nodes(words_new(), words_new(), 0, (HostNode){nothing, NULL}, &unused));
    for (unsigned i = 0; i < EXECS; i++) {
        HostNode host = {event, (void *)(intptr_t)('a' + (int)i)};
        e[i] = exec_of(g[i] = four_nodes(a, b, i, host, &last[i]));
        if (i >= 3) OK(cuGraphNodeSetEnabled(e[i], last[i], 0));
    }
    for (int round = 0; round < 3; round++) {
        for (unsigned i = 0; i < EXECS; i++) {
            spin(other, 10000);
            launch(busy, other); /* so that its exec cannot be had */
            EXPECT(left_by(e[i]), 1000 * ((i >= 3 ? 10 : 30) + i) + 20 + i);
        }
        wait_for(other);
    }
    EXPECT(strcmp(events, "abcdefabcdefabcdef"), 0);
    exec_end(busy);
    graph_end(busy_graph);
    for (unsigned i = 0; i < EXECS; i++) {
        exec_end(e[i]);
        graph_end(g[i]);
    }
}

static void unknown(void) {
    Exec e = pair_exec(s, a, 1, b, 2), f = pair_exec(s, a, 3, b, 4);
    EXPECT(left_by(e), 1002);
    EXPECT(left_by(f), 3004);
    printf("an exec for a graph: %d\n", cuGraphDebugDotPrint(e, "/dev/null", 0));
    EXPECT(left_by(e), 1002);
    EXPECT(left_by(f), 3004);
    uint64_t flags = 9;
    OK(cuGraphExecGetFlags(e, &flags));
    EXPECT(flags, 0);
    exec_end(e);
    exec_end(f);
}

/* Graphs of the driver that are left while the program's own are folded; says how many, and how many nodes
 * were added on the way to the first exec of a shape. */
static void say_graphs(void) { fprintf(stderr, "graphs %lu\n", simulator()("live_graphs")); }
static void spared(void) {
    enum { GRAPHS = 6 };
    Graph g[GRAPHS];
    Exec e[GRAPHS];
    for (unsigned i = 0; i < GRAPHS; i++) {
        g[i] = pair_graph(s, a, 10 + i, b, 20 + i);
        e[i] = exec_of(g[i]);
        say_graphs();
    }
    wait_for(s);
    say_graphs();
    for (unsigned i = 0; i < GRAPHS; i++) {
        launch(e[i], s);
        wait_for(s);
        EXPECT(left_by(e[i]), (10 + i) * 1000 + 20 + i);
    }
    /* Each is there when it is asked for, and what it was made of is nobody else's. */
    for (unsigned i = 0; i < GRAPHS; i++) {
        size_t n = 0;
        OK(cuGraphGetNodes(g[i], NULL, &n));
        EXPECT(n, 2);
        graph_end(g[i]);
    }
    for (unsigned i = 0; i < GRAPHS; i++) EXPECT(left_by(e[i]), (10 + i) * 1000 + 20 + i);
    /* Another shape, of kinds of nodes that are known by now. */
    unsigned long nodes = simulator()("cuGraphAddKernelNode_v2"), clones = simulator()("cuGraphClone");
    capture_begin(s);
    fill(s, a, 1);
    fill(s, b, 2);
    fill(s, a, 7);
    Graph three = capture_end(s);
    Exec first = exec_of(three);
    fprintf(stderr, "added %lu\ncloned %lu\n", simulator()("cuGraphAddKernelNode_v2") - nodes, simulator()("cuGraphClone") - clones);
    EXPECT(left_by(first), 7002);
    graph_end(three);
    EXPECT(left_by(first), 7002);
    exec_end(first);
    for (unsigned i = 0; i < GRAPHS; i++) exec_end(e[i]);
    wait_for(s);
}

int main(int argc, char **argv) {
    (void)argc;
    static const struct mode modes[] = {
        {"disabled", disabled}, {"update", update}, {"recycled", recycled}, {"idle", idle}, {"pauses", pauses},
        {"behind", behind}, {"alike", alike}, {"rested", rested}, {"beside", beside},
        {"memory", memory}, {"nodes", nodes}, {"unknown", unknown}, {"spared", spared},
    };
    begin();
    a = words_new();
    b = words_new();
    s = stream_new();
    return run_mode(modes, sizeof modes / sizeof *modes, argv[1]);
}
