/* Execs on several streams and in several threads. `graph_order MODE`:
 *   streams    one handle on two streams runs in the order of its launches
 *   evicted    likewise, while its exec has gone to another handle in between
 *   uploaded   likewise, and it is uploaded before it is launched again
 *   back       the exec comes back to a stream whose handle ran on another one meanwhile
 *   refused    a launch that has to wait is refused, since its stream captures; the next one waits
 *   gate       handles of one class do not wait for one another
 *   barrier    a graph ends while it runs, and what gpumem leaves behind it waits for nothing else
 *   threads    each thread launches handles of one class and finds its own values
 *   destroyed  a thread launches while the graphs of its execs are changed and destroyed */
#include "graph.h"

/* Three nodes: wait, log, fill. One class, whatever the letter. */
static Exec logged(Stream s, unsigned us, char letter, CUdeviceptr p, unsigned value) {
    capture_begin(s);
    spin(s, us);
    OK(cuLaunchHostFunc(s, event, (void *)(intptr_t)letter));
    fill(s, p, value);
    Graph g = capture_end(s);
    Exec e = exec_of(g);
    graph_end(g);
    return e;
}

static void streams(bool evicted, bool uploaded) {
    CUdeviceptr p = words_new();
    Stream one = stream_new(), two = stream_new();
    CUdeviceptr q = words_new();
    Exec a = logged(one, 3000, 'a', p, 1), b = logged(one, 1, 'b', q, 2);
    for (int round = 0; round < 6; round++) {
        memset(events, 0, sizeof events);
        spin(one, 20000);
        launch(a, one);
        if (evicted) launch(b, one); /* on the same stream: it may have a's exec at once */
        if (uploaded) OK(cuGraphUpload(a, two));
        launch(a, two); /* behind the first, which waits behind the spin */
        OK(cuLaunchHostFunc(two, event, (void *)'.'));
        wait_for(two);
        /* Both launches of `a` are over now, or the order was lost. */
        char *first = strchr(events, 'a'), *last = strrchr(events, 'a');
        EXPECT(first != NULL && last > first, 1);
        wait_for(one);
        wait_for(two);
        EXPECT(strlen(events), evicted ? 4 : 3);
    }
    exec_end(a);
    exec_end(b);
    EXPECT(word_of(p), 1);
    EXPECT(word_of(q), evicted ? 2 : 0);
}

/* `a` loses its exec to `b` behind its launch, and would get that of `c`, which was launched on the other stream. */
static void refused(void) {
    CUdeviceptr p = words_new();
    Stream one = stream_new(), two = stream_new();
    for (int round = 0; round < 3; round++) {
        Exec a = logged(one, 10, 'a', p, 1), b = logged(one, 10, 'b', p, 2);
        memset(events, 0, sizeof events);
        spin(one, 200000);
        launch(a, one);
        usleep(60000); /* cold by then */
        launch(b, one);
        Exec c = logged(two, 10, 'c', p, 3);
        launch(c, two);
        wait_for(two);
        exec_end(c);
        capture_begin(two);
        fill(two, p, 4);
        EXPECT(cuGraphLaunch(a, two), 900);
        Graph none = NULL;
        EXPECT(cuStreamEndCapture(two, &none) != 0 || none != NULL, 1);
        if (none) OK(cuGraphDestroy(none));
        launch(a, two);
        wait_for(two);
        char *first = strchr(events, 'a'), *last = strrchr(events, 'a');
        EXPECT(first != NULL && last > first, 1);
        wait_for(one);
        exec_end(a);
        exec_end(b);
    }
}

/* `a` has to go to another exec, or to none, while `b` has the one there is; then it comes back. */
static void back(void) {
    CUdeviceptr p = words_new();
    Stream one = stream_new(), two = stream_new();
    Exec a = logged(one, 10, 'a', p, 1), b = logged(one, 10000, 'b', words_new(), 2);
    for (int round = 0; round < 6; round++) {
        memset(events, 0, sizeof events);
        launch(b, one);
        spin(two, 20000);
        OK(cuLaunchHostFunc(two, event, (void *)'-'));
        launch(a, two); /* behind the spin */
        wait_for(one);
        launch(a, one); /* and behind that */
        wait_for(one);
        char *before = strchr(events, '-'), *first = strchr(events, 'a');
        EXPECT(strlen(events) == 4 && before && first > before, 1);
        wait_for(two);
    }
    exec_end(a);
    exec_end(b);
}

static atomic_bool entered, opened;
static void gate(void *unused) {
    (void)unused;
    entered = true;
    while (!opened) usleep(200);
}

/* Streams that wait for the legacy stream, as it waits for them. `a` runs on `on` and ends while it runs; then the legacy
 * stream or another one waits for the gate. */
static atomic_bool late, done;
static void *opens_late(void *unused) {
    (void)unused;
    for (int ms = 0; ms < 4000 && !done; ms++) usleep(1000);
    late = !done;
    opened = true;
    return NULL;
}
static void barrier(bool legacy) {
    CUdeviceptr p = words_new(), q = words_new();
    Stream one, held;
    OK(cuStreamCreate(&one, 0));
    OK(cuStreamCreate(&held, 0));
    capture_begin(one);
    spin(one, 50000);
    fill(one, p, 1);
    Graph g = capture_end(one);
    Exec a = exec_of(g);
    graph_end(g);
    opened = entered = late = done = false;
    pthread_t t;
    launch(a, legacy ? NULL : one);
    OK(cuLaunchHostFunc(held, gate, NULL));
    if (!legacy) fill(NULL, q, 2); /* waits for the gate */
    exec_end(a);
    if (legacy) fill(one, q, 2); /* waits for `a` */
    if (pthread_create(&t, NULL, opens_late, NULL)) exit(2);
    wait_for(one);
    done = true;
    pthread_join(t, NULL);
    EXPECT(late, false);
    OK(cuCtxSynchronize());
    EXPECT(word_of(p), 1);
    EXPECT(word_of(q), 2);
}
static Exec gated(Stream s, void (*f)(void *), void *data, CUdeviceptr p, unsigned value) {
    capture_begin(s);
    OK(cuLaunchHostFunc(s, f, data));
    fill(s, p, value);
    Graph g = capture_end(s);
    Exec e = exec_of(g);
    graph_end(g);
    return e;
}
static void behind_a_gate(void) {
    CUdeviceptr p = words_new(), q = words_new();
    Stream one = stream_new(), two = stream_new();
    Exec a = gated(one, gate, NULL, p, 5), b = gated(two, event, (void *)'b', q, 6);
    Exec c = gated(two, event, (void *)'c', q, 7);
    alarm(20); /* standing still is an end, too */
    launch(a, one);
    while (!entered) usleep(200);
    launch(b, two);
    wait_for(two);
    EXPECT(word_of(q), 6);
    launch(c, two);
    wait_for(two);
    EXPECT(word_of(q), 7);
    EXPECT(cuStreamQuery(one), 600);
    EXPECT(strcmp(events, "bc"), 0);
    opened = true;
    wait_for(one);
    EXPECT(word_of(p), 5);
    for (int i = 0; i < 3; i++) { /* nothing runs any more: back under the bound */
        launch(b, two);
        launch(c, two);
        wait_for(two);
    }
    say_live_execs();
    exec_end(a);
    exec_end(b);
    exec_end(c);
}

enum { ROUNDS = 150, HANDLES = 3 };
static void *values(void *arg) {
    unsigned base = 1000 * (unsigned)(intptr_t)arg;
    OK(cuCtxSetCurrent(context));
    Stream s = stream_new();
    CUdeviceptr a = words_new(), b = words_new();
    Exec e[HANDLES];
    for (unsigned i = 0; i < HANDLES; i++) e[i] = pair_exec(s, a, base + i, b, base + 500 + i);
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned i = round % HANDLES;
        if (round % 7 == 3) {
            Graph g = pair_graph(s, a, base + i, b, base + 100 + round);
            UpdateInfo info;
            OK(cuGraphExecUpdate_v2(e[i], g, &info));
            did.exec_updates++;
            launch(e[i], s);
            wait_for(s);
            EXPECT(word_of(b), base + 100 + round);
            graph_end(g);
            g = pair_graph(s, a, base + i, b, base + 500 + i);
            OK(cuGraphExecUpdate_v2(e[i], g, &info));
            did.exec_updates++;
            graph_end(g);
        }
        if (round % 11 == 5) {
            exec_end(e[i]);
            e[i] = pair_exec(s, a, base + i, b, base + 500 + i);
        }
        launch(e[i], s);
        wait_for(s);
        EXPECT(word_of(a), base + i);
        EXPECT(word_of(b), base + 500 + i);
    }
    for (int i = 0; i < HANDLES; i++) exec_end(e[i]);
    return NULL;
}
static void threads(void) {
    pthread_t t[3];
    for (intptr_t i = 0; i < 3; i++)
        if (pthread_create(&t[i], NULL, values, (void *)(i + 1))) exit(2);
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
}

static Exec both[2];
static CUdeviceptr first, second;
static atomic_int launched;
static atomic_bool stop;
static void *launches(void *unused) {
    (void)unused;
    OK(cuCtxSetCurrent(context));
    Stream s = stream_new();
    while (!stop) {
        for (unsigned i = 0; i < 2; i++) {
            launch(both[i], s);
            wait_for(s);
            EXPECT(word_of(first), 10 + i);
            EXPECT(word_of(second), 20 + i);
        }
        launched++;
    }
    return NULL;
}
static void destroyed(void) {
    first = words_new();
    second = words_new();
    for (int round = 0; round < 40; round++) {
        Graph g[2];
        Node n[2][2];
        for (unsigned i = 0; i < 2; i++) {
            g[i] = graph_new();
            n[i][0] = add_fill(g[i], NULL, first, 10 + i);
            n[i][1] = add_fill(g[i], &n[i][0], second, 20 + i);
            both[i] = exec_of(g[i]);
        }
        stop = false;
        launched = 0;
        pthread_t t;
        if (pthread_create(&t, NULL, launches, NULL)) exit(2);
        while (launched < 1) usleep(50);
        for (unsigned i = 0; i < 2; i++) {
            OK(cuGraphKernelNodeSetParams_v2(n[i][1], fill_node(second, 99)));
            add_fill(g[i], &n[i][1], first, 98);
            graph_end(g[i]);
        }
        int seen = launched;
        while (launched < seen + 2) usleep(50);
        stop = true;
        pthread_join(t, NULL);
        for (int i = 0; i < 2; i++) exec_end(both[i]);
    }
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    begin();
    if (!strcmp(mode, "streams")) streams(false, false);
    else if (!strcmp(mode, "evicted")) streams(true, false);
    else if (!strcmp(mode, "uploaded")) streams(true, true);
    else if (!strcmp(mode, "back")) back();
    else if (!strcmp(mode, "refused")) refused();
    else if (!strcmp(mode, "gate")) behind_a_gate();
    else if (!strcmp(mode, "barrier")) barrier(false), barrier(true);
    else if (!strcmp(mode, "threads")) threads();
    else if (!strcmp(mode, "destroyed")) destroyed();
    else return 2;
    return report(mode);
}
