/* Two threads capture at a time, each on its own per-thread default stream: one name for two streams.
 * Then more handles than the bound, one after the other. */
#include "graph.h"

/* CU_STREAM_PER_THREAD */
#define PER_THREAD ((Stream)2)
enum { HANDLES = 16, ROUNDS = 2 };

static pthread_barrier_t both;
static void *captures(void *value) {
    OK(cuCtxSetCurrent(context));
    CUdeviceptr p = words_new();
    pthread_barrier_wait(&both);
    capture_begin(PER_THREAD);
    pthread_barrier_wait(&both);
    fill(PER_THREAD, p, (unsigned)(intptr_t)value);
    Graph g = capture_end(PER_THREAD);
    pthread_barrier_wait(&both);
    Exec e = exec_of(g);
    graph_end(g);
    launch(e, PER_THREAD);
    wait_for(PER_THREAD);
    EXPECT(word_of(p), (intptr_t)value);
    exec_end(e);
    return NULL;
}

int main(void) {
    begin();
    CUdeviceptr p = words_new(), q = words_new();
    Stream s[HANDLES];
    Exec e[HANDLES];
    if (pthread_barrier_init(&both, NULL, 2)) return 2;
    pthread_t t[2];
    for (intptr_t i = 0; i < 2; i++)
        if (pthread_create(&t[i], NULL, captures, (void *)(i + 7))) return 2;
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    for (unsigned i = 0; i < HANDLES; i++) {
        s[i] = stream_new();
        e[i] = pair_exec(s[i], p, i, q, 100 + i);
    }
    for (int round = 0; round < ROUNDS; round++)
        for (unsigned i = 0; i < HANDLES; i++) {
            launch(e[i], s[i]);
            wait_for(s[i]);
            EXPECT(word_of(p), i);
            EXPECT(word_of(q), 100 + i);
        }
    say_live_execs();
    for (int i = 0; i < HANDLES; i++) exec_end(e[i]);
    return report("captures");
}
