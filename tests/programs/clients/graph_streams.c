/* Streams that are destroyed while execs run on them, or were last launched there. `graph_streams MODE`:
 *   address  a launch on a new stream with the address of the one that the handle still runs on
 *   threads  threads share a class, each with streams that come and go */
#include "graph.h"

/* Four nodes: log, wait, log, fill. One class, whatever the letter. */
static Exec logged(Stream s, unsigned us, char letter, CUdeviceptr p, unsigned value) {
    capture_begin(s);
    OK(cuLaunchHostFunc(s, event, (void *)'('));
    spin(s, us);
    OK(cuLaunchHostFunc(s, event, (void *)(intptr_t)letter));
    fill(s, p, value);
    Graph g = capture_end(s);
    Exec e = exec_of(g);
    graph_end(g);
    return e;
}

static void address(void) {
    CUdeviceptr p = words_new(), q = words_new();
    Stream other = stream_new(), s = stream_new(), old = s;
    Exec a = logged(other, 30000, 'a', q, 3), b = logged(s, 250000, 'b', p, 1), c = logged(s, 1000, 'c', p, 4);
    launch(a, other);
    launch(b, s);
    launch(c, s); /* with room for two: b's exec, which runs, since it is the same stream */
    OK(cuStreamDestroy_v2(s));
    wait_for(other); /* a's exec is free now */
    s = stream_new();
    printf("the same address: %d\n", s == old);
    launch(b, s); /* behind its first launch, which is not this stream's */
    OK(cuLaunchHostFunc(s, event, (void *)'.'));
    wait_for(s);
    /* Both are over, and the second began behind the first: those that began before its end are the
     * first launches of a and b. */
    char *first = strchr(events, 'b'), *second = strrchr(events, 'b'), *end = strchr(events, '.');
    EXPECT(first != NULL && second > first && end > second, 1);
    int begun = 0;
    for (char *at = events; at < first; at++) begun += *at == '(';
    EXPECT(begun, 2);
    launch(c, s); /* likewise */
    wait_for(s);
    EXPECT(strlen(events), 11);
    EXPECT(word_of(p), 4);
    EXPECT(word_of(q), 3);
    exec_end(a);
    exec_end(b);
    exec_end(c);
}

enum { THREADS = 8, ROUNDS = 100, HANDLES = 3 };
static void *come_and_go(void *arg) {
    unsigned base = 1000 * (unsigned)(intptr_t)arg;
    OK(cuCtxSetCurrent(context));
    Stream own = stream_new();
    CUdeviceptr a[HANDLES], b[HANDLES];
    Exec e[HANDLES];
    for (unsigned i = 0; i < HANDLES; i++) {
        a[i] = words_new();
        b[i] = words_new();
        e[i] = pair_exec(own, a[i], base + i, b[i], base + 500 + i);
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned k = round % HANDLES;
        Stream s = stream_new();
        for (unsigned i = 0; i < HANDLES; i++) launch(e[i], s);
        /* While anything captures, the cache can leave no event behind a launch. */
        exec_end(e[k]);
        e[k] = pair_exec(own, a[k], base + k, b[k], base + 500 + k);
        launch(e[k], s);
        OK(cuStreamDestroy_v2(s));
        if (round % 10) continue;
        for (unsigned i = 0; i < HANDLES; i++) { /* behind what runs on streams that are gone */
            launch(e[i], own);
            wait_for(own);
            clear(a[i]);
            clear(b[i]);
            launch(e[i], own);
            wait_for(own);
            EXPECT(word_of(a[i]), base + i);
            EXPECT(word_of(b[i]), base + 500 + i);
        }
    }
    for (int i = 0; i < HANDLES; i++) exec_end(e[i]);
    OK(cuStreamDestroy_v2(own));
    return NULL;
}
static void threads(void) {
    pthread_t t[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&t[i], NULL, come_and_go, (void *)(i + 1))) exit(2);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    begin();
    if (!strcmp(mode, "address")) address();
    else if (!strcmp(mode, "threads")) threads();
    else return 2;
    return report(mode);
}
