/* Code and contexts that come and go beside graphs that stay. `graph_gone MODE`:
 *   unload   modules, beside handles of the same shape
 *   threads  the same in threads, each with a module of its own
 *   context  other contexts
 *   lives    threads, each in a context of its own that goes with its graphs */
#include "graph.h"
CUresult cuCtxDestroy_v2(CUcontext);

static CUdeviceptr a;
static Stream s;

/* A module that one exec needs, for a short while. */
static void passing(Stream on, CUdeviceptr p, unsigned value) {
    CUmodule m;
    CUfunction f;
    uint64_t n = WORDS;
    OK(cuModuleLoadData(&m, image));
    OK(cuModuleGetFunction(&f, m, "gpumem_fill"));
    capture_begin(on);
    for (int i = 0; i < 2; i++) OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, on, (void *[]){&p, &n, &value}, NULL));
    Graph g = capture_end(on);
    Exec e = exec_of(g);
    graph_end(g);
    launch(e, on);
    wait_for(on);
    EXPECT(word_of(p), value);
    exec_end(e);
    OK(cuModuleUnload(m));
}
static void unload(void) {
    enum { ROUNDS = 12 };
    Exec e[ROUNDS];
    for (unsigned i = 0; i < ROUNDS; i++) {
        passing(s, a, 1000 + i);
        e[i] = pair_exec(s, a, 3, a, 10 + i);
        launch(e[i], s);
        wait_for(s);
        passing(s, a, 2000 + i);
    }
    for (int round = 0; round < 2; round++)
        for (unsigned i = 0; i < ROUNDS; i++) {
            launch(e[i], s);
            wait_for(s);
            EXPECT(word_of(a), 10 + i);
        }
    /* Updated from a graph of code that was loaded since. */
    for (unsigned i = 0; i < ROUNDS; i++) {
        Graph g = pair_graph(s, a, 5, a, 50 + i);
        OK(cuGraphExecUpdate_v2(e[i], g, NULL));
        did.exec_updates++;
        graph_end(g);
    }
    for (unsigned i = 0; i < ROUNDS; i++) {
        launch(e[i], s);
        wait_for(s);
        EXPECT(word_of(a), 50 + i);
    }
    say_live_execs();
    for (int i = 0; i < ROUNDS; i++) exec_end(e[i]);
}

/* Every other thread's code stays. */
static void *thread(void *number) {
    unsigned me = (unsigned)(intptr_t)number;
    OK(cuCtxSetCurrent(context));
    Stream on = stream_new();
    CUdeviceptr p = words_new();
    for (unsigned i = 0; i < 150; i++) {
        if (me % 2) passing(on, p, 1000 * me + i);
        else {
            Exec e = pair_exec(on, p, 1, p, 1000 * me + i);
            launch(e, on);
            wait_for(on);
            EXPECT(word_of(p), 1000 * me + i);
            exec_end(e);
        }
    }
    return NULL;
}
static void threads(void) {
    enum { THREADS = 6 };
    pthread_t all[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&all[i], NULL, thread, (void *)(intptr_t)i);
    for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
}

static void other_context(void) {
    CUcontext other;
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuCtxDestroy_v2(other));
    OK(cuCtxSetCurrent(context));
}
static void contexts(void) {
    Exec e[3];
    Graph g = pair_graph(s, a, 7, a, 8);
    for (unsigned i = 0; i < 3; i++) e[i] = pair_exec(s, a, 3, a, 10 + i);
    for (int round = 0; round < 3; round++) {
        other_context();
        for (unsigned i = 0; i < 3; i++) {
            launch(e[i], s);
            wait_for(s);
            EXPECT(word_of(a), 10 + i);
        }
        Exec f = exec_of(g);
        other_context();
        launch(f, s);
        wait_for(s);
        EXPECT(word_of(a), 8);
        exec_end(f);
    }
    for (int i = 0; i < 3; i++) exec_end(e[i]);
    graph_end(g);
}

static void *in_contexts(void *nothing) {
    enum { EXECS = 4 };
    for (unsigned i = 0; i < 60; i++) {
        CUcontext own;
        CUmodule m;
        CUfunction f;
        OK(cuCtxCreate_v2(&own, 0, 0));
        OK(cuModuleLoadData(&m, image));
        OK(cuModuleGetFunction(&f, m, "gpumem_fill"));
        Stream on = stream_new();
        CUdeviceptr p = words_new();
        Exec e[EXECS];
        for (unsigned k = 0; k < EXECS; k++) {
            uint64_t n = WORDS;
            capture_begin(on);
            for (unsigned step = 0; step <= k % 3; step++)
                OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, on, (void *[]){&p, &n, &k}, NULL));
            Graph g = capture_end(on);
            e[k] = exec_of(g);
            graph_end(g);
        }
        for (unsigned step = 0; step < 3 * EXECS; step++) {
            unsigned k = step * 7 % EXECS;
            launch(e[k], on);
            wait_for(on);
            EXPECT(word_of(p), k);
        }
        for (unsigned k = 0; k < EXECS; k++) exec_end(e[k]);
        OK(cuCtxDestroy_v2(own));
    }
    return nothing;
}
static void lives(void) {
    enum { THREADS = 4 };
    pthread_t all[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&all[i], NULL, in_contexts, NULL);
    for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    static const struct mode modes[] = {
        {"unload", unload}, {"threads", threads}, {"context", contexts}, {"lives", lives},
    };
    begin();
    s = stream_new();
    a = words_new();
    return run_mode(modes, sizeof modes / sizeof *modes, argv[1]);
}
