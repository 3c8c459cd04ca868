/* Graphs that branch: the driver may wait for all of the device's work when an exec of one is destroyed. `graph_roots MODE`:
 *   parked   one is destroyed; later a host function waits for what the program does next, which is to
 *            instantiate and launch graphs of another shape
 *   kept     the same while the program still has it
 *   refused  another handle of the same shape takes it, and is refused what it is to hold */
#include "graph.h"

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

int main(int argc, char **argv) {
    const char *mode = argc == 2 ? argv[1] : "";
    begin();
    s = stream_new(), t = stream_new();
    p = words_new(), q = words_new(), r = words_new();
    if (!strcmp(mode, "refused")) refused();
    else if (!strcmp(mode, "parked") || !strcmp(mode, "kept")) passes(*mode == 'k');
    else return fprintf(stderr, "graph_roots: parked | kept | refused\n"), 2;
    fprintf(stderr, "waits %lu\n", simulator()("graph_destroy_waits"));
    return report("roots");
}
