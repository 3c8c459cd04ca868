/* What execs hold, and what goes while they live. `graph_lives MODE`:
 *   objects  user objects are released when nothing holds them any more
 *   child    graphs inside graphs, and nodes set inside them
 *   context  a context is destroyed with live handles, which are destroyed afterwards
 *   reset    likewise by a reset of the device
 *   fork     children with live handles leave, with and without touching them
 *   exit     the process ends with live handles, some destroyed at its very end */
#include "graph.h"
#include <sys/wait.h>
CUresult cuUserObjectCreate(void **, void *, void (*)(void *), unsigned, unsigned);
CUresult cuUserObjectRelease(void *, unsigned), cuGraphRetainUserObject(Graph, void *, unsigned, unsigned);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);

static CUdeviceptr a, b;
static Stream s;

static atomic_int released;
static void release(void *what) { released += (int)(intptr_t)what; }
/* What was released by now: what is expected may take a little longer, what is not has had its time. */
static int released_of(int expected) {
    usleep(20000);
    for (int i = 0; i < 1000 && released != expected; i++) usleep(2000);
    return released;
}
#define RELEASED(expected) EXPECT(released_of(expected), expected)
/* The graph holds the only reference to an object that adds `what` when it goes. */
static void give_object(Graph g, int what) {
    void *object;
    OK(cuUserObjectCreate(&object, (void *)(intptr_t)what, release, 1, 1));
    OK(cuGraphRetainUserObject(g, object, 1, 1));
}
static void objects(void) {
    Graph g = pair_graph(s, a, 1, b, 2);
    give_object(g, 1);
    Exec e = exec_of(g), f = exec_of(g);
    graph_end(g);
    RELEASED(0);
    for (int i = 0; i < 3; i++) {
        launch(e, s);
        launch(f, s);
    }
    wait_for(s);
    EXPECT(word_of(b), 2);
    exec_end(e);
    RELEASED(0);
    exec_end(f);
    RELEASED(1);
    /* Given after instantiate: the exec knows nothing of it. */
    g = pair_graph(s, a, 3, b, 4);
    e = exec_of(g);
    give_object(g, 10);
    graph_end(g);
    RELEASED(11);
    /* An update takes over what the new graph holds, and gives up what was held. */
    g = pair_graph(s, a, 5, b, 6);
    give_object(g, 100);
    UpdateInfo info;
    OK(cuGraphExecUpdate_v2(e, g, &info));
    did.exec_updates++;
    graph_end(g);
    RELEASED(11);
    g = pair_graph(s, a, 7, b, 8);
    f = exec_of(g); /* of the same class */
    launch(f, s);
    launch(e, s);
    wait_for(s);
    EXPECT(word_of(b), 6);
    OK(cuGraphExecUpdate_v2(e, g, &info));
    did.exec_updates++;
    graph_end(g);
    RELEASED(111);
    exec_end(e);
    exec_end(f);
    RELEASED(111);
}

static void child(void) {
    enum { EXECS = 4 };
    Exec e[EXECS];
    Graph g[EXECS], inner, held;
    Node n[EXECS], in[EXECS][2];
    for (unsigned i = 0; i < EXECS; i++) {
        inner = graph_new();
        Node m = add_fill(inner, NULL, a, 10 + i);
        add_fill(inner, &m, b, 20 + i);
        g[i] = graph_new();
        OK(cuGraphAddChildGraphNode(&n[i], g[i], NULL, 0, inner));
        graph_end(inner);
        add_fill(g[i], &n[i], a, 30 + i);
        size_t two = 2;
        OK(cuGraphChildGraphNodeGetGraph(n[i], &held));
        OK(cuGraphGetNodes(held, in[i], &two));
        EXPECT(two, 2);
        e[i] = exec_of(g[i]);
    }
    for (int round = 0; round < 3; round++)
        for (unsigned i = 0; i < EXECS; i++) {
            launch(e[i], s);
            wait_for(s);
            EXPECT(word_of(a), 30 + i);
            EXPECT(word_of(b), 20 + i);
        }
    for (unsigned i = 0; i < EXECS; i += 2) OK(cuGraphExecKernelNodeSetParams_v2(e[i], in[i][1], fill_node(b, 40 + i)));
    OK(cuGraphNodeSetEnabled(e[1], in[1][1], 0));
    for (int round = 0; round < 2; round++)
        for (unsigned i = 0; i < EXECS; i++) {
            clear(b);
            launch(e[i], s);
            wait_for(s);
            EXPECT(word_of(a), 30 + i);
            EXPECT(word_of(b), i % 2 == 0 ? 40 + i : i == 1 ? 0 : 20 + i);
        }
    for (int i = 0; i < EXECS; i++) {
        if (i % 2) graph_end(g[i]);
        launch(e[i], s);
        wait_for(s);
        exec_end(e[i]);
        if (i % 2 == 0) graph_end(g[i]);
    }
}

enum { HANDLES = 3 };
static Exec execs[HANDLES];
static Graph graphs[HANDLES];
static void handles(void) {
    for (unsigned i = 0; i < HANDLES; i++) execs[i] = exec_of(graphs[i] = pair_graph(s, a, 1 + i, b, 11 + i));
    for (unsigned i = 0; i < HANDLES; i++) {
        launch(execs[i], s);
        wait_for(s);
        EXPECT(word_of(b), 11 + i);
    }
}
/* Whatever it answers; a real driver may crash where handles are its own. */
static void drop_all(void) {
    for (int i = 0; i < HANDLES; i++) {
        (void)cuGraphLaunch(execs[i], NULL);
        (void)cuGraphExecDestroy(execs[i]);
        (void)cuGraphDestroy(graphs[i]);
    }
}
/* The same again, in the context that is current now. */
static void afresh(void) {
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&fill_words, module, "gpumem_fill"));
    a = words_new();
    b = words_new();
    s = stream_new();
    handles();
}
static void in_context(void) {
    CUcontext own, popped;
    OK(cuCtxCreate_v2(&own, 0, 0));
    afresh();
    OK(cuCtxDestroy_v2(own));
    (void)cuCtxPopCurrent_v2(&popped);
    OK(cuCtxSetCurrent(context));
    drop_all();
    for (int i = 0; i < 3; i++) {
        afresh();
        drop_all();
    }
}
static void reset(void) {
    handles();
    OK(cuDevicePrimaryCtxReset_v2(0));
    (void)cuCtxSetCurrent(context);
    drop_all();
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    afresh();
    drop_all();
}

static atomic_bool stop;
static void *launches(void *unused) {
    (void)unused;
    OK(cuCtxSetCurrent(context));
    for (unsigned i = 0; !stop; i = (i + 1) % HANDLES) {
        launch(execs[i], s);
        wait_for(s);
    }
    return NULL;
}
static void forks(void) {
    enum { QUIET = 3, BUSY = 12 };
    handles();
    pthread_t t;
    for (int i = 0; i < QUIET + BUSY; i++) {
        /* Then whatever lock a launch takes may be held. */
        if (i == QUIET && pthread_create(&t, NULL, launches, NULL)) exit(2);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20);
            if (i == 1) drop_all();
            if (i == 2) {
                Exec e;
                (void)cuGraphUpload(execs[0], s);
                (void)cuGraphInstantiateWithFlags(&e, graphs[0], 0);
                (void)cuGraphExecUpdate_v2(execs[0], graphs[1], &(UpdateInfo){0});
            }
            exit(5);
        }
        int status = -1;
        waitpid(pid, &status, 0);
        EXPECT(WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), 5);
    }
    stop = true;
    pthread_join(t, NULL);
    for (unsigned i = 0; i < HANDLES; i++) {
        launch(execs[i], s);
        wait_for(s);
        EXPECT(word_of(a), 1 + i);
        exec_end(execs[i]);
        graph_end(graphs[i]);
    }
}

static bool at_the_end;
__attribute__((destructor)) static void end(void) {
    if (at_the_end) drop_all();
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    begin();
    a = words_new();
    b = words_new();
    s = stream_new();
    if (!strcmp(mode, "objects")) objects();
    else if (!strcmp(mode, "child")) child();
    else if (!strcmp(mode, "context")) in_context();
    else if (!strcmp(mode, "reset")) reset();
    else if (!strcmp(mode, "fork")) forks();
    else if (!strcmp(mode, "exit")) {
        handles();
        launch(execs[0], s);
        at_the_end = argc > 2;
    } else return 2;
    return report(mode);
}
