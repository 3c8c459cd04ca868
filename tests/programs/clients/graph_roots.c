/* Graphs that branch: the driver may wait for all of the device's work when an exec of one is destroyed. `graph_roots MODE`:
 *   parked   one is destroyed; later a host function waits for what the program does next, which is to
 *            instantiate and launch graphs of another shape
 *   kept     the same while the program still has it
 *   refused  another handle of the same shape takes it, and is refused what it is to hold
 *   raced    while one that is parked is destroyed, work begins that waits for the program (its destruction is to be
 *            slow to begin); then it forks, launches, and goes on when it is told to
 *   left     the same, and the process ends
 *   main     main ends by pthread_exit while one that is parked is destroyed
 *   evicted  the same of one that has to make way for another: the work waits for the launch of that */
#include "graph.h"
#include <sys/wait.h>

static atomic_int open_now;
static void wait_until_open(void *nothing) {
    (void)nothing;
    while (!open_now) usleep(500);
}
static Exec roots_exec(CUdeviceptr p, CUdeviceptr q, CUdeviceptr both, unsigned value) {
    Graph g = graph_new();
    Node first[] = {add_fill(g, NULL, p, value), add_fill(g, NULL, q, value + 1)}, last;
    OK(cuGraphAddKernelNode_v2(&last, g, first, 2, fill_node(both, value + 2)));
    Exec e = exec_of(g);
    graph_end(g);
    return e;
}

static Stream s, t;
static CUdeviceptr p, q, r;
static void refused(void) {
    Exec one = roots_exec(p, q, r, 10), other = roots_exec(p, q, r, 20);
    for (unsigned round = 0; round < 3; round++) {
        launch(one, s);
        wait_for(s);
        EXPECT(word_of(r), 12);
        open_now = 0;
        OK(cuLaunchHostFunc(t, wait_until_open, NULL));
        launch(other, s);
        wait_for(s);
        EXPECT(word_of(r), 22);
        open_now = 1;
        wait_for(t);
    }
    say_live_execs();
    exec_end(one);
    exec_end(other);
}

static void passes(int keeps) {
    for (unsigned round = 0; round < 3; round++) {
        Exec roots = roots_exec(p, q, r, 10 * round);
        launch(roots, s);
        wait_for(s);
        EXPECT(word_of(r), 10 * round + 2);
        if (!keeps) exec_end(roots);
        open_now = 0;
        OK(cuLaunchHostFunc(t, wait_until_open, NULL));
        Exec pair = pair_exec(s, p, 1, q, 5 + round);
        launch(pair, s);
        wait_for(s);
        EXPECT(word_of(q), 5 + round);
        open_now = 1;
        wait_for(t);
        for (int times = 0; times < 2; times++) { /* now nothing runs */
            launch(pair, s);
            wait_for(s);
        }
        say_live_execs();
        exec_end(pair);
        if (keeps) {
            launch(roots, s);
            wait_for(s);
            EXPECT(word_of(q), 10 * round + 1);
            exec_end(roots);
        }
    }
}

static void wait_for_destroy(uint64_t before) {
    for (int i = 0; i < 20000 && simulator()("cuGraphExecDestroy") == before; i++) usleep(1000);
    EXPECT(simulator()("cuGraphExecDestroy"), before + 1);
}
/* Waits until an exec is about to be destroyed, and has work begin that waits for the program. */
static void begin_within_destroy(uint64_t before) {
    wait_for_destroy(before);
    open_now = 0;
    OK(cuLaunchHostFunc(t, wait_until_open, NULL));
}
/* One of these is parked, where there is a cache. */
static uint64_t one_parked(void) {
    uint64_t before = simulator()("cuGraphExecDestroy");
    Exec roots = roots_exec(p, q, r, 10);
    launch(roots, s);
    wait_for(s);
    exec_end(roots);
    return before;
}
static void raced(const char *then) {
    if (!strcmp(then, "main")) {
        wait_for_destroy(one_parked());
        pthread_exit(NULL);
    }
    begin_within_destroy(one_parked());
    printf("begun\n");
    fflush(stdout);
    if (!strcmp(then, "left")) exit(report("roots"));
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        Exec e;
        (void)cuGraphInstantiateWithFlags(&e, NULL, 0);
        (void)cuCtxSynchronize();
        _exit(5);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), 5);
    Exec pair = pair_exec(s, p, 1, q, 5);
    launch(pair, s);
    wait_for(s);
    EXPECT(word_of(q), 5);
    printf("went on\n");
    fflush(stdout);
    while (getchar() != EOF) {}
    open_now = 1;
    wait_for(t);
    exec_end(pair);
}

static uint64_t before_eviction;
static void *begins(void *unused) {
    OK(cuCtxSetCurrent(context));
    begin_within_destroy(before_eviction);
    return unused;
}
static void evicted(void) {
    pthread_t thread;
    before_eviction = one_parked();
    OK(pthread_create(&thread, NULL, begins, NULL));
    Exec pair = pair_exec(s, p, 1, q, 5);
    launch(pair, s);
    wait_for(s);
    EXPECT(word_of(q), 5);
    pthread_join(thread, NULL);
    open_now = 1;
    wait_for(t);
    exec_end(pair);
}

int main(int argc, char **argv) {
    const char *mode = argc == 2 ? argv[1] : "";
    begin();
    s = stream_new(), t = stream_new();
    p = words_new(), q = words_new(), r = words_new();
    if (!strcmp(mode, "refused")) refused();
    else if (!strcmp(mode, "parked") || !strcmp(mode, "kept")) passes(*mode == 'k');
    else if (!strcmp(mode, "raced") || !strcmp(mode, "left") || !strcmp(mode, "main")) raced(mode);
    else if (!strcmp(mode, "evicted")) evicted();
    else return fprintf(stderr, "graph_roots: parked | kept | refused | raced | left | main | evicted\n"), 2;
    fprintf(stderr, "waits %lu\n", simulator()("graph_destroy_waits"));
    return report("roots");
}
