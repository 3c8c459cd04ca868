/* A stream joins the capture of its thread while another thread looks at it: the other thread wants the exec that was
 * launched there last. The test lets that look take longer than the join takes to come. */
#include "graph.h"

CUresult cuEventCreate(void **, unsigned), cuEventDestroy_v2(void *), cuEventRecord(void *, Stream);
CUresult cuStreamWaitEvent(Stream, void *, unsigned);

static pthread_barrier_t both;
static CUdeviceptr p, q;

static void *looks(void *unused) {
    OK(cuCtxSetCurrent(context));
    Stream s = stream_new();
    Exec e[] = {pair_exec(s, p, 3, q, 4), pair_exec(s, p, 5, q, 6)};
    launch(e[0], s);
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both);
    launch(e[1], s);
    wait_for(s);
    for (int i = 0; i < 2; i++) exec_end(e[i]);
    OK(cuStreamDestroy_v2(s));
    return unused;
}

int main(void) {
    begin();
    p = words_new(), q = words_new();
    CUdeviceptr r = words_new();
    Stream origin = stream_new(), joins = stream_new();
    void *fork, *join;
    pthread_t t;
    OK(cuEventCreate(&fork, 2));
    OK(cuEventCreate(&join, 2));
    Exec e = pair_exec(origin, p, 1, q, 2);
    launch(e, joins);
    wait_for(joins);
    if (pthread_barrier_init(&both, NULL, 2) || pthread_create(&t, NULL, looks, NULL)) return 2;
    pthread_barrier_wait(&both);
    capture_begin(origin);
    OK(cuEventRecord(fork, origin));
    pthread_barrier_wait(&both);
    usleep(100000);
    OK(cuStreamWaitEvent(joins, fork, 0));
    fill(joins, r, 5);
    /* The look, if it goes on, meets the capture. */
    usleep(200000);
    OK(cuEventRecord(join, joins));
    OK(cuStreamWaitEvent(origin, join, 0));
    Graph g = capture_end(origin);
    pthread_join(t, NULL);
    Exec forked = exec_of(g);
    graph_end(g);
    launch(forked, origin);
    wait_for(origin);
    EXPECT(word_of(r), 5);
    exec_end(forked);
    exec_end(e);
    return report("joins");
}
